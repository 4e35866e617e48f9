"""Every kernel, dtype and index width on every edge: exact on integers, bounded on real numbers.

The host run compiles the kernels as C++; on a CUDA device the same plans run there, and
deterministic ones must give the host's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cupy_convt3d._dtypes import DTYPES as KERNEL_DTYPES
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_gather import TILES, GatherConfig, can_have_whole_rows, plan_gather
from cupy_convt3d._plan_scatter import plan_scatter
from cupy_convt3d._problem import Problem
from tests.executors import run_on_device, run_on_host
from tests.host.executor import HostExecutor
from tests.problems import (
    DTYPES,
    EDGES,
    EXACT_LIMIT,
    Arrays,
    Case,
    case_of,
    drawn_cases,
    exact_result,
    integer_data,
    is_small,
    load_cases,
    magnitude,
    normal_data,
)
from tests.reference import error_bound

Planner = Callable[[Problem, KernelDtype, bool, int | None], Plan]

KERNELS = pytest.mark.parametrize("planner", [plan_gather, plan_scatter], ids=["gather", "scatter"])
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES)
INDEX_BITS = pytest.mark.parametrize("bits", [32, 64])

#: Reported cases small enough for the host; the others are planned only (test_plans.py). An empty
#: batch never reaches a kernel (test_conv_transpose3d.py).
REPORTED = [case_of(entry) for entry in load_cases() if is_small(entry) and entry["x"][0] > 0]

#: The corner of the reported case that is too large for the host.
REPORTED.append(Case("k9s2-corner", (1, 4, 4, 4, 6), (4, 16, 9, 9, 9), stride=2))

#: Cut into boxes that meet, so that the scatter adds with atomics.
ATOMICS = Case("atomics", (1, 3, 9, 10, 30), (3, 5, 3, 3, 3), True, (1, 2, 1))


def wide(y: NDArray[Any]) -> NDArray[Any]:
    return y.astype(np.complex128 if y.dtype.kind == "c" else np.float64)


def check_integers(case: Case, dtype: str, run: Callable[[Problem, Arrays], NDArray[Any]]) -> None:
    arrays = integer_data(case, dtype)
    expected = exact_result(case, arrays).reshape(case.problem().y_shape)
    assert np.abs(magnitude(case, arrays)).max() <= EXACT_LIMIT[dtype], "data beyond exactness"
    y = run(case.problem(), arrays)
    np.testing.assert_array_equal(wide(y), expected)


def check_normal(case: Case, dtype: str, run: Callable[[Problem, Arrays], NDArray[Any]]) -> None:
    arrays = normal_data(case, dtype)
    problem = case.problem()
    expected = exact_result(case, arrays).reshape(problem.y_shape)
    size = magnitude(case, arrays).real.reshape(problem.y_shape)
    bound = error_bound(dtype, case.depth, size, expected)
    # The float64 reference has rounding errors of its own.
    bound += error_bound("float64", case.depth, size, expected)
    error = np.abs(wide(run(problem, arrays)) - expected)
    assert np.all(error <= bound), f"worst error {np.max(error / bound):.2f} of the bound"


@KERNELS
@ALL_DTYPES
@INDEX_BITS
def test_edges_on_host(host: HostExecutor, planner: Planner, dtype: str, bits: int) -> None:
    for case in EDGES:

        def run(problem: Problem, arrays: Arrays, case: Case = case) -> NDArray[Any]:
            plan = planner(problem, KERNEL_DTYPES[dtype], case.bias, bits)
            return run_on_host(host, plan, problem, arrays)

        check_integers(case, dtype, run)
        check_normal(case, dtype, run)


@KERNELS
@pytest.mark.parametrize("case", REPORTED, ids=lambda case: case.id)
def test_reported_cases_on_host(host: HostExecutor, planner: Planner, case: Case) -> None:
    def run(problem: Problem, arrays: Arrays) -> NDArray[Any]:
        plan = planner(problem, KERNEL_DTYPES["float32"], case.bias, None)
        return run_on_host(host, plan, problem, arrays)

    check_integers(case, "float32", run)


@KERNELS
@INDEX_BITS
@settings(deadline=None, max_examples=100, derandomize=True)
@given(case=drawn_cases(), dtype=st.sampled_from(["float32", "float64", "complex64", "float16"]))
def test_any_problem_on_host(
    host: HostExecutor, planner: Planner, bits: int, case: Case, dtype: str
) -> None:
    plan = planner(case.problem(), KERNEL_DTYPES[dtype], case.bias, bits)
    check_integers(case, dtype, lambda problem, arrays: run_on_host(host, plan, problem, arrays))


@KERNELS
@pytest.mark.parametrize("order", ["reverse", "shuffle"])
def test_the_order_of_blocks_and_threads_does_not_show(
    host: HostExecutor, planner: Planner, order: Literal["reverse", "shuffle"]
) -> None:
    other = HostExecutor(order=order, seed=5)
    for case in [*EDGES, ATOMICS]:
        plan = planner(case.problem(), KERNEL_DTYPES["float32"], case.bias, None)

        def run(problem: Problem, arrays: Arrays, plan: Plan = plan) -> NDArray[Any]:
            y = run_on_host(other, plan, problem, arrays)
            if plan.deterministic:
                assert y.tobytes() == run_on_host(host, plan, problem, arrays).tobytes()
            return y

        check_normal(case, "float32", run)


def gather_configs(problem: Problem, dtype: KernelDtype) -> list[GatherConfig]:
    whole = (False, True) if can_have_whole_rows(problem) else (False,)
    return [GatherConfig(*t, w) for t in TILES[dtype.accumulator_bytes] for w in whole]


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_bits_of_the_gather_follow_from_no_tile(host: HostExecutor, dtype: str) -> None:
    for case in EDGES:
        problem = case.problem()
        arrays = normal_data(case, dtype)
        bits = set()
        for config in gather_configs(problem, KERNEL_DTYPES[dtype]):
            plan = plan_gather(problem, KERNEL_DTYPES[dtype], case.bias, config=config)
            bits.add(run_on_host(host, plan, problem, arrays).tobytes())
        assert len(bits) == 1, case.id


def test_the_case_of_atomics_has_them() -> None:
    assert not plan_scatter(ATOMICS.problem(), KERNEL_DTYPES["float32"], True).deterministic


@pytest.mark.cuda
@KERNELS
@ALL_DTYPES
@INDEX_BITS
@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_edges_on_device(
    host: HostExecutor, planner: Planner, dtype: str, bits: int, case: Case
) -> None:
    plan = planner(case.problem(), KERNEL_DTYPES[dtype], case.bias, bits)

    def run(problem: Problem, arrays: Arrays) -> NDArray[Any]:
        y = run_on_device(plan, problem, arrays)
        if plan.deterministic:
            # Whatever the order of blocks and warps, and so on every seed of a simulated device.
            assert y.tobytes() == run_on_host(host, plan, problem, arrays).tobytes()
        return y

    check_integers(case, dtype, run)
    check_normal(case, dtype, run)


@pytest.mark.cuda
@KERNELS
@pytest.mark.parametrize("case", REPORTED, ids=lambda case: case.id)
def test_reported_cases_on_device(planner: Planner, case: Case) -> None:
    plan = planner(case.problem(), KERNEL_DTYPES["float32"], case.bias, None)
    check_integers(case, "float32", lambda problem, arrays: run_on_device(plan, problem, arrays))
