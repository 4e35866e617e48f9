"""Plans of the tensor-core kernels for tests: every math, every tile, on any problem."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._choice import (
    DEPTH_TO_SPACE_TILES,
    DEPTH_TO_SPACE_WGMMA_TILES,
    GEMM_TILES,
    SUBPIXEL_TILES,
    SUBPIXEL_TILES_64,
    TILES_64,
    WGMMA_TILES_OF,
)
from cupy_convt3d._dtypes import DTYPES, KernelDtype
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_depth_to_space import (
    WARPGROUP_M_TILES,
    DepthToSpaceConfig,
    fit_depth_to_space,
    is_depth_to_space,
    plan_depth_to_space,
)
from cupy_convt3d._plan_implicit_gemm import (
    fit_config,
    plan_implicit_gemm,
    shared_layout,
)
from cupy_convt3d._plan_subpixel import fit_subpixel, is_subpixel, plan_subpixel
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import MATHS, WGMMA_TILES, Math

#: The least that a supported device gives a block (sm_86, 89 and 120).
SHARED_BYTES = 99 * 1024

#: Warps of a block along m and n; small blocks, so that small problems have several.
WARPS = ((1, 4), (2, 2), (1, 2), (2, 1))
#: The same where warpgroups multiply.
WGMMA_WARPS = ((1, 4), (2, 4), (1, 8))

DTYPE_OF_MATH = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "tf32": "float32",
    "tf32x3": "float32",
    "bf16x3": "float32",
    "float64": "float64",
}


def dtype_of(math: Math) -> KernelDtype:
    return DTYPES[DTYPE_OF_MATH[math.name]]


def tiles_of(
    kernel: str, math: Math, bits: int, few: bool, wgmma: bool = False
) -> tuple[tuple[int, int], ...]:
    """Return the tiles of a warp that the choice has for a kernel.

    The host compiles for half a minute for each ten of them, so there each math has a ``few``, all
    maths together all of them.
    """
    if wgmma:
        tiles = (WGMMA_TILES_OF if kernel == "implicit_gemm" else DEPTH_TO_SPACE_WGMMA_TILES)[
            math.name
        ]
    elif kernel == "subpixel":
        by_bytes = SUBPIXEL_TILES_64 if bits == 64 else SUBPIXEL_TILES
        tiles = by_bytes[dtype_of(math).accumulator_bytes]
    elif bits == 64:
        tiles = TILES_64
    elif kernel == "implicit_gemm":
        tiles = GEMM_TILES[math.name]
    else:
        tiles = DEPTH_TO_SPACE_TILES[dtype_of(math).accumulator_bytes]
    step = min(3, len(tiles))
    return tiles[math.number % step :: step] if few else tiles


def plan_tensor_core(
    kernel: str,
    problem: Problem,
    math: Math,
    has_bias: bool,
    bits: int,
    turn: int,
    few: bool,
    activation: Activation = NO_ACTIVATION,
    shared_bytes: int = SHARED_BYTES,
    wgmma: bool = False,
) -> Plan:
    """Return a plan of one of the kernels, in one of its forms.

    ``turn`` takes turns among the tiles, the shapes of a block and the alignments of x, so that
    many problems together see all of them, or the ``few`` of the host.
    """
    dtype = dtype_of(math)
    tiles = tiles_of(kernel, math, bits, few, wgmma)
    all_warps = WGMMA_WARPS if wgmma else WARPS
    x_aligned = turn % 3 != 2
    keywords: dict[str, Any] = {"activation": activation, "x_aligned": x_aligned}
    # A tile of this warp shape may not fit the shared memory of the least device: the next then.
    for attempt in range(len(tiles) * len(all_warps)):
        tile = tiles[(turn + attempt) % len(tiles)]
        warps = all_warps[(turn // len(tiles) + attempt) % len(all_warps)]
        if kernel == "implicit_gemm":
            steps = 1 + turn % 2
            config = fit_config(
                problem, dtype, math, tile, warps, shared_bytes, 2 + turn % 3, steps, wgmma
            )
            if config is not None and wgmma and few:
                # Where a problem needs fewer tiles along m it gets all, if there is room for them:
                # fewer variants to compile.
                wide = replace(config, warp_m_tiles=tile[0], pass_rows=1)
                if shared_layout(problem, dtype, wide).total <= shared_bytes:
                    config = wide
            if config is not None:
                return plan_implicit_gemm(problem, dtype, has_bias, config, bits, **keywords)
        elif kernel == "subpixel":
            subpixel = fit_subpixel(problem, dtype, math, tile, warps, shared_bytes)
            if subpixel is not None:
                # Blocks with several tiles, and with one.
                keywords["multiprocessors"] = 1 if turn % 2 else 132
                return plan_subpixel(problem, dtype, has_bias, subpixel, bits, **keywords)
        else:
            configs = fit_depth_to_space(problem, dtype, math, tile, warps, shared_bytes, wgmma)
            if configs:
                choice = configs[turn % len(configs)]
                if wgmma and few:
                    choice = with_m_tiles(choice, tile[0])
                return plan_depth_to_space(problem, dtype, has_bias, choice, bits, **keywords)
    raise AssertionError(f"no configuration of {kernel} fits {problem}")


def with_m_tiles(config: DepthToSpaceConfig, tiles: int) -> DepthToSpaceConfig:
    """Return a configuration with more tiles along m than it needs."""
    stage_m = tiles * config.warps_m
    part_m_tiles = -(-config.part_m_tiles // stage_m) * stage_m
    return replace(config, warp_m_tiles=tiles, part_m_tiles=part_m_tiles)


def kernels_for(problem: Problem) -> list[str]:
    """Return the kernels that can run a problem."""
    found = ["implicit_gemm"]
    if is_depth_to_space(problem):
        found.append("depth_to_space")
    # More phases along depth and height than that need blocks of more tiles along m.
    if is_subpixel(problem) and problem.stride[0] * problem.stride[1] <= 4:
        found.append("subpixel")
    return found


@dataclass(frozen=True)
class Variant:
    """What selects the code of one of the kernels.

    ``width`` is the kernel's extent along width, and ``channels`` the output channels: they lead to
    the macros ``CONVT3D_TAPS_W`` and ``CONVT3D_SUM_CHANNELS``.
    """

    kernel: str
    math: Math
    bits: int
    tile: tuple[int, int]
    width: int
    channels: int
    wgmma: bool = False


def has_wgmma(math: Math) -> bool:
    """Whether warpgroups multiply this way."""
    return math.name in WGMMA_TILES_OF


def all_variants(few: bool) -> Iterator[Variant]:
    """Yield every variant that the choice can pick, or the ``few`` that the host compiles."""
    bits = 32
    for math in filter(has_wgmma, MATHS.values()):
        for kernel in ("implicit_gemm", "depth_to_space"):
            every = WGMMA_TILES if kernel == "implicit_gemm" else WARPGROUP_M_TILES
            for most, n_tiles in tiles_of(kernel, math, bits, few, True):
                for tile in [most] if few else [t for t in every if t <= most]:
                    shape = (tile, n_tiles)
                    if kernel == "implicit_gemm":
                        for channels in (8, 16):
                            yield Variant(kernel, math, bits, shape, 1, channels, True)
                    else:
                        for width in (1, 2):
                            yield Variant(kernel, math, bits, shape, width, 16, True)
    for math, bits in itertools.product(MATHS.values(), (32, 64)):
        for tile in tiles_of("implicit_gemm", math, bits, few):
            for channels in (8, 16):
                yield Variant("implicit_gemm", math, bits, tile, 1, channels)
        for tile in tiles_of("depth_to_space", math, bits, few):
            for width in (1, 2):
                yield Variant("depth_to_space", math, bits, tile, width, 16)
        for tile in tiles_of("subpixel", math, bits, few):
            yield Variant("subpixel", math, bits, tile, 3, 16)
