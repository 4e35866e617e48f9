"""The launches of ``kernels_cu/convt3d_depth_to_space.cu``: kernel == stride, no padding."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._box_copy import fill_box_copy
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._packing import packing_launch
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import (
    FRAGMENT_BYTES,
    MATHS,
    WARP,
    WGMMA_ARCHITECTURE,
    WGMMA_ROWS,
    Math,
    channel_pitch,
    copy_bytes,
    even_share,
)

#: Bytes of an ``OutputRow`` of the kernel at most.
OUTPUT_ROW_BYTES = 16

#: Tiles of a warpgroup along m; each number is a variant to compile.
WARPGROUP_M_TILES = (2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class DepthToSpaceConfig:
    """The tiles of the depth-to-space kernel.

    A block has ``warps_m * warps_n`` warps, each with ``warp_m_tiles`` x ``warp_n_tiles`` tiles of
    16 x 8 products at a time, or with ``wgmma`` of 8 x 8: then four warps along n multiply
    together. It keeps the inputs of ``8 * warp_n_tiles * warps_n`` positions and multiplies them
    with ``part_m_tiles`` m tiles. ``stages`` stages of ``stage_steps`` k steps of weights are in
    shared memory.
    """

    math: str
    warp_m_tiles: int
    warp_n_tiles: int
    warps_m: int
    warps_n: int
    part_m_tiles: int
    stage_steps: int
    stages: int
    wgmma: bool = False

    @property
    def threads(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def positions(self) -> int:
        return 8 * self.warp_n_tiles * self.warps_n


def is_depth_to_space(problem: Problem) -> bool:
    """Whether kernel == stride, at most 2 along width: the kernel's own conditions."""
    return (
        problem.kernel == problem.stride
        and problem.kernel[2] <= 2
        and problem.padding == (0, 0, 0)
        and problem.output_padding == (0, 0, 0)
        and all(d == 1 or k == 1 for d, k in zip(problem.dilation, problem.kernel, strict=True))
    )


def m_tile_rows(wgmma: bool) -> int:
    """Return the rows of an m tile: output channels and taps along width."""
    return WGMMA_ROWS if wgmma else 16


def co_tiles_of(problem: Problem, wgmma: bool = False) -> int:
    """Return the m tiles of one tap (kd, kh)."""
    return -(-problem.out_channels_per_group // (m_tile_rows(wgmma) // problem.kernel[2]))


def m_tiles_of(problem: Problem, wgmma: bool = False) -> int:
    """Return the m tiles of a group."""
    return problem.kernel[0] * problem.kernel[1] * co_tiles_of(problem, wgmma)


def m_tile_bytes(mma: Math, wgmma: bool) -> int:
    """Return the bytes of an m tile of packed weights, of one k step."""
    return m_tile_rows(wgmma) * WARP * FRAGMENT_BYTES // 16 * mma.parts


def shared_bytes_of(
    problem: Problem, dtype: KernelDtype, config: DepthToSpaceConfig
) -> tuple[int, int, int]:
    """Return the bytes of a channel's pitch, of inputs and output rows, and of one stage."""
    mma = MATHS[config.math]
    k_steps = -(-problem.in_channels_per_group // mma.step_k)
    pitch = channel_pitch(config.positions * dtype.itemsize, dtype)
    stage_m = config.warps_m * config.warp_m_tiles
    stage_bytes = config.stage_steps * stage_m * m_tile_bytes(mma, config.wgmma)
    block_m = -(-config.part_m_tiles // stage_m) * stage_m
    rows = block_m * m_tile_rows(config.wgmma) // problem.kernel[2] * OUTPUT_ROW_BYTES
    return pitch, k_steps * mma.step_k * pitch + rows, stage_bytes


def fit_depth_to_space(
    problem: Problem,
    dtype: KernelDtype,
    mma: Math,
    warp_tiles: tuple[int, int],
    warps: tuple[int, int],
    shared_bytes: int,
    wgmma: bool = False,
) -> list[DepthToSpaceConfig]:
    """Return the configurations of these warps that fit ``shared_bytes``.

    They differ in the m tiles of a block: where positions are few, more blocks share them. Each has
    the deepest pipeline that fits.

    Parameters
    ----------
    warp_tiles : (int, int)
        Tiles of a warp, along m and n; with ``wgmma`` at most as many along m.
    warps : (int, int)
        Warps of a block along m and n.
    shared_bytes : int
        What a block may use.
    wgmma : bool
        Whether warpgroups multiply; ``warps`` are then multiples of four along n.
    """
    m_tiles = m_tiles_of(problem, wgmma)
    if wgmma:
        # Not more than are needed, and the same number in all stages.
        needed = -(-even_share(m_tiles, warp_tiles[0] * warps[0]) // warps[0])
        warp_tiles = (min(t for t in WARPGROUP_M_TILES if t >= needed), warp_tiles[1])
    stage_m = warp_tiles[0] * warps[0]
    found = []
    for parts in (1, 2, 4, 8, 16):
        share = -(-m_tiles // parts)
        part_m_tiles = -(-share // stage_m) * stage_m
        if parts > 1 and -(-m_tiles // part_m_tiles) < parts:
            break
        for stages, steps in ((3, 2), (3, 1), (2, 1)):
            config = DepthToSpaceConfig(
                mma.name, *warp_tiles, *warps, part_m_tiles, steps, stages, wgmma
            )
            _, inputs, stage_bytes = shared_bytes_of(problem, dtype, config)
            if inputs + stages * stage_bytes <= shared_bytes:
                found.append(config)
                break
    return found


def plan_depth_to_space(
    problem: Problem,
    dtype: KernelDtype,
    has_bias: bool,
    config: DepthToSpaceConfig,
    bits: int | None = None,
    *,
    activation: Activation = NO_ACTIVATION,
    x_aligned: bool = True,
) -> Plan:
    """Return the plan of the depth-to-space kernel with the tiles of ``config``.

    Parameters
    ----------
    bits : int, optional
        Forces the index width (tests do).
    x_aligned : bool
        Whether the address of x is a multiple of 16 bytes.
    """
    mma = MATHS[config.math]
    volume = math.prod(problem.input)
    k_steps = -(-problem.in_channels_per_group // mma.step_k)
    m_tiles = m_tiles_of(problem, config.wgmma)
    m_parts = -(-m_tiles // config.part_m_tiles)
    position_tiles = -(-volume // config.positions)
    tiles = problem.batch * problem.groups * position_tiles * m_parts
    packed_bytes = problem.groups * k_steps * m_tiles * m_tile_bytes(mma, config.wgmma)
    lanes = packed_bytes // (mma.parts * FRAGMENT_BYTES)
    unit = copy_bytes(volume, dtype, x_aligned)
    pitch, inputs, stage_bytes = shared_bytes_of(problem, dtype, config)

    params = common_params(problem, has_bias, activation)
    params["tiles"] = tiles
    params["co_tiles"] = m_parts
    params["axis"][2]["tile"] = config.positions
    params["axis"][2]["tiles"] = position_tiles
    gemm = params["gemm"]
    for name, divisor in (
        ("co_tile", co_tiles_of(problem, config.wgmma)),
        ("taps_h", problem.kernel[1]),
        ("warps_m", config.warps_m),
    ):
        gemm[name] = fast_divmod(divisor)
    for name, value in (
        ("m_tiles", m_tiles),
        ("part_m_tiles", config.part_m_tiles),
        ("stage_steps", config.stage_steps),
        ("stages", config.stages),
        ("stage_bytes", stage_bytes),
        ("stage_weights", inputs),
    ):
        gemm[name] = value
    fill_box_copy(
        gemm["x"],
        extent=problem.input,
        channels=problem.in_channels_per_group,
        box=(1, 1, config.positions),
        channel_pitch=pitch // dtype.itemsize,
        copy_elements=unit // dtype.itemsize,
        threads=config.threads,
    )
    if bits is None:
        # Samples are found with 64-bit arithmetic in both widths.
        bits = index_bits(replace(problem, batch=1), tiles, lanes, volume + config.positions)
    macros = {"CONVT3D_TAPS_W": problem.kernel[2]}
    if config.wgmma:
        macros["CONVT3D_WARPGROUPS"] = 1
    pack = packing_launch("pack_depth_to_space", dtype, bits, mma, params, lanes, **macros)
    multiply = Launch(
        kernel="convt3d_depth_to_space",
        options=variant_options(
            dtype,
            bits,
            activation,
            CONVT3D_MATH=mma.number,
            CONVT3D_WARP_M_TILES=config.warp_m_tiles,
            CONVT3D_WARP_N_TILES=config.warp_n_tiles,
            **macros,
        ),
        grid=min(tiles, INDEX32_LIMIT),
        block=config.threads,
        shared_bytes=inputs + config.stages * stage_bytes,
        params=launch_params(params),
        roles=("x", "weight", "packed", "bias", "y"),
        architecture=WGMMA_ARCHITECTURE if config.wgmma else "",
    )
    return Plan(
        "implicit_gemm",
        (multiply,),
        workspace_bytes=0,
        deterministic=True,
        packing=(pack,),
        packed_bytes=packed_bytes,
    )
