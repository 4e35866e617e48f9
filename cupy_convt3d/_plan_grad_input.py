"""The launches of ``kernels_cu/convt3d_grad_input_implicit_gemm.cu``: tiles and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cupy_convt3d._box_copy import fill_box_copy
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._packing import packing_launch
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._phase import axes
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._plan_implicit_gemm import BLOCK_TILE_BYTES
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import (
    FRAGMENT_BYTES,
    MATHS,
    WARP,
    Math,
    channel_pitch,
    copy_bytes,
    even_share,
    up_to_8,
)


@dataclass(frozen=True, slots=True)
class GradInputConfig:
    """The tiles of the implicit GEMM that computes the gradient of the input.

    A block has ``warps_m * warps_n`` warps, each with ``warp_m_tiles`` x ``warp_n_tiles`` tiles of
    16 channels x 8 positions. It computes ``tile_d * tile_h`` rows, of each ``segment`` positions.
    A stage of the pipeline has one k step and ``stage_taps_h`` taps along height; ``stages`` of
    them are in shared memory.
    """

    math: str
    warp_m_tiles: int
    warp_n_tiles: int
    warps_m: int
    warps_n: int
    tile_d: int
    tile_h: int
    segment: int
    stage_taps_h: int
    stages: int

    @property
    def threads(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def m_tiles(self) -> int:
        return self.warps_m * self.warp_m_tiles


@dataclass(frozen=True, slots=True)
class Layout:
    """The box of grad_output in a stage, and bytes of the dynamic shared memory."""

    rows_h: int
    row: int
    channel_pitch: int
    stage_weights: int
    stage_bytes: int
    block_tile: int
    total: int


def layout_of(problem: Problem, dtype: KernelDtype, config: GradInputConfig) -> Layout:
    """Return what a stage holds and where things are in shared memory."""
    math = MATHS[config.math]
    _, height, width = axes(problem)
    rows_h = (
        (config.tile_h - 1) * height.input_stride
        + (config.stage_taps_h - 1) * height.input_step
        + 1
    )
    # The first element is moved down to a multiple of 8.
    span = (config.segment - 1) * width.input_stride + (width.kernel - 1) * width.dilation + 1
    row = up_to_8(span + 7)
    channel = channel_pitch(config.tile_d * rows_h * row * dtype.itemsize, dtype)
    stage_weights = math.step_k * channel
    fragments = config.m_tiles * math.parts * WARP * FRAGMENT_BYTES
    stage_bytes = stage_weights + width.kernel * config.stage_taps_h * fragments
    block_tile = config.stages * stage_bytes
    return Layout(
        rows_h,
        row,
        channel // dtype.itemsize,
        stage_weights,
        stage_bytes,
        block_tile,
        block_tile + BLOCK_TILE_BYTES,
    )


def fit_grad_input(
    problem: Problem,
    dtype: KernelDtype,
    math: Math,
    warp_tiles: tuple[int, int],
    warps: tuple[int, int],
    shared_bytes: int,
) -> GradInputConfig | None:
    """Return the configuration of these warps that suits a correlation best, or None if none fits.

    Parameters
    ----------
    problem : Problem
        Of `input_gradient`.
    warp_tiles, warps : (int, int)
        Tiles of 16 x 8 sums of a warp, and warps of a block, along m and n.
    shared_bytes : int
        What a block may use.
    """
    depth, height, width = axes(problem)
    n_tiles = warp_tiles[1] * warps[1]
    segments = -(-width.output // (8 * n_tiles))
    segment = up_to_8(-(-width.output // segments))
    rows = n_tiles // (segment // 8)
    tile_h = even_share(height.output, min(rows, height.output))
    tile_d = even_share(depth.output, min(rows // tile_h, depth.output))
    # Rows between those of two taps would be loaded for nothing.
    taps = 1 if height.dilation > tile_h * height.input_stride else height.kernel
    while True:
        for stages in (3, 2):
            config = GradInputConfig(
                math.name, *warp_tiles, *warps, tile_d, tile_h, segment, taps, stages
            )
            if layout_of(problem, dtype, config).total <= shared_bytes:
                return config
        # Fewer taps in a stage cost loads, fewer rows leave warps idle.
        if taps > 1:
            taps = -(-taps // 2)
        elif tile_d > 1:
            tile_d = -(-tile_d // 2)
        elif tile_h > 1:
            tile_h = -(-tile_h // 2)
        elif segment > 8:
            segment = up_to_8(segment // 2)
        else:
            return None


def plan_grad_input(
    problem: Problem,
    dtype: KernelDtype,
    config: GradInputConfig,
    bits: int | None = None,
    *,
    aligned: bool = True,
) -> Plan:
    """Return the plan of the gradient of the input with the tiles of ``config``.

    Parameters
    ----------
    problem : Problem
        Of `input_gradient`.
    bits : int, optional
        Forces the index width (tests do).
    aligned : bool
        Whether grad_output starts at a multiple of 16 bytes.
    """
    math = MATHS[config.math]
    depth, height, width = axes(problem)
    layout = layout_of(problem, dtype, config)
    co_tile = 16 * config.m_tiles
    co_tiles = -(-problem.out_channels_per_group // co_tile)
    k_steps = -(-problem.in_channels_per_group // math.step_k)
    segments = -(-width.output // config.segment)
    d_tiles = -(-depth.output // config.tile_d)
    h_tiles = -(-height.output // config.tile_h)
    tiles = problem.batch * problem.groups * co_tiles * segments * d_tiles * h_tiles
    taps = depth.kernel * height.kernel * width.kernel
    fragments = problem.groups * co_tiles * taps * k_steps * config.m_tiles * WARP

    params = common_params(problem, has_bias=False)
    for axis, tile in zip(
        params["axis"], (config.tile_d, config.tile_h, config.segment), strict=True
    ):
        axis["tile"] = tile
    # Packed as slices of one tap each.
    params["axis"][2]["tap_slice"] = 1
    params["axis"][2]["tap_slices"] = width.kernel
    params["co_tiles"] = co_tiles
    params["tiles"] = tiles
    gemm = params["gemm"]
    for name, divisor in (
        ("co_tile", co_tile),
        ("row_tiles", config.segment // 8),
        ("tile_h", config.tile_h),
        ("segment", config.segment),
        ("warps_m", config.warps_m),
        ("stage_taps_h", config.stage_taps_h),
        ("co_tiles", co_tiles),
        ("segments", segments),
        ("groups", problem.groups),
    ):
        gemm[name] = fast_divmod(divisor)
    for a, count in ((0, d_tiles), (1, h_tiles)):
        gemm["phases"][a] = fast_divmod(1)
        gemm["boxes"][a] = fast_divmod(count)
    for name, value in (
        ("m_tiles", config.m_tiles),
        ("stage_steps", 1),
        ("stages_c", k_steps),
        ("stages", config.stages),
        ("stage_bytes", layout.stage_bytes),
        ("stage_weights", layout.stage_weights),
        ("block_tile", layout.block_tile),
    ):
        gemm[name] = value
    fill_box_copy(
        gemm["x"],
        extent=problem.input,
        channels=problem.in_channels_per_group,
        box=(config.tile_d, layout.rows_h, layout.row),
        channel_pitch=layout.channel_pitch,
        copy_elements=copy_bytes(problem.input[2], dtype, aligned) // dtype.itemsize,
        threads=config.threads,
        plane_step=depth.input_stride,
    )

    if bits is None:
        # Samples are found with 64-bit arithmetic in both widths.
        bits = index_bits(
            replace(problem, batch=1),
            tiles,
            fragments,
            # Steps to rows that do not exist.
            *(
                (tile + axis.output) * axis.input_stride + axis.kernel * axis.dilation
                for axis, tile in ((depth, config.tile_d), (height, config.tile_h))
            ),
        )
    pack = packing_launch("pack_weight", dtype, bits, math, params, fragments)
    multiply = Launch(
        kernel="convt3d_grad_input_implicit_gemm",
        options=variant_options(
            dtype,
            bits,
            CONVT3D_MATH=math.number,
            CONVT3D_WARP_M_TILES=config.warp_m_tiles,
            CONVT3D_WARP_N_TILES=config.warp_n_tiles,
        ),
        grid=min(tiles, INDEX32_LIMIT),
        block=config.threads,
        shared_bytes=layout.total,
        params=launch_params(params),
        roles=("x", "weight", "packed", "y"),
    )
    return Plan(
        "implicit_gemm",
        (multiply,),
        workspace_bytes=0,
        deterministic=True,
        packing=(pack,),
        packed_bytes=fragments * math.parts * FRAGMENT_BYTES,
    )
