"""Every tile that the choice has, of every kernel, on a device: compiles for many minutes.

test_kernels.py and test_tensor_core.py try a few tiles of each kernel on many problems, here all of
them meet a few.
"""

from __future__ import annotations

import dataclasses

import pytest
from numpy.typing import NDArray

from cupy_convt3d._device import H100
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_depth_to_space import fit_depth_to_space, plan_depth_to_space
from cupy_convt3d._plan_gather import TILES, GatherConfig, plan_gather
from cupy_convt3d._plan_implicit_gemm import fit_config, plan_implicit_gemm
from cupy_convt3d._plan_subpixel import fit_subpixel, plan_subpixel
from tests import test_kernels
from tests.executors import run_on_device
from tests.problems import Case
from tests.tensor_core import (
    SHARED_BYTES,
    WGMMA_WARPS,
    Variant,
    all_variants,
    dtype_of,
    with_m_tiles,
)
from tests.test_tensor_core import check_integers, check_normal

pytestmark = pytest.mark.cuda

WARPS = ((1, 4), (2, 2), (1, 8))


def name(variant: Variant) -> str:
    rows, columns = variant.tile
    return (
        f"{variant.kernel}-{variant.math.name}-{variant.bits}-{rows}x{columns}"
        f"-{variant.width}-{variant.channels}{'-wgmma' * variant.wgmma}"
    )


def cases(variant: Variant) -> list[Case]:
    """Return problems that lead to a variant: rows that fill tiles and rows that do not."""
    if variant.kernel == "depth_to_space":
        weight = (18, 21, 2, 1, variant.width)
        stride = (2, 1, variant.width)
        return [Case("up", (2, 18, 3, 5, width), weight, True, stride) for width in (16, 7)]
    weight = (18, variant.channels, 2, 3, 3)
    if variant.kernel == "subpixel":
        # Two m tiles are two phases, or two channel tiles of one phase.
        stride = (1, 2, 2) if variant.tile[0] == 2 else 2
        return [
            Case("even", (1, 18, 3, 5, 24), weight, True, stride, 1, (0, 1, 1)),
            Case("odd", (2, 7, 2, 4, 11), (7, *weight[1:]), False, (1, 1, 2), 1),
        ]
    return [
        Case("same", (1, 18, 3, 5, 24), weight, True, 1, 1),
        Case("strided", (2, 18, 2, 4, 11), weight, False, 2, 1, 1),
    ]


VARIANTS = [
    pytest.param(variant, id=name(variant), marks=[pytest.mark.hopper] * variant.wgmma)
    for variant in all_variants(few=False)
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_tensor_core_tiles(variant: Variant) -> None:
    dtype = dtype_of(variant.math)
    all_warps = WGMMA_WARPS if variant.wgmma else WARPS
    shared_bytes = H100.shared_bytes if variant.wgmma else SHARED_BYTES
    for case, warps in zip(cases(variant), all_warps, strict=False):
        problem = case.problem()
        arguments = (problem, dtype, variant.math, variant.tile, warps, shared_bytes)
        plan: Plan
        if variant.kernel == "depth_to_space":
            config = fit_depth_to_space(*arguments, wgmma=variant.wgmma)[-1]
            if variant.wgmma:
                config = with_m_tiles(config, variant.tile[0])
            plan = plan_depth_to_space(problem, dtype, case.bias, config, variant.bits)
        elif variant.kernel == "subpixel":
            subpixel = fit_subpixel(*arguments)
            assert subpixel is not None
            plan = plan_subpixel(
                problem, dtype, case.bias, subpixel, variant.bits, multiprocessors=2
            )
        else:
            gemm = fit_config(*arguments, wgmma=variant.wgmma)
            assert gemm is not None
            if variant.wgmma:
                # The problem may need fewer tiles; all of the variant's are multiplied.
                gemm = dataclasses.replace(gemm, warp_m_tiles=variant.tile[0])
            plan = plan_implicit_gemm(problem, dtype, case.bias, gemm, variant.bits)

        def run(problem: object, arrays: object, plan: Plan = plan) -> NDArray[object]:
            return run_on_device(plan, problem, arrays)  # type: ignore[arg-type]

        check_integers(case, variant.math, run)  # type: ignore[arg-type]
        check_normal(case, variant.math, run)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [32, 64])
def test_gather_tiles(dtype: str, bits: int) -> None:
    case = Case("tiles", (2, 5, 3, 6, 9), (5, 11, 3, 2, 3), True, (1, 2, 2), 1)
    for tile in TILES[DTYPES[dtype].accumulator_bytes]:
        plan = plan_gather(
            case.problem(), DTYPES[dtype], case.bias, bits, config=GatherConfig(*tile)
        )
        test_kernels.check_integers(case, dtype, lambda p, a, plan=plan: run_on_device(plan, p, a))
