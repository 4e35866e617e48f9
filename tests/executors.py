"""Run a plan on NumPy data in each of the ways there are, with the result prefilled by NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cupy_convt3d._plan import Plan
from cupy_convt3d._problem import Problem
from tests.problems import Arrays


def nan_filled(problem: Problem, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.full(problem.y_shape, np.nan, dtype=dtype)


def batched(problem: Problem, arrays: Arrays) -> Arrays:
    x, weight, bias = arrays
    return x.reshape(problem.x_shape), weight, bias


def run_on_host(executor: Any, plan: Plan, problem: Problem, arrays: Arrays) -> NDArray[Any]:
    """Run the kernels, compiled as C++, on host memory."""
    x, weight, bias = batched(problem, arrays)
    y = nan_filled(problem, x.dtype)
    executor.run(plan, {"x": x, "weight": weight, "bias": bias, "y": y})
    return y


def run_on_device(plan: Plan, problem: Problem, arrays: Arrays) -> NDArray[Any]:
    """Run the kernels on the current CUDA device."""
    import cupy

    from cupy_convt3d._launch import BoundPlan

    x, weight, bias = batched(problem, arrays)
    y = cupy.asarray(nan_filled(problem, x.dtype))
    device_arrays = {
        "x": cupy.asarray(x),
        "weight": cupy.asarray(weight),
        "bias": None if bias is None else cupy.asarray(bias),
        "y": y,
        "workspace": cupy.full(plan.workspace_bytes, 255, dtype=cupy.uint8),
        "packed": cupy.full(plan.packed_bytes, 255, dtype=cupy.uint8),
    }
    bound = BoundPlan(plan, cupy.cuda.runtime.getDevice())
    bound.pack(device_arrays)
    bound.run(device_arrays)
    cupy.cuda.runtime.deviceSynchronize()
    before = {"x": x, "weight": weight, "bias": bias}
    for role, array in before.items():
        if array is not None:
            assert device_arrays[role].get().tobytes() == array.tobytes(), f"{role} was changed"
    return y.get()
