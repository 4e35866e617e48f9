"""The tensor-core kernels: every math, tile and index width on every edge, non-finite values.

Exact on integers, bounded on real numbers, as in test_kernels.py. The host run multiplies as the
simulated device does, so there both must give the same bits; real tensor cores may round the sum of
one instruction otherwise.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cupy_convt3d._choice import HOPPER
from cupy_convt3d._device import H100, device_of
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._plan_subpixel import fit_subpixel, plan_subpixel
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import MATHS, Math
from tests.executors import run_on_device, run_on_host
from tests.host.executor import HostExecutor
from tests.problems import (
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
    numpy_dtype,
)
from tests.reference import tensor_core_bound
from tests.tensor_core import dtype_of, has_wgmma, kernels_for, plan_tensor_core

Run = Callable[[Problem, Arrays], NDArray[Any]]

ALL_MATHS = pytest.mark.parametrize("math", MATHS.values(), ids=lambda math: math.name)
INDEX_BITS = pytest.mark.parametrize("bits", [32, 64])

#: Products, those with padding included, that the host emulates in a second, and that a simulated
#: device takes seconds for.
SMALL = 10**6
LARGE = 10**8

#: On the device all of them; on the host those that are small.
REPORTED = [case_of(entry) for entry in load_cases() if is_small(entry) and entry["x"][0] > 0]


def products(case: Case) -> int:
    return int(np.prod(case.problem().y_shape)) * case.depth


#: Edges of the tiles: rows longer than a tile, of one element, inputs between two taps that do not
#: fit a tile, more taps than rows of a matrix, channels that fill no k step or no vector.
TILE_EDGES = [
    Case("width-513", (1, 3, 2, 2, 513), (3, 5, 2, 2, 3), True),
    Case("width-513-stride-2", (1, 4, 1, 2, 513), (4, 9, 1, 3, 4), True, (1, 1, 2), (0, 1, 1)),
    Case("width-1", (2, 5, 3, 9, 1), (5, 17, 2, 3, 3), True, 2, 1),
    Case(
        "taps-far-apart", (1, 2, 1, 2, 700), (2, 3, 1, 2, 3), False, 1, (0, 0, 9), 0, 1, (1, 1, 300)
    ),
    Case("taps-apart-and-strided", (1, 2, 1, 1, 400), (2, 3, 1, 1, 5), False, 3, 0, 0, 1, 100),
    Case("rows-apart", (1, 2, 9, 40, 8), (2, 8, 3, 3, 1), False, 1, 0, 0, 1, (4, 13, 1)),
    Case("many-taps-many-channels", (1, 17, 1, 3, 12), (17, 20, 1, 2, 21), True),
    Case("nine-channels", (1, 9, 3, 4, 16), (9, 9, 3, 3, 3), True, 2, 1, 1),
    Case("thirty-three-channels", (1, 33, 2, 5, 24), (33, 33, 2, 3, 3), False, (1, 2, 2)),
    Case("tall", (1, 4, 5, 37, 8), (4, 8, 3, 5, 3), True, (2, 1, 1), (1, 2, 1)),
    Case("one-channel-out", (1, 16, 3, 6, 40), (16, 1, 3, 3, 3), True, 1, 1),
    Case("up-222", (2, 20, 3, 6, 8), (20, 11, 2, 2, 2), True, 2),
    Case("up-222-odd-rows", (1, 33, 5, 7, 13), (33, 40, 2, 2, 2), True, 2),
    Case("up-122", (1, 18, 3, 5, 16), (18, 9, 1, 2, 2), False, (1, 2, 2)),
    Case("up-211-groups", (2, 8, 3, 4, 5), (8, 6, 2, 1, 1), True, (2, 1, 1), 0, 0, 4),
    Case("up-333", (1, 4, 3, 4, 5), (4, 9, 3, 3, 3), True, 3),
]
CASES = [*EDGES, *TILE_EDGES, *REPORTED]


def wide(y: NDArray[Any]) -> NDArray[Any]:
    return y.astype(np.float64)


def check_integers(case: Case, math: Math, run: Run) -> None:
    dtype = dtype_of(math).name
    arrays = integer_data(case, dtype)
    expected = exact_result(case, arrays).reshape(case.problem().y_shape)
    # Tensor cores keep float32 sums of integers exact up to 2**24.
    assert np.abs(magnitude(case, arrays)).max() <= EXACT_LIMIT[dtype], "data beyond exactness"
    np.testing.assert_array_equal(wide(run(case.problem(), arrays)), expected)


def check_normal(case: Case, math: Math, run: Run) -> None:
    dtype = dtype_of(math).name
    arrays = normal_data(case, dtype)
    problem = case.problem()
    expected = exact_result(case, arrays).reshape(problem.y_shape)
    size = magnitude(case, arrays).real.reshape(problem.y_shape)
    bound = tensor_core_bound(math.name, dtype, case.depth, size, expected)
    # The float64 reference has rounding errors of its own.
    bound += tensor_core_bound("float64", "float64", case.depth, size, expected)
    error = np.abs(wide(run(problem, arrays)) - expected)
    assert np.all(error <= bound), f"worst error {np.max(error / bound):.2f} of the bound"


def plans(case: Case, math: Math, bits: int, turn: int, wgmma: bool = True) -> list[Plan]:
    """Return a plan of each kernel that can run a case, with ``wgmma`` in both of its forms."""
    problem = case.problem()
    found = [
        plan_tensor_core(kernel, problem, math, case.bias, bits, turn, True)
        for kernel in kernels_for(problem)
    ]
    if wgmma and has_wgmma(math) and bits == 32:
        found += [
            plan_tensor_core(
                kernel,
                problem,
                math,
                case.bias,
                bits,
                turn,
                True,
                shared_bytes=H100.shared_bytes,
                wgmma=True,
            )
            for kernel in kernels_for(problem)
        ]
    return found


@ALL_MATHS
def test_edges_on_host(host: HostExecutor, math: Math) -> None:
    for turn, case in enumerate([*EDGES, *TILE_EDGES]):
        for plan in plans(case, math, 32, turn):

            def run(problem: Problem, arrays: Arrays, plan: Plan = plan) -> NDArray[Any]:
                return run_on_host(host, plan, problem, arrays)

            check_integers(case, math, run)
            check_normal(case, math, run)


@ALL_MATHS
def test_64_bit_indices_on_host(host: HostExecutor, math: Math) -> None:
    """The code is the same but for the width: every third case, each math another third."""
    cases = [*EDGES, *TILE_EDGES]
    for turn in range(math.number % 3, len(cases), 3):
        case = cases[turn]
        for plan in plans(case, math, 64, turn):
            check_integers(case, math, lambda p, a, plan=plan: run_on_host(host, plan, p, a))


def test_reported_cases_on_host(host: HostExecutor) -> None:
    for turn, case in enumerate(REPORTED):
        if products(case) > SMALL:
            continue
        for plan in plans(case, MATHS["tf32x3"], 32, turn):
            check_integers(
                case, MATHS["tf32x3"], lambda p, a, plan=plan: run_on_host(host, plan, p, a)
            )


@ALL_MATHS
@settings(deadline=None, max_examples=30, derandomize=True)
@given(case=drawn_cases(), turn=st.integers(0, 71))
def test_any_problem_on_host(host: HostExecutor, math: Math, case: Case, turn: int) -> None:
    for plan in plans(case, math, 32, turn):
        check_integers(case, math, lambda p, a, plan=plan: run_on_host(host, plan, p, a))


@pytest.mark.parametrize("order", ["reverse", "shuffle"])
def test_the_order_of_blocks_and_threads_does_not_show(host: HostExecutor, order: Any) -> None:
    other = HostExecutor(order=order, seed=5)
    for turn, case in enumerate([*EDGES, *TILE_EDGES]):
        for plan in plans(case, MATHS["tf32x3"], 32, turn):
            arrays = normal_data(case, "float32")
            y = run_on_host(other, plan, case.problem(), arrays)
            assert y.tobytes() == run_on_host(host, plan, case.problem(), arrays).tobytes()


def test_many_phases_on_host(host: HostExecutor) -> None:
    """More phases than one warp has m tiles, of which some have no tap."""
    cases = [
        Case("six", (2, 5, 3, 4, 9), (5, 9, 4, 3, 5), True, (3, 2, 2), 1, (1, 0, 1)),
        Case("eight", (1, 3, 2, 3, 20), (3, 2, 1, 2, 3), False, (2, 4, 2)),
    ]
    for case, name in itertools.product(cases, ("bfloat16", "bf16x3")):
        math = MATHS[name]
        problem, dtype = case.problem(), dtype_of(math)
        config = fit_subpixel(problem, dtype, math, (4, 4), (2, 2), 99 * 1024)
        assert config is not None
        plan = plan_subpixel(problem, dtype, case.bias, config)
        check_integers(case, math, lambda p, a, plan=plan: run_on_host(host, plan, p, a))


def test_the_number_of_multiprocessors_does_not_show(host: HostExecutor) -> None:
    """It only says how many tiles a block of the sub-pixel kernel computes."""
    case = Case("several-tiles", (3, 9, 5, 6, 40), (9, 8, 3, 3, 3), True, 2, 1, 1)
    problem, math = case.problem(), MATHS["bf16x3"]
    dtype = dtype_of(math)
    arrays = normal_data(case, dtype.name)
    config = fit_subpixel(problem, dtype, math, (4, 4), (1, 2), 99 * 1024)
    assert config is not None
    results = set()
    for multiprocessors in (1, 4, 1000):
        plan = plan_subpixel(problem, dtype, case.bias, config, multiprocessors=multiprocessors)
        results.add(run_on_host(host, plan, problem, arrays).tobytes())
    assert len(results) == 1


#: Every case with every math and index width; those of most products or outputs meet these kernels
#: in test_conv_transpose3d.py.
ON_DEVICE = [
    pytest.param(math, bits, turn, id=f"{case.id}-{math.name}-{bits}")
    for turn, case in enumerate(CASES)
    for math in MATHS.values()
    for bits in (32, 64)
    if products(case) <= LARGE and np.prod(case.problem().y_shape) <= 10**5
]


@pytest.mark.cuda
@pytest.mark.parametrize(("math", "bits", "turn"), ON_DEVICE)
def test_edges_on_device(host: HostExecutor, math: Math, bits: int, turn: int) -> None:
    case = CASES[turn]
    for plan in plans(case, math, bits, turn, device_of(0).capability == HOPPER):

        def run(problem: Problem, arrays: Arrays, plan: Plan = plan) -> NDArray[Any]:
            y = run_on_device(plan, problem, arrays)
            if os.environ.get("SIMGPU") == "1" and products(case) <= SMALL:
                # Whatever the order of blocks and warps, and so on every seed.
                assert y.tobytes() == run_on_host(host, plan, problem, arrays).tobytes()
            else:
                assert y.tobytes() == run_on_device(plan, problem, arrays).tobytes()
            return y

        check_integers(case, math, run)
        check_normal(case, math, run)


#: Where padding and skipped rows are multiplied as zeros: borders on every axis, rows of several
#: planes in one warp, strides; and depth to space.
NON_FINITE = [
    Case("borders", (1, 3, 3, 4, 9), (3, 4, 3, 3, 3), True, 1, 1),
    Case("borders-strided", (2, 5, 2, 3, 7), (5, 3, 3, 3, 3), False, 2, 1, 1),
    Case("up", (1, 5, 2, 3, 6), (5, 9, 2, 2, 2), True, 2),
]


def with_non_finite(case: Case, dtype: str, seed: int) -> Arrays:
    """Return data with some infinities and NaNs in x and in the weights."""
    rng = np.random.default_rng(seed)
    x, weight, bias = normal_data(case, dtype, seed)
    special = np.array([np.inf, -np.inf, np.nan]).astype(numpy_dtype(dtype))
    for array in (x, weight):
        places = rng.choice(array.size, max(1, array.size // 25), replace=False)
        array.reshape(-1)[places] = special[rng.integers(0, special.size, places.size)]
    # A factor of exactly 1 has nothing for lo: inf * 0 would be NaN.
    weight.reshape(-1)[:: max(1, weight.size // 7)] = 1
    return x, weight, bias


@ALL_MATHS
def test_non_finite_values_are_where_they_are_without_tensor_cores(
    host: HostExecutor, math: Math
) -> None:
    dtype = dtype_of(math)
    for case, seed in itertools.product(NON_FINITE, range(3)):
        problem = case.problem()
        arrays = with_non_finite(case, dtype.name, seed)
        direct = wide(run_on_host(host, plan_gather(problem, dtype, case.bias), problem, arrays))
        assert 0 < np.isnan(direct).mean() < 1
        assert np.isinf(direct).any()
        for plan in plans(case, math, 32, 1 + seed):
            y = wide(run_on_host(host, plan, problem, arrays))
            np.testing.assert_array_equal(np.isnan(y), np.isnan(direct))
            infinite = np.isinf(direct)
            np.testing.assert_array_equal(np.isinf(y), infinite)
            np.testing.assert_array_equal(y[infinite], direct[infinite])


#: One pass of tf32 rounds the largest numbers to infinity, as documented.
@pytest.mark.parametrize(
    "math", [m for m in MATHS.values() if m.name != "tf32"], ids=lambda math: math.name
)
def test_the_largest_numbers_do_not_overflow(host: HostExecutor, math: Math) -> None:
    """Rounded to fewer bits, as a first part, they would be infinite."""
    dtype = dtype_of(math)
    largest = {"float16": 65504.0, "bfloat16": 3.3895314e38, "float64": 1.7976931348623157e308}
    for case in NON_FINITE:
        problem = case.problem()
        x, weight, bias = integer_data(case, dtype.name)
        x[...] = 0
        x[0, 1, -1, -1, 0] = largest.get(dtype.name, 3.4028235e38)
        weight[...] = weight / 4
        expected = exact_result(case, (x, weight, bias)).reshape(problem.y_shape)
        for plan in plans(case, math, 32, 3):
            y = wide(run_on_host(host, plan, problem, (x, weight, bias)))
            assert np.isfinite(y).all()
            # A quarter of a number is exact in every form; the bias is lost beside it.
            np.testing.assert_allclose(y, expected, rtol=2.0**-8)


@ALL_MATHS
def test_an_infinity_meets_no_padding(host: HostExecutor, math: Math) -> None:
    """All weights infinite: outputs with a product are infinite, none is NaN."""
    dtype = dtype_of(math)
    for case in NON_FINITE:
        problem = case.problem()
        x, weight, bias = integer_data(case, dtype.name)
        x[...] = 1
        weight[...] = np.inf
        for plan in plans(case, math, 32, 2):
            y = wide(run_on_host(host, plan, problem, (x, weight, bias)))
            np.testing.assert_array_equal(y, np.full_like(y, np.inf))


#: Problem 58 of KernelBench's level 1 with fewer samples and planes: as many products per output.
HEADLINE = Case("kb1-58", (1, 32, 3, 6, 64), (32, 16, 3, 5, 7))


@pytest.mark.parametrize(("precision", "limit"), [("tf32x3", 0.02), ("bf16x3", 0.15)])
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_kernelbench_gate(
    host: HostExecutor, precision: str, limit: float, distribution: str
) -> None:
    """The worst error, as a share of KernelBench's tolerance of 1e-4, absolute and relative."""
    rng = np.random.default_rng(1)
    shape = HEADLINE.problem()
    x = getattr(rng, "random" if distribution == "uniform" else "standard_normal")(shape.x_shape)
    # torch's default initialisation of ConvTranspose3d.
    scale = 1 / np.sqrt(16 * 3 * 5 * 7)
    weight = rng.uniform(-scale, scale, shape.weight_shape)
    arrays: Arrays = (x.astype(np.float32), weight.astype(np.float32), None)
    plan = plan_tensor_core(
        "implicit_gemm", shape, MATHS[precision], False, 32, 6, True, shared_bytes=227 * 1024
    )
    y = wide(run_on_host(host, plan, shape, arrays))
    expected = exact_result(HEADLINE, arrays)
    share = np.abs(y - expected) / (1e-4 + 1e-4 * np.abs(expected))
    assert share.max() <= limit


def test_split_products_are_as_accurate_as_they_say(host: HostExecutor) -> None:
    """One product of two full significands: the error left is that of the math, not of the sum."""
    case = Case("one-product", (1, 1, 1, 1, 512), (1, 1, 1, 1, 1))
    problem = case.problem()
    rng = np.random.default_rng(0)
    x = (1 + rng.random(problem.x_shape)).astype(np.float32)
    weight = np.full(problem.weight_shape, 1.9999999, dtype=np.float32)
    exact = x.astype(np.float64) * float(weight.item())
    for name, bits in (("tf32", 11), ("bf16x3", 16), ("tf32x3", 22)):
        plan = plan_tensor_core("implicit_gemm", problem, MATHS[name], False, 32, 0, True)
        y = wide(run_on_host(host, plan, problem, (x, weight, None)))
        error = np.max(np.abs(y / exact - 1))
        assert error <= (4.5 * 2.0**-bits if bits < 22 else 5 * 2.0**-23), name
        assert error >= 2.0**-bits / 64, name


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_math_belongs_to_a_dtype(name: str) -> None:
    maths = [math for math in MATHS.values() if dtype_of(math).name == name]
    assert len(maths) == {"float32": 3, "complex64": 0, "complex128": 0}.get(name, 1)
