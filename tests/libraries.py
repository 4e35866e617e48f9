"""The ways in which a caller can hold the same data: NumPy, torch on the CPU, CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def from_torch(tensor: torch.Tensor) -> NDArray[Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy()
    return tensor.numpy()


def to_cupy(array: NDArray[Any]) -> Any:
    import cupy

    return cupy.asarray(array)


class Library:
    """One kind of array: how to make it from NumPy data and how to read it back."""

    def __init__(self, name: str, make: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
        self.name = name
        self.make = make
        self.read = read

    def make_all(self, arrays: tuple[Any, ...]) -> list[Any]:
        return [None if array is None else self.make(array) for array in arrays]


NUMPY = Library("numpy", lambda array: array.copy(), lambda array: array)
TORCH = Library("torch", to_torch, from_torch)
CUPY = Library("cupy", to_cupy, lambda array: array.get())

LIBRARIES = pytest.mark.parametrize(
    "library",
    [
        pytest.param(NUMPY, id="numpy"),
        pytest.param(TORCH, id="torch"),
        pytest.param(CUPY, id="cupy", marks=pytest.mark.cuda),
    ],
)
