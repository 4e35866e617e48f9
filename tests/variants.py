"""The variants of the kernels that plans can ask for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from cupy_convt3d._activation import ACTIVATIONS, NO_ACTIVATION, Activation, activation_of
from cupy_convt3d._device import H100
from cupy_convt3d._dtypes import DTYPES, KernelDtype
from cupy_convt3d._plan import Launch
from cupy_convt3d._plan_depth_to_space import fit_depth_to_space, plan_depth_to_space
from cupy_convt3d._plan_gather import TILES, GatherConfig, plan_gather
from cupy_convt3d._plan_implicit_gemm import fit_config, plan_implicit_gemm
from cupy_convt3d._plan_scatter import plan_scatter
from cupy_convt3d._plan_subpixel import fit_subpixel, plan_subpixel
from cupy_convt3d._problem import make_problem
from tests.gradient_variants import gradient_launches
from tests.tensor_core import SHARED_BYTES, Variant, all_variants, dtype_of

#: Output channels per group that lead to each register tile of the kernels.
CHANNELS = (1, 2, 4, 8, 16)


def launches(few: bool = False) -> list[Launch]:
    """Return one launch of each variant, that of most shared memory.

    ``few`` leaves out tiles: of the tensor-core kernels those that the host run does not use, of
    the gather those that are not a problem's first choice.
    """
    best: dict[tuple[str, tuple[str, ...]], Launch] = {}
    for channels in CHANNELS:
        # Boxes of this input are cut, so that the scatter fills, adds with atomics and converts. In
        # the second they own their outputs.
        meeting = make_problem((1, 2, 40, 40, 40), (2, channels, 3, 5, 5))
        apart = make_problem((1, 2, 40, 40, 40), (2, channels, 2, 2, 2), stride=2)
        for problem in (meeting, apart):
            for dtype in DTYPES.values():
                for bits, planner in itertools.product((32, 64), (plan_gather, plan_scatter)):
                    for activation in _activations_of(dtype, bits, channels):
                        plan = planner(problem, dtype, True, bits, activation=activation)
                        for launch in plan.launches:
                            key = (launch.kernel, launch.options)
                            if key not in best or launch.shared_bytes > best[key].shared_bytes:
                                best[key] = launch
    for launch in [] if few else _gather_tiles():
        best.setdefault((launch.kernel, launch.options), launch)
    for launch in gradient_launches(few):
        best.setdefault((launch.kernel, launch.options), launch)
    for variant in all_variants(few):
        for launch in _tensor_core_launches(variant):
            best.setdefault((launch.kernel, launch.options), launch)
    return list(best.values())


def _tensor_core_launches(variant: Variant) -> Iterator[Launch]:
    dtype = dtype_of(variant.math)
    up = variant.kernel == "depth_to_space"
    problem = make_problem(
        (1, 40, 8, 8, 64),
        (40, variant.channels, 2, 2, variant.width),
        stride=(2, 2, variant.width) if up else (1, 1, 2) if variant.kernel == "subpixel" else 1,
    )
    wgmma = variant.wgmma
    # The large blocks of wgmma are for devices with as much shared memory.
    shared_bytes = H100.shared_bytes if wgmma else SHARED_BYTES
    arguments = (problem, dtype, variant.math, variant.tile, (1, 4), shared_bytes)
    for activation in [NO_ACTIVATION, *_all_activations()]:
        # Of one tile of each kernel; the sub-pixel kernel has no smaller one.
        tile = (2, 4) if variant.kernel == "subpixel" else (1, 4)
        if activation != NO_ACTIVATION and (variant.math.name, variant.tile) != ("tf32x3", tile):
            continue
        if up:
            config = fit_depth_to_space(*arguments, wgmma=wgmma)[0]
            if wgmma:
                config = replace(config, warp_m_tiles=variant.tile[0], part_m_tiles=variant.tile[0])
            plan = plan_depth_to_space(
                problem, dtype, True, config, variant.bits, activation=activation
            )
        elif variant.kernel == "subpixel":
            subpixel = fit_subpixel(*arguments)
            assert subpixel is not None
            plan = plan_subpixel(
                problem, dtype, True, subpixel, variant.bits, activation=activation
            )
        else:
            gemm = fit_config(*arguments, wgmma=wgmma)
            assert gemm is not None
            if wgmma:
                gemm = replace(gemm, warp_m_tiles=variant.tile[0])
            plan = plan_implicit_gemm(
                problem, dtype, True, gemm, variant.bits, activation=activation
            )
        yield from (*plan.packing, *plan.launches)


def _gather_tiles() -> list[Launch]:
    """Return a launch of the gather for each of its tiles."""
    problem = make_problem((1, 2, 4, 4, 4), (2, 4, 3, 3, 3))
    return [
        launch
        for dtype in DTYPES.values()
        for tile in TILES[dtype.accumulator_bytes]
        for bits in (32, 64)
        for launch in plan_gather(problem, dtype, True, bits, config=GatherConfig(*tile)).launches
    ]


def _activations_of(dtype: KernelDtype, bits: int, channels: int) -> list[Activation]:
    """Return the activations to try: all where float32 has its widest tile, or none.

    They come after the sums, so the widest tile is where registers are short.
    """
    if (dtype.name, bits, channels) != ("float32", 32, CHANNELS[-1]):
        return [NO_ACTIVATION]
    return [NO_ACTIVATION, *_all_activations()]


def _all_activations() -> list[Activation]:
    return [activation_of(name, 0.25) for name in ACTIVATIONS]


def kernel_variants() -> list[tuple[str, tuple[str, ...]]]:
    """Return the kernels and options of the variants that the host run compiles."""
    return [(launch.kernel, launch.options) for launch in launches(few=True)]
