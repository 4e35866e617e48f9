"""The results of the operators without their values: shapes, dtypes and strides.

Results are C-contiguous, as the real ones are. Sizes may be symbols, so that the rules for them are
checked where the operators run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cupy_convt3d._activation import NO_ACTIVATION
from cupy_convt3d._call import check_dtypes
from cupy_convt3d._gradient_call import check_gradient_dtypes
from cupy_convt3d.torch._operators import (
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    LIBRARY,
    check_batch_and_devices,
)


def _forward(x: Any, weight: Any, bias: Any, *arguments: Any) -> Any:
    check_dtypes(x, weight, bias, NO_ACTIVATION)
    check_batch_and_devices({"x": x, "weight": weight, "bias": bias})
    return x.new_empty(_y_shape(x.shape, weight.shape, arguments))


def _grad_input(grad_output: Any, weight: Any, input_shape: Sequence[Any], *arguments: Any) -> Any:
    check_gradient_dtypes({"grad_output": grad_output, "weight": weight})
    check_batch_and_devices({"grad_output": grad_output, "weight": weight})
    _check_grad_output(grad_output, _y_shape(input_shape, weight.shape, arguments))
    return grad_output.new_empty(tuple(input_shape))


def _grad_weight(x: Any, grad_output: Any, weight_shape: Sequence[Any], *arguments: Any) -> Any:
    check_gradient_dtypes({"x": x, "grad_output": grad_output})
    check_batch_and_devices({"x": x, "grad_output": grad_output})
    _check_grad_output(grad_output, _y_shape(x.shape, weight_shape, arguments))
    return x.new_empty(tuple(weight_shape))


def _y_shape(
    x_shape: Sequence[Any], weight_shape: Sequence[Any], arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    for name, shape in (("x", x_shape), ("weight", weight_shape)):
        if len(shape) != 5:
            raise ValueError(f"{name} must have 5 axes, got {len(shape)} with shape {tuple(shape)}")
    stride, padding, output_padding, groups, dilation = arguments[:5]
    extents = (
        (i - 1) * s - 2 * p + d * (k - 1) + op + 1
        for i, k, s, p, op, d in zip(
            x_shape[2:], weight_shape[2:], stride, padding, output_padding, dilation, strict=True
        )
    )
    return (x_shape[0], weight_shape[1] * groups, *extents)


def _check_grad_output(grad_output: Any, y_shape: tuple[Any, ...]) -> None:
    """Raise unless the shapes are the same; for symbols, remember that they are."""
    for found, expected in zip(grad_output.shape, y_shape, strict=True):
        torch._check(
            found == expected,
            lambda: (
                f"grad_output must have the shape of the result, {y_shape}, "
                f"got {tuple(grad_output.shape)}"
            ),
        )


for _operator, _fake in (
    (FORWARD, _forward),
    (GRAD_INPUT, _grad_input),
    (GRAD_WEIGHT, _grad_weight),
):
    torch.library.register_fake(_operator, _fake, lib=LIBRARY)
