"""A plan whose weights are NumPy arrays."""

from __future__ import annotations

from typing import Any

from cupy_convt3d._call import Settings, check_layer_dtype, check_weights, layer_problem
from cupy_convt3d._libraries import check_library
from cupy_convt3d._run_numpy import run_numpy


class NumpyLayer:
    """Calls with copies of NumPy weights."""

    def __init__(self, weight: Any, bias: Any, settings: Settings) -> None:
        self._dtype = check_weights(weight, bias, settings)
        self._settings = settings
        self._weight = weight.copy()
        self._bias = None if bias is None else bias.copy()

    def __call__(self, x: Any, out: Any) -> Any:
        check_library("numpy", x, out)
        check_layer_dtype(x.dtype, self._dtype)
        layer_problem(x.shape, self._weight, self._bias, self._settings)
        return run_numpy(x, self._weight, self._bias, out, self._settings)
