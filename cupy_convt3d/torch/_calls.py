"""From checked settings to the operators: tensors that they can take, and a batch for a sample."""

from __future__ import annotations

from typing import Any

import torch

from cupy_convt3d._call import Settings
from cupy_convt3d._gradient_call import grad_bias_dtype
from cupy_convt3d._problem import Triple, make_problem, shape_tuple

# The import of each completes the operators.
from cupy_convt3d.torch import _autocast, _autograd, _fake, _vmap  # noqa: F401


def forward(x: Any, weight: Any, bias: Any, settings: Settings) -> Any:
    """Return the transposed convolution."""
    if settings.output_size is not None:
        settings = _with_output_padding(x, weight, settings)
    check_dense(x, "x")
    check_dense(weight, "weight")
    if bias is not None:
        check_dense(bias, "bias")
    arguments = _arguments(settings)
    if x.ndim == 4:
        return _autograd.forward(x.unsqueeze(0), weight, bias, *arguments).squeeze(0)
    return _autograd.forward(x, weight, bias, *arguments)


def grad_input(grad_output: Any, weight: Any, input_shape: Any, settings: Settings) -> Any:
    """Return the gradient of the input."""
    check_dense(grad_output, "grad_output")
    check_dense(weight, "weight")
    shape = shape_tuple(input_shape, "input_shape")
    arguments = _arguments(settings)
    if grad_output.ndim == len(shape) == 4:
        batch = grad_output.unsqueeze(0)
        return _autograd.grad_input(batch, weight, (1, *shape), *arguments).squeeze(0)
    return _autograd.grad_input(grad_output, weight, shape, *arguments)


def grad_weight(x: Any, grad_output: Any, weight_shape: Any, settings: Settings) -> Any:
    """Return the gradient of the weight."""
    check_dense(x, "x")
    check_dense(grad_output, "grad_output")
    shape = shape_tuple(weight_shape, "weight_shape")
    arguments = _arguments(settings)
    if x.ndim == grad_output.ndim == 4:
        x, grad_output = x.unsqueeze(0), grad_output.unsqueeze(0)
    return _autograd.grad_weight(x, grad_output, shape, *arguments)


def grad_bias(grad_output: Any) -> Any:
    """Return the gradient of the bias."""
    check_dense(grad_output, "grad_output")
    grad_bias_dtype(grad_output)
    return _autograd.bias_gradient(grad_output)


def check_dense(tensor: Any, name: str) -> None:
    """Raise unless the operators can take a tensor; one on the meta device has no values."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, got a {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "a nested one" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name} must be a dense (strided) tensor, got {layout}")
    if not (tensor.is_cuda or tensor.is_cpu or tensor.is_meta):
        raise ValueError(f"{name} must be on the CPU or a CUDA device, got {tensor.device}")


def _with_output_padding(x: Any, weight: Any, settings: Settings) -> Settings:
    """Return settings that lead to the wanted output size; an operator has none."""
    problem = make_problem(
        tuple(x.shape),
        tuple(weight.shape),
        None,
        settings.stride,
        settings.padding,
        settings.output_padding,
        settings.groups,
        settings.dilation,
        settings.output_size,
    )
    return settings._replace(output_size=None, output_padding=problem.output_padding)


def _arguments(settings: Settings) -> tuple[Triple, Triple, Triple, int, Triple, str, str, bool]:
    return (
        settings.stride,
        settings.padding,
        settings.output_padding,
        settings.groups,
        settings.dilation,
        settings.precision,
        settings.algorithm,
        settings.deterministic,
    )
