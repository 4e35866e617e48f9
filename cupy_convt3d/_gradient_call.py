"""From the arguments of a gradient to its checked problem and dtype, once per signature."""

from __future__ import annotations

import functools
from typing import Any

from cupy_convt3d._call import Settings, Shape, checked_problem, dtype_of
from cupy_convt3d._dtypes import KernelDtype, kernel_dtype
from cupy_convt3d._problem import Problem, shape_tuple

#: The CUDA kernels of each gradient; all of them are deterministic.
GRAD_INPUT_ALGORITHMS = ("auto", "gather", "implicit_gemm")
GRAD_WEIGHT_ALGORITHMS = ("auto", "direct", "implicit_gemm")


def grad_input_call(
    grad_output: Any, weight: Any, input_shape: Any, settings: Settings
) -> tuple[Problem, KernelDtype, Shape]:
    """Return the checked problem, the dtype and the shape of a gradient of the input."""
    dtype = check_gradient_dtypes({"grad_output": grad_output, "weight": weight})
    input_shape = shape_tuple(input_shape, "input_shape")
    if len(input_shape) not in (4, 5):
        raise ValueError(
            "input_shape must have 5 entries (N, C_in, D, H, W) or 4 (C_in, D, H, W), "
            f"got {input_shape}"
        )
    problem = _problem(input_shape, tuple(weight.shape), tuple(grad_output.shape), settings)
    return problem, dtype, input_shape


def grad_weight_call(
    x: Any, grad_output: Any, weight_shape: Any, settings: Settings
) -> tuple[Problem, KernelDtype]:
    """Return the checked problem and the dtype of a gradient of the weight."""
    dtype = check_gradient_dtypes({"x": x, "grad_output": grad_output})
    weight_shape = shape_tuple(weight_shape, "weight_shape")
    if len(weight_shape) != 5:
        raise ValueError(
            f"weight_shape must have 5 entries (C_in, C_out/groups, KD, KH, KW), got {weight_shape}"
        )
    return _problem(tuple(x.shape), weight_shape, tuple(grad_output.shape), settings), dtype


def grad_bias_dtype(grad_output: Any) -> KernelDtype:
    """Return the dtype of a gradient of the bias, after checking what it is made from."""
    dtype = kernel_dtype(grad_output.dtype, "grad_output")
    if grad_output.ndim not in (4, 5):
        raise ValueError(
            "grad_output must have 5 axes (N, C_out, D, H, W) or 4 (C_out, D, H, W), "
            f"got {grad_output.ndim} with shape {tuple(grad_output.shape)}"
        )
    return dtype


def check_gradient_dtypes(operands: dict[str, Any]) -> KernelDtype:
    """Return the common dtype of two operands; raise TypeError if one differs or is unfit."""
    (first_name, first), (name, other) = operands.items()
    dtype = dtype_of(first.dtype, first_name)
    if other.dtype != first.dtype:
        dtype_of(other.dtype, name)
        raise TypeError(
            f"{name} must have the dtype of {first_name}, {dtype.name}, got {other.dtype}"
        )
    return dtype


@functools.lru_cache(maxsize=1024)
def _problem(
    x_shape: Shape, weight_shape: Shape, grad_output_shape: Shape, settings: Settings
) -> Problem:
    try:
        problem = checked_problem(x_shape, weight_shape, None, settings)
    except ValueError as error:
        raise ValueError(
            f"{error}; in this gradient x has shape {x_shape} and weight {weight_shape}"
        ) from None
    y_shape = problem.y_shape if len(x_shape) == 5 else problem.y_shape[1:]
    if grad_output_shape != y_shape:
        raise ValueError(
            f"grad_output must have the shape of the result, {y_shape}, got {grad_output_shape} "
            f"(x has shape {x_shape}, weight {weight_shape}, "
            f"output_padding={settings.output_padding})"
        )
    return problem
