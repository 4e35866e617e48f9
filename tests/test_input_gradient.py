"""The gradient of the input by every kernel, dtype and index width, on every edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cupy_convt3d._dtypes import DTYPES as KERNEL_DTYPES
from cupy_convt3d._input_gradient import input_gradient
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._problem import Problem
from tests.executors import run_on_device, run_on_host
from tests.gradients import exact_gradients, gradient_data, gradient_magnitudes
from tests.host.executor import HostExecutor
from tests.problems import DTYPES, EDGES, EXACT_LIMIT, Arrays, Case
from tests.reference import error_bound

Run = Callable[[Problem, Arrays], NDArray[Any]]

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES)
INDEX_BITS = pytest.mark.parametrize("bits", [32, 64])


def products(case: Case) -> int:
    """Products of one gradient of the input at most."""
    return int(np.prod(case.weight[1:]))


def check(case: Case, dtype: str, integers: bool, run: Run) -> None:
    arrays = gradient_data(case, dtype, integers)
    problem = input_gradient(case.problem())
    expected = exact_gradients(case, arrays)[0]
    size = gradient_magnitudes(case, arrays)[0]
    result = run(problem, (arrays[2], arrays[1], None)).astype(expected.dtype)
    if integers:
        assert size.max() <= EXACT_LIMIT[dtype], "data beyond exactness"
        np.testing.assert_array_equal(result, expected)
        return
    bound = error_bound(dtype, products(case), size, expected)
    bound += error_bound("float64", products(case), size, expected)
    error = np.abs(result - expected)
    assert np.all(error <= bound), f"worst error {np.max(error / bound):.2f} of the bound"


@ALL_DTYPES
@INDEX_BITS
def test_gather_on_host(host: HostExecutor, dtype: str, bits: int) -> None:
    for case in EDGES:

        def run(problem: Problem, arrays: Arrays) -> NDArray[Any]:
            plan = plan_gather(problem, KERNEL_DTYPES[dtype], False, bits)
            return run_on_host(host, plan, problem, arrays)

        check(case, dtype, True, run)
        check(case, dtype, False, run)


@pytest.mark.cuda
@ALL_DTYPES
@INDEX_BITS
@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_gather_on_device(host: HostExecutor, dtype: str, bits: int, case: Case) -> None:
    def run(problem: Problem, arrays: Arrays) -> NDArray[Any]:
        plan = plan_gather(problem, KERNEL_DTYPES[dtype], False, bits)
        y = run_on_device(plan, problem, arrays)
        assert y.tobytes() == run_on_host(host, plan, problem, arrays).tobytes()
        return y

    check(case, dtype, True, run)
    check(case, dtype, False, run)
