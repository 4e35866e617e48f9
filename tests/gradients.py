"""Data and results of gradients, by torch in float64 on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.problems import Case, numpy_dtype

Array = NDArray[Any]


def gradient_data(case: Case, dtype: str, integers: bool, seed: int = 0) -> tuple[Array, ...]:
    """Return x, weight and the gradient of y: small integers, exact in any order, or normal."""
    rng = np.random.default_rng(seed)
    target = numpy_dtype(dtype)

    def values(shape: tuple[int, ...]) -> Array:
        drawn: Array = rng.integers(-1, 2, shape) if integers else rng.standard_normal(shape)
        return drawn

    def draw(shape: tuple[int, ...]) -> Array:
        drawn = values(shape).astype(np.float64)
        if target.kind == "c":
            drawn = drawn + 1j * values(shape)
        return drawn.astype(target)

    problem = case.problem()
    return draw(problem.x_shape), draw(problem.weight_shape), draw(problem.y_shape)


def exact_gradients(case: Case, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return the gradients of x and weight in float64 or complex128."""
    wide = np.complex128 if arrays[0].dtype.kind == "c" else np.float64
    x, weight, grad_output = (torch.from_numpy(a.astype(wide)) for a in arrays)
    x.requires_grad_()
    weight.requires_grad_()
    torch.nn.functional.conv_transpose3d(x, weight, None, **case.settings).backward(grad_output)
    assert x.grad is not None
    assert weight.grad is not None
    return x.grad.numpy(), weight.grad.numpy()


def gradient_magnitudes(case: Case, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return the sums of the absolute products of each gradient, which errors scale with."""
    x, weight = exact_gradients(case, tuple(np.abs(a.astype(np.complex128)).real for a in arrays))
    return x, weight
