"""Data and results of gradients, for every test of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.problems import Case, integer_data, normal_data, numpy_dtype
from tests.reference import gradient_reference

Operands = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def output_shape_of(case: Case) -> tuple[int, ...]:
    problem = case.problem()
    return problem.y_shape if len(case.x) == 5 else problem.y_shape[1:]


def integer_operands(case: Case, dtype: str, seed: int = 0) -> Operands:
    """Return x, weight and grad_output of -1, 0 and 1, for which every order is exact."""
    x, weight, _ = integer_data(case, dtype, seed)
    rng = np.random.default_rng(seed + 1)
    return x, weight, _complete(lambda shape: rng.integers(-1, 2, shape), case, dtype)


def normal_operands(case: Case, dtype: str, seed: int = 0) -> Operands:
    """Return x, weight and grad_output of standard normal values."""
    x, weight, _ = normal_data(case, dtype, seed)
    rng = np.random.default_rng(seed + 1)
    return x, weight, _complete(rng.standard_normal, case, dtype)


def _complete(values: Any, case: Case, dtype: str) -> NDArray[Any]:
    target = numpy_dtype(dtype)
    shape = output_shape_of(case)
    drawn = values(shape).astype(np.float64)
    if target.kind == "c":
        drawn = drawn + 1j * values(shape)
    return np.asarray(drawn.astype(target))


def exact_gradients(case: Case, operands: Operands) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the gradients of x and weight in float64 by torch; complex ones by the definition."""
    x, weight, grad_output = operands
    if x.dtype.kind == "c":
        problem = case.problem()
        grad_x, grad_weight = gradient_reference(
            x.reshape(problem.x_shape),
            weight,
            grad_output.reshape(problem.y_shape),
            problem.stride,
            problem.padding,
            problem.groups,
            problem.dilation,
        )
        return grad_x.reshape(x.shape), grad_weight
    x_wide, weight_wide = (
        torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (x, weight)
    )
    y = torch.nn.functional.conv_transpose3d(x_wide, weight_wide, **case.settings)
    y.backward(torch.from_numpy(grad_output.astype(np.float64)))
    assert x_wide.grad is not None
    assert weight_wide.grad is not None
    return x_wide.grad.numpy(), weight_wide.grad.numpy()


def gradient_magnitudes(case: Case, operands: Operands) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the sums of absolute products, which rounding errors scale with."""
    wide = [np.abs(a.astype(np.complex128)).real for a in operands]
    return exact_gradients(case, (wide[0], wide[1], wide[2]))


def gradient_depths(case: Case) -> tuple[int, int]:
    """Return the products of one element of each gradient, at most."""
    problem = case.problem()
    of_x = problem.out_channels_per_group * int(np.prod(problem.kernel))
    of_weight = max(1, problem.batch) * int(np.prod(problem.input))
    return of_x, of_weight
