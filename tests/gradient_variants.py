"""The kernels of the gradients with the tiles that plans can ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from cupy_convt3d._choice import TILES_64
from cupy_convt3d._choice_gradient import GRAD_INPUT_TILES, GRAD_WEIGHT_TILES
from cupy_convt3d._dtypes import DTYPES, KernelDtype
from cupy_convt3d._input_gradient import input_gradient
from cupy_convt3d._plan import Launch, Plan
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._plan_grad_input import fit_grad_input, plan_grad_input
from cupy_convt3d._plan_grad_weight import (
    GradWeightConfig,
    fit_grad_weight,
    fit_grad_weight_direct,
    plan_grad_weight,
)
from cupy_convt3d._problem import Problem, make_problem
from cupy_convt3d._tensor_core import MATHS
from tests.tensor_core import SHARED_BYTES, dtype_of


@dataclass(frozen=True)
class GradientVariant:
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
        dtype = DTYPES[self.dtype]
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


def gradient_variants(few: bool) -> Iterator[GradientVariant]:
    """Yield the variants that the choice can pick, or the ``few`` that the tests run.

    These have 64-bit indices with the arithmetic that is most used and, without tensor cores, with
    the widest: how an index is computed follows from neither.
    """
    for gradient in (0, 1):
        for dtype in DTYPES:
            yield GradientVariant(gradient, dtype, None, None, 32)
            if not few or dtype in ("float32", "complex128"):
                yield GradientVariant(gradient, dtype, None, None, 64)
    for math in MATHS.values():
        dtype = dtype_of(math)
        for gradient, tiles in ((0, GRAD_INPUT_TILES), (1, GRAD_WEIGHT_TILES)):
            narrow = tiles[dtype.accumulator_bytes]
            for tile in (narrow[0], narrow[-1]) if few else narrow:
                yield GradientVariant(gradient, dtype.name, math.name, tile, 32)
            if not few or math.name == "tf32x3":
                for tile in TILES_64:
                    yield GradientVariant(gradient, dtype.name, math.name, tile, 64)


def gradient_launches(few: bool) -> Iterator[Launch]:
    """Yield the launches of the variants, of the direct kernel with each of its tiles."""
    for variant in gradient_variants(few):
        for channels in ((16, 16), (1, 1)):
            problem = make_problem((1, channels[0], 4, 8, 64), (*channels, 3, 3, 3))
            plan = variant.plan(problem)
            assert plan is not None
            yield from (*plan.packing, *plan.launches)
