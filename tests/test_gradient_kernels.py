"""The kernels of the gradients on every edge: exact on integers, bounded on real numbers.

As in test_kernels.py the host run compiles the kernels as C++; on a CUDA device the same plans run
there and must give the host's bits, whatever the order of blocks and warps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cupy_convt3d._choice_gradient import GRAD_INPUT_TILES, GRAD_WEIGHT_TILES
from cupy_convt3d._dtypes import DTYPES as KERNEL_DTYPES
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._input_gradient import input_gradient
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._plan_grad_input import fit_grad_input, plan_grad_input
from cupy_convt3d._plan_grad_weight import (
    WORKSPACE_BYTES,
    GradWeightConfig,
    fit_grad_weight,
    fit_grad_weight_direct,
    plan_grad_weight,
)
from cupy_convt3d._problem import Problem, make_problem
from cupy_convt3d._tensor_core import MATHS
from tests.executors import run_on_device, run_on_host
from tests.gradients import (
    Operands,
    exact_gradients,
    gradient_depths,
    gradient_magnitudes,
    integer_operands,
    normal_operands,
)
from tests.host.executor import HostExecutor
from tests.problems import DTYPES, EDGES, EXACT_LIMIT, Case
from tests.reference import error_bound, gradient_reference, tensor_core_bound
from tests.tensor_core import SHARED_BYTES, dtype_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Variant:
    """One kernel of a gradient: of the tensor-core kernels one math and one tile."""

    gradient: int  # 0: of the input, 1: of the weights
    dtype: str
    math: str | None
    tile: tuple[int, int] | None
    bits: int

    def __str__(self) -> str:
        name = ("grad_input", "grad_weight")[self.gradient]
        tile = "x".join(map(str, self.tile)) if self.tile else "plain"
        return f"{name}-{self.math or self.dtype}-{tile}-{self.bits}"

    def plan(self, problem: Problem) -> Plan | None:
        """Return the plan of the variant, or None where no tile fits."""
        dtype = KERNEL_DTYPES[self.dtype]
        if self.gradient == 0:
            return self._plan_grad_input(input_gradient(problem), dtype)
        config: GradWeightConfig | None
        if self.math is None:
            config = fit_grad_weight_direct(problem, dtype, SHARED_BYTES)
        else:
            assert self.tile is not None
            config = fit_grad_weight(problem, dtype, MATHS[self.math], self.tile, SHARED_BYTES)
        if config is None:
            return None
        # Few edges have stages enough for splits of their own.
        config = dataclasses.replace(config, splits=3)
        return plan_grad_weight(problem, dtype, config, self.bits)

    def _plan_grad_input(self, problem: Problem, dtype: KernelDtype) -> Plan | None:
        if self.math is None:
            return plan_gather(problem, dtype, False, self.bits)
        assert self.tile is not None
        config = fit_grad_input(problem, dtype, MATHS[self.math], self.tile, (1, 2), SHARED_BYTES)
        return None if config is None else plan_grad_input(problem, dtype, config, self.bits)


def variants() -> list[Variant]:
    found = [
        Variant(gradient, dtype, None, None, bits)
        for gradient in (0, 1)
        for dtype in DTYPES
        for bits in (32, 64)
    ]
    for math in MATHS.values():
        dtype = dtype_of(math)
        for gradient, tiles in ((0, GRAD_INPUT_TILES), (1, GRAD_WEIGHT_TILES)):
            first, *_, last = tiles[dtype.accumulator_bytes]
            for tile, bits in ((first, 32), (last, 32), (first, 64)):
                found.append(Variant(gradient, dtype.name, math.name, tile, bits))
    return found


#: Edges whose taps or strides along W fill shared memory with what a few positions meet.
NO_TILE_FITS = ("wide-kernel", "dilation-divides-stride", "gcd-above-1")

ALL_VARIANTS = pytest.mark.parametrize("variant", variants(), ids=str)

Run = Callable[[Plan, Problem, Operands], Array]


def host_run(host: HostExecutor, variant: Variant) -> Run:
    def run(plan: Plan, problem: Problem, operands: Operands) -> Array:
        x, weight, grad_output = operands
        if variant.gradient == 0:
            return run_on_host(host, plan, input_gradient(problem), (grad_output, weight, None))
        result = np.full(weight.shape, np.nan, weight.dtype)
        host.run(plan, {"x": x, "grad_output": grad_output, "grad_weight": result})
        return result

    return run


def device_run(variant: Variant) -> Run:
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


def check(variant: Variant, case: Case, run: Run) -> None:
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
def test_edges_on_host(host: HostExecutor, variant: Variant) -> None:
    for case in EDGES:
        check(variant, case, host_run(host, variant))


@pytest.mark.cuda
@ALL_VARIANTS
def test_edges_on_device(host: HostExecutor, variant: Variant) -> None:
    on_host, on_device = host_run(host, variant), device_run(variant)

    def run(plan: Plan, problem: Problem, operands: Operands) -> Array:
        result = on_device(plan, problem, operands)
        assert result.tobytes() == on_host(plan, problem, operands).tobytes()
        return result

    for case in EDGES:
        check(variant, case, run)


#: Inputs, weights and outputs that meet at borders, so that zeros stand for some of them.
BORDERS = Case("borders", (2, 3, 4, 5, 9), (3, 4, 3, 3, 3), stride=(1, 2, 1), padding=1)


@pytest.mark.parametrize("variant", [v for v in variants() if v.bits == 32], ids=str)
def test_infinities_and_nans(host: HostExecutor, variant: Variant) -> None:
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
