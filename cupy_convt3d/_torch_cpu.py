"""Tensors of torch on the CPU: the NumPy path, in torch's memory.

Tensors are dense and hold the values they show (nothing lazy).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cupy_convt3d._activation import Activation
from cupy_convt3d._numpy_gradients import grad_input_numpy, grad_weight_numpy
from cupy_convt3d._numpy_path import conv_transpose3d_numpy
from cupy_convt3d._problem import Problem

#: Bytes of the float32 copies of bfloat16 samples that are alive at a time.
BFLOAT16_COPIES = 64 * 1024 * 1024


def forward_cpu(
    torch: Any,
    problem: Problem,
    x: Any,
    weight: Any,
    bias: Any,
    y: Any,
    activation: Activation,
) -> None:
    """Write the transposed convolution to ``y``, which is C-contiguous."""
    x = x.reshape(problem.x_shape)
    y = y.detach().view(problem.y_shape)
    bfloat16 = _bfloat16(torch, y)
    if y.dtype == torch.bfloat16 and bfloat16 is None:
        _forward_through_float32(torch, problem, x, weight, bias, y, activation)
        return
    x, weight, bias, y = (
        None if t is None else _array(torch, t, bfloat16) for t in (x, weight, bias, y)
    )
    conv_transpose3d_numpy(problem, x, weight, bias, y, activation)


def grad_input_cpu(torch: Any, problem: Problem, grad_output: Any, weight: Any) -> Any:
    """Return the gradient of the input, batched."""
    result = torch.empty(problem.x_shape, dtype=weight.dtype, device=weight.device)
    _compute(torch, partial(grad_input_numpy, problem), grad_output, weight, result)
    return result


def grad_weight_cpu(torch: Any, problem: Problem, x: Any, grad_output: Any) -> Any:
    """Return the gradient of the weight."""
    result = torch.empty(problem.weight_shape, dtype=x.dtype, device=x.device)
    _compute(torch, partial(grad_weight_numpy, problem), x, grad_output, result)
    return result


def _compute(torch: Any, compute: Callable[..., None], left: Any, right: Any, result: Any) -> None:
    bfloat16 = _bfloat16(torch, result)
    if result.dtype == torch.bfloat16 and bfloat16 is None:
        sums = np.empty(tuple(result.shape), dtype=np.float32)
        compute(left.detach().float().numpy(), right.detach().float().numpy(), sums)
        result.copy_(torch.from_numpy(sums))
        return
    compute(*(_array(torch, tensor, bfloat16) for tensor in (left, right, result)))


def _bfloat16(torch: Any, tensor: Any) -> Any:
    """Return NumPy's dtype for a tensor of bfloat16 where ml_dtypes is there, else None."""
    if tensor.dtype != torch.bfloat16:
        return None
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes.bfloat16


def _array(torch: Any, tensor: Any, bfloat16: Any) -> Any:
    """Return a tensor's memory as a NumPy array."""
    tensor = tensor.detach()
    if bfloat16 is None:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(bfloat16)


def _forward_through_float32(
    torch: Any,
    problem: Problem,
    x: Any,
    weight: Any,
    bias: Any,
    y: Any,
    activation: Activation,
) -> None:
    """Run bfloat16 tensors without ml_dtypes, by float32 copies of a few samples at a time."""
    x = x.detach()
    weight = weight.detach().float().numpy()
    bias = None if bias is None else bias.detach().float().numpy()
    bytes_per_sample = 4 * (x[0].numel() + y[0].numel()) if problem.batch else 1
    samples = max(1, BFLOAT16_COPIES // bytes_per_sample)
    for begin in range(0, problem.batch, samples):
        x_part = x[begin : begin + samples].float().numpy()
        part = replace(problem, batch=x_part.shape[0])
        y_part = np.empty(part.y_shape, dtype=np.float32)
        conv_transpose3d_numpy(part, x_part, weight, bias, y_part, activation)
        y[begin : begin + samples].copy_(torch.from_numpy(y_part))
