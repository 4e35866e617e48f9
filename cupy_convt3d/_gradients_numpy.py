"""Gradients whose operands are NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_convt3d._call import Settings
from cupy_convt3d._gradient_call import grad_input_call, grad_weight_call
from cupy_convt3d._numpy_gradients import grad_input_numpy, grad_weight_numpy


def run_grad_input_numpy(
    grad_output: Any, weight: Any, input_shape: Any, settings: Settings
) -> Any:
    """Return the gradient of the input; see `cupy_convt3d.conv_transpose3d_grad_input`."""
    problem, _, x_shape = grad_input_call(grad_output, weight, input_shape, settings)
    grad_input = np.empty(x_shape, dtype=grad_output.dtype)
    grad_input_numpy(
        problem, grad_output.reshape(problem.y_shape), weight, grad_input.reshape(problem.x_shape)
    )
    return grad_input


def run_grad_weight_numpy(x: Any, grad_output: Any, weight_shape: Any, settings: Settings) -> Any:
    """Return the gradient of the weight; see `cupy_convt3d.conv_transpose3d_grad_weight`."""
    problem, _ = grad_weight_call(x, grad_output, weight_shape, settings)
    grad_weight = np.empty(problem.weight_shape, dtype=x.dtype)
    grad_weight_numpy(
        problem, x.reshape(problem.x_shape), grad_output.reshape(problem.y_shape), grad_weight
    )
    return grad_weight
