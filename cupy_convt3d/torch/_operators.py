"""The three operators of torch, and what they run on the CPU and on CUDA devices.

The arguments of an operator are checked here, where every caller comes by, compiled code included.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from cupy_convt3d._activation import NO_ACTIVATION
from cupy_convt3d._algorithm import ALGORITHMS
from cupy_convt3d._call import Settings, check_dtypes, checked_problem, settings_of
from cupy_convt3d._gradient_call import (
    GRAD_INPUT_ALGORITHMS,
    GRAD_WEIGHT_ALGORITHMS,
    grad_input_call,
    grad_weight_call,
)
from cupy_convt3d._plan import Role
from cupy_convt3d._torch_bridge import forward_cuda, gradient_cuda
from cupy_convt3d._torch_cpu import forward_cpu, grad_input_cpu, grad_weight_cpu

# Symbols where a call may compute them from sizes; numbers are faster to pass.
_SETTINGS = (
    "int[3] stride, int[3] padding, SymInt[3] output_padding, SymInt groups, "
    "int[3] dilation, str precision, str algorithm, bool deterministic"
)

LIBRARY = torch.library.Library("cupy_convt3d", "DEF")
for _schema in (
    f"conv_transpose3d(Tensor x, Tensor weight, Tensor? bias, {_SETTINGS}) -> Tensor",
    "conv_transpose3d_grad_input(Tensor grad_output, Tensor weight, SymInt[] input_shape, "
    f"{_SETTINGS}) -> Tensor",
    "conv_transpose3d_grad_weight(Tensor x, Tensor grad_output, SymInt[] weight_shape, "
    f"{_SETTINGS}) -> Tensor",
):
    LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)

FORWARD = torch.ops.cupy_convt3d.conv_transpose3d.default
GRAD_INPUT = torch.ops.cupy_convt3d.conv_transpose3d_grad_input.default
GRAD_WEIGHT = torch.ops.cupy_convt3d.conv_transpose3d_grad_weight.default


def forward(x: Any, weight: Any, bias: Any, *arguments: Any) -> Any:
    """Return the transposed convolution of a batch."""
    settings = _settings(ALGORITHMS, *arguments)
    dtype = check_dtypes(x, weight, bias, NO_ACTIVATION)
    bias_shape = None if bias is None else tuple(bias.shape)
    problem = checked_problem(tuple(x.shape), tuple(weight.shape), bias_shape, settings)
    check_batch_and_devices({"x": x, "weight": weight, "bias": bias})
    if x.is_cuda:
        return forward_cuda(torch, x, weight, bias, None, problem.y_shape, dtype, settings)
    y = torch.empty(problem.y_shape, dtype=x.dtype, device=x.device)
    forward_cpu(torch, problem, x, weight, bias, y, NO_ACTIVATION)
    return y


def grad_input(grad_output: Any, weight: Any, input_shape: Sequence[int], *arguments: Any) -> Any:
    """Return the gradient of the input of a batch."""
    settings = _settings(GRAD_INPUT_ALGORITHMS, *arguments)
    problem, dtype, _ = grad_input_call(grad_output, weight, tuple(input_shape), settings)
    check_batch_and_devices({"grad_output": grad_output, "weight": weight})
    if grad_output.is_cuda:
        operands: dict[Role, Any] = {"grad_output": grad_output, "weight": weight}
        return gradient_cuda(torch, "grad_input", operands, problem, dtype, settings)
    return grad_input_cpu(torch, problem, grad_output, weight)


def grad_weight(x: Any, grad_output: Any, weight_shape: Sequence[int], *arguments: Any) -> Any:
    """Return the gradient of the weight, of a batch."""
    settings = _settings(GRAD_WEIGHT_ALGORITHMS, *arguments)
    problem, dtype = grad_weight_call(x, grad_output, tuple(weight_shape), settings)
    check_batch_and_devices({"x": x, "grad_output": grad_output})
    if x.is_cuda:
        operands: dict[Role, Any] = {"x": x, "grad_output": grad_output}
        return gradient_cuda(torch, "grad_weight", operands, problem, dtype, settings)
    return grad_weight_cpu(torch, problem, x, grad_output)


for _name, _compute in (
    ("conv_transpose3d", forward),
    ("conv_transpose3d_grad_input", grad_input),
    ("conv_transpose3d_grad_weight", grad_weight),
):
    for _device in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _compute, _device)


def _settings(
    algorithms: tuple[str, ...],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
    precision: str,
    algorithm: str,
    deterministic: bool,
) -> Settings:
    """Return the checked settings of an operator's arguments, which torch passes as lists."""
    return _checked_settings(
        tuple(stride),
        tuple(padding),
        tuple(output_padding),
        groups,
        tuple(dilation),
        algorithm,
        deterministic or torch.are_deterministic_algorithms_enabled(),
        precision,
        algorithms,
    )


@functools.lru_cache(maxsize=1024)
def _checked_settings(
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
    algorithm: str,
    deterministic: bool,
    precision: str,
    algorithms: tuple[str, ...],
) -> Settings:
    return settings_of(
        stride,
        padding,
        output_padding,
        groups,
        dilation,
        None,
        algorithm,
        deterministic,
        precision,
        algorithms=algorithms,
    )


def check_batch_and_devices(operands: dict[str, Any]) -> None:
    """Raise unless the first operand has a batch axis, and the others are on its device."""
    (first_name, first), *others = operands.items()
    if first.ndim != 5:
        raise ValueError(
            f"{first_name} must have 5 axes, a batch first, in the operator, "
            f"got {first.ndim} with shape {tuple(first.shape)}"
        )
    for name, tensor in others:
        if tensor is not None and tensor.device != first.device:
            raise ValueError(
                f"{name} must be on the device of {first_name}, {first.device}, got {tensor.device}"
            )
