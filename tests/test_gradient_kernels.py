"""The kernels of the gradients on every edge: exact on integers, bounded on real numbers.

As in test_kernels.py the host run compiles the kernels as C++; on a CUDA device the same plans run
there and must give the host's bits, whatever the order of blocks and warps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cupy_convt3d._dtypes import DTYPES as KERNEL_DTYPES
from cupy_convt3d._input_gradient import input_gradient
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_grad_weight import (
    WORKSPACE_BYTES,
    fit_grad_weight,
    plan_grad_weight,
)
from cupy_convt3d._problem import Problem, make_problem
from cupy_convt3d._tensor_core import MATHS
from tests.executors import run_on_device, run_on_host
from tests.gradient_variants import GradientVariant, gradient_variants
from tests.gradients import (
    Operands,
    exact_gradients,
    gradient_depths,
    gradient_magnitudes,
    integer_operands,
    normal_operands,
)
from tests.host.executor import HostExecutor
from tests.problems import EDGES, EXACT_LIMIT, Case
from tests.reference import error_bound, gradient_reference, tensor_core_bound
from tests.tensor_core import SHARED_BYTES

Array = NDArray[Any]


#: Edges whose taps or strides along W fill shared memory with what a few positions meet.
NO_TILE_FITS = ("wide-kernel", "dilation-divides-stride", "gcd-above-1")

VARIANTS = list(gradient_variants(few=True))
ALL_VARIANTS = pytest.mark.parametrize("variant", VARIANTS, ids=str)

Run = Callable[[Plan, Problem, Operands], Array]


def host_run(host: HostExecutor, variant: GradientVariant) -> Run:
    def run(plan: Plan, problem: Problem, operands: Operands) -> Array:
        x, weight, grad_output = operands
        if variant.gradient == 0:
            return run_on_host(host, plan, input_gradient(problem), (grad_output, weight, None))
        result = np.full(weight.shape, np.nan, weight.dtype)
        host.run(plan, {"x": x, "grad_output": grad_output, "grad_weight": result})
        return result

    return run


def device_run(variant: GradientVariant) -> Run:
    def run(plan: Plan, problem: Problem, operands: Operands) -> Array:
        import cupy

        from cupy_convt3d._launch import BoundPlan

        x, weight, grad_output = operands
        if variant.gradient == 0:
            return run_on_device(plan, input_gradient(problem), (grad_output, weight, None))
        result = cupy.full(weight.shape, np.nan, weight.dtype)
        arrays = {
            "x": cupy.asarray(x),
            "grad_output": cupy.asarray(grad_output),
            "grad_weight": result,
            "workspace": cupy.full(plan.workspace_bytes, 255, dtype=cupy.uint8),
        }
        BoundPlan(plan, cupy.cuda.runtime.getDevice()).run(arrays)
        cupy.cuda.runtime.deviceSynchronize()
        assert arrays["x"].get().tobytes() == x.tobytes()
        assert arrays["grad_output"].get().tobytes() == grad_output.tobytes()
        return np.asarray(result.get())

    return run


def batched(case: Case, operands: Operands) -> Operands:
    problem = case.problem()
    x, weight, grad_output = operands
    return x.reshape(problem.x_shape), weight, grad_output.reshape(problem.y_shape)


def check(variant: GradientVariant, case: Case, run: Run) -> None:
    plan = variant.plan(case.problem())
    if plan is None:
        # The choice takes the other kernel there.
        assert variant.math is not None
        assert case.id in NO_TILE_FITS
        return
    which = variant.gradient
    operands = batched(case, integer_operands(case, variant.dtype))
    expected = exact_gradients(case, operands)[which]
    assert np.abs(expected).max() <= EXACT_LIMIT[variant.dtype]
    result = run(plan, case.problem(), operands)
    np.testing.assert_array_equal(result.astype(expected.dtype), expected)

    operands = batched(case, normal_operands(case, variant.dtype))
    expected = exact_gradients(case, operands)[which]
    size = gradient_magnitudes(case, operands)[which]
    depth = gradient_depths(case)[which]
    if variant.math is None:
        bound = error_bound(variant.dtype, depth, size, expected)
    else:
        bound = tensor_core_bound(variant.math, variant.dtype, depth, size, expected)
    bound = bound + error_bound("float64", depth, size, expected)
    error = np.abs(run(plan, case.problem(), operands).astype(expected.dtype) - expected)
    assert np.all(error <= bound), f"{case.id}: {np.max(error / bound):.2f} of the bound"


@ALL_VARIANTS
def test_edges_on_host(host: HostExecutor, variant: GradientVariant) -> None:
    for case in EDGES:
        check(variant, case, host_run(host, variant))


@pytest.mark.cuda
@ALL_VARIANTS
def test_edges_on_device(host: HostExecutor, variant: GradientVariant) -> None:
    on_host, on_device = host_run(host, variant), device_run(variant)

    def run(plan: Plan, problem: Problem, operands: Operands) -> Array:
        result = on_device(plan, problem, operands)
        assert result.tobytes() == on_host(plan, problem, operands).tobytes()
        return result

    for case in EDGES:
        check(variant, case, run)


#: Inputs, weights and outputs that meet at borders, so that zeros stand for some of them.
BORDERS = Case("borders", (2, 3, 4, 5, 9), (3, 4, 3, 3, 3), stride=(1, 2, 1), padding=1)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.bits == 32], ids=str)
def test_infinities_and_nans(host: HostExecutor, variant: GradientVariant) -> None:
    """Where they are without zeros in the place of what does not exist."""
    problem = BORDERS.problem()
    plan = variant.plan(problem)
    assert plan is not None
    x, weight, grad_output = normal_operands(BORDERS, variant.dtype)
    x[0, 0, 0, 0, 0] = np.inf
    x[1, 1, 3, 4, 8] = np.nan
    weight[1, 2, 0, 1, 2] = -np.inf
    grad_output[0, 3, 1, 2, 3] = np.inf
    operands = x, weight, grad_output
    with np.errstate(invalid="ignore"):
        expected = gradient_reference(
            *operands, problem.stride, problem.padding, problem.groups, problem.dilation
        )[variant.gradient]
    result = host_run(host, variant)(plan, problem, operands).astype(expected.dtype)
    if expected.dtype.kind == "c":
        # Which part of a product is NaN depends on how its four real products are added.
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(expected))
        return
    special = ~np.isfinite(expected)
    assert special.any()
    np.testing.assert_array_equal(np.isfinite(result), ~special)
    np.testing.assert_array_equal(result[special], expected[special])


def test_splits_follow_from_the_problem_and_stay_bounded() -> None:
    float32 = KERNEL_DTYPES["float32"]
    for x, weight in (
        ((16, 32, 16, 32, 64), (32, 16, 3, 5, 7)),
        ((2, 320, 8, 8, 8), (320, 320, 3, 3, 3)),
        ((64, 1, 4, 4, 4), (1, 1, 1, 1, 1)),
    ):
        problem = make_problem(x, weight)
        config = fit_grad_weight(problem, float32, MATHS["tf32x3"], (2, 4), SHARED_BYTES)
        assert config is not None
        plan = plan_grad_weight(problem, float32, config)
        one_split = 4 * config.shares * int(np.prod(weight))
        assert plan.workspace_bytes == config.splits * one_split
        assert plan.workspace_bytes <= max(WORKSPACE_BYTES, one_split)
        assert plan.deterministic
