"""The launches of ``kernels_cu/convt3d_implicit_gemm.cu``: tiles, stages and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._box_copy import fill_box_copy
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._packing import packing_launch
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import (
    FRAGMENT_BYTES,
    MATHS,
    WARP,
    WGMMA_ARCHITECTURE,
    WGMMA_ROWS,
    WGMMA_TILES,
    Math,
    channel_pitch,
    copy_bytes,
    even_share,
    up_to_8,
)
from cupy_convt3d._unit_rates import H100_SXM, SECTOR

#: What the output channels of a block are a multiple of.
SUM_CHANNELS = 8
#: Bytes of an ``OutputTaps`` of the kernel.
OUTPUT_TAPS_BYTES = 8
#: Bytes that are kept for a ``RowOutputs`` of the kernel.
ROW_OUTPUTS_BYTES = 32
#: Waves of blocks that a grid has at least if blocks compute several tiles.
LEAST_WAVES = 5
#: Bytes that are kept for the ``BlockTile`` of the kernel.
BLOCK_TILE_BYTES = 256


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """The tiles of the implicit GEMM.

    A block has ``warps_m * warps_n`` warps, each with ``warp_m_tiles`` x ``warp_n_tiles`` tiles of
    16 x 8 products, or with ``wgmma`` of 8 x 8: then four warps along n multiply together. It
    computes ``co_tile`` output channels of ``tile_d * tile_h`` output rows, of each ``segment``
    outputs, from ``tile_w`` inputs a row; ``tap_slice`` taps along W at a time.
    A stage of the pipeline has ``stage_steps`` k steps and ``stage_taps_h`` taps along height;
    ``stages`` of them are in shared memory. The epilogue sums ``pass_rows`` rows at a time, a
    thread ``sum_channels`` channels of one output.
    """

    math: str
    warp_m_tiles: int
    warp_n_tiles: int
    warps_m: int
    warps_n: int
    co_tile: int
    tap_slice: int
    tile_d: int
    tile_h: int
    tile_w: int
    segment: int
    stage_steps: int
    stage_taps_h: int
    stages: int
    pass_rows: int
    sum_channels: int
    wgmma: bool = False

    @property
    def threads(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def m_tiles(self) -> int:
        """Of 16 rows."""
        tiles = self.warps_m * self.warp_m_tiles
        return -(-tiles // 2) if self.wgmma else tiles

    @property
    def rows(self) -> int:
        return self.tile_d * self.tile_h

    @property
    def parts(self) -> int:
        """Of the output channels, each summed by a thread of its own."""
        return -(-self.co_tile // self.sum_channels)


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Bytes and pitches of the dynamic shared memory of one configuration."""

    channel_pitch: int
    stage_weights: int
    stage_bytes: int
    product_pitch: int
    sums: int
    block_tile: int
    row_outputs: int
    output_taps: int
    total: int


def shared_layout(problem: Problem, dtype: KernelDtype, config: GemmConfig) -> SharedLayout:
    """Return where things are in shared memory: the stages, then in their place the products."""
    math = MATHS[config.math]
    height = axes(problem)[1]
    rows_h = config.tile_h + (config.stage_taps_h - 1) * height.input_step
    row = config.tile_w * dtype.itemsize
    channel = channel_pitch(config.tile_d * rows_h * row, dtype)
    stage_weights = config.stage_steps * math.step_k * channel
    fragments = config.m_tiles * math.parts * WARP * FRAGMENT_BYTES
    stage_bytes = stage_weights + config.stage_steps * config.stage_taps_h * fragments
    # Lanes 4g + t store products of row g for the inputs 2t and 2t + 1, and 8 lanes at a time load
    # 4 products of consecutive inputs: 4 elements modulo 8 keep both out of each other's banks.
    product = 16 * config.m_tiles + 4
    products = config.pass_rows * config.tile_w * product * dtype.accumulator_bytes
    sums = max(config.stages * stage_bytes, products)
    block_tile = sums
    if config.tap_slice < problem.kernel[2]:
        block_tile += config.co_tile * config.rows * config.segment * dtype.accumulator_bytes
    block_tile += -block_tile % 16
    row_outputs = block_tile + 2 * BLOCK_TILE_BYTES
    output_taps = row_outputs + ROW_OUTPUTS_BYTES * config.parts * config.pass_rows
    return SharedLayout(
        channel // dtype.itemsize,
        stage_weights,
        stage_bytes,
        product,
        sums,
        block_tile,
        row_outputs,
        output_taps,
        output_taps + OUTPUT_TAPS_BYTES * config.segment,
    )


def inputs_of_segment(axis: Axis, segment: int, tap_slice: int) -> int:
    """Return how many inputs along W a block must hold for any segment of that many outputs."""
    if segment >= axis.output and tap_slice >= axis.kernel:
        return up_to_8(axis.input)
    span = (segment - 1 + (tap_slice - 1) * axis.dilation) // axis.stride + 2
    # The first input is moved down to a multiple of 8.
    return min(up_to_8(span + 7), up_to_8(axis.input))


def needs_64_bits(problem: Problem) -> bool:
    """Whether offsets inside a sample pass 31 bits."""
    return index_bits(replace(problem, batch=1)) == 64


def fit_config(
    problem: Problem,
    dtype: KernelDtype,
    math: Math,
    warp_tiles: tuple[int, int],
    warps: tuple[int, int],
    shared_bytes: int,
    stages: int = 3,
    stage_steps: int = 1,
    wgmma: bool = False,
) -> GemmConfig | None:
    """Return the configuration of these warps that suits a problem best, or None if none fits.

    Parameters
    ----------
    warp_tiles : (int, int)
        Tiles of a warp, along m and n; with ``wgmma`` at most as many along m.
    warps : (int, int)
        Warps of a block along m and n.
    shared_bytes : int
        What a block may use.
    stages, stage_steps : int
        Buffers of the pipeline, k steps in each.
    wgmma : bool
        Whether warpgroups multiply; ``warps`` are then multiples of four along n.
    """
    depth, height, width = axes(problem)
    gemm_m = (WGMMA_ROWS if wgmma else 16) * warp_tiles[0] * warps[0]
    n_tiles = warp_tiles[1] * warps[1]

    tap_slice = min(width.kernel, gemm_m // SUM_CHANNELS)
    while True:
        segments = 1
        while (
            inputs_of_segment(width, segment := -(-width.output // segments), tap_slice)
            > 8 * n_tiles
            and segment > 1
        ):
            # One segment more, or as many as the inputs that are too many ask for.
            excess = inputs_of_segment(width, segment, tap_slice) // (8 * n_tiles)
            segments = max(segments + 1, segments * excess // 2)
        if inputs_of_segment(width, segment, tap_slice) <= 8 * n_tiles:
            break
        # Taps so far apart that the inputs between them do not fit: fewer taps at a time.
        tap_slice = -(-tap_slice // 2)
    tile_w = inputs_of_segment(width, segment, tap_slice)

    vectors = -(-problem.out_channels_per_group // SUM_CHANNELS)
    co_tile = SUM_CHANNELS * even_share(vectors, min(vectors, gemm_m // tap_slice // SUM_CHANNELS))
    if wgmma:
        needed = -(-co_tile * tap_slice // (WGMMA_ROWS * warps[0]))
        warp_tiles = (min(t for t in WGMMA_TILES if t >= needed), warp_tiles[1])
    rows = n_tiles // (tile_w // 8)
    tile_h = even_share(height.positions, min(rows, height.positions))
    tile_d = even_share(depth.positions, min(rows // tile_h, depth.positions))
    config = GemmConfig(
        math.name,
        *warp_tiles,
        *warps,
        co_tile,
        tap_slice,
        tile_d,
        tile_h,
        tile_w,
        segment,
        stage_steps,
        height.most_taps,
        stages,
        1,
        co_tile,
        wgmma,
    )

    def size(config: GemmConfig) -> int:
        return shared_layout(problem, dtype, config).total

    if height.input_step > tile_h:
        # Rows between those of two taps would be loaded for nothing.
        config = replace(config, stage_taps_h=1)
    while size(config) > shared_bytes and config.stage_taps_h > 1:
        config = replace(config, stage_taps_h=-(-config.stage_taps_h // 2))
    while size(config) > shared_bytes and config.stages > 2:
        config = replace(config, stages=config.stages - 1)
    if size(config) > shared_bytes:
        return None
    for most_rows in range(config.rows, 0, -1):
        trial = replace(config, pass_rows=even_share(config.rows, most_rows))
        if size(trial) <= shared_bytes:
            break
    parted = replace(trial, sum_channels=_sum_channels(trial))
    return parted if size(parted) <= shared_bytes else trial


def _sum_channels(config: GemmConfig) -> int:
    """Return the channels of a thread of the epilogue that keep the threads busy."""

    def cost(channels: int) -> int:
        items = -(-config.co_tile // channels) * config.pass_rows * config.segment
        # Finding the taps of an output costs about as much as summing 16 channels.
        return -(-items // config.threads) * (channels + 16)

    return min(range(SUM_CHANNELS, config.co_tile + 1, SUM_CHANNELS), key=cost)


def _row_places(width: Axis, plane: int, dtype: KernelDtype, segment: int) -> tuple[int, int, int]:
    """Return ``row_places``, ``sector_mask`` and ``log2_interleave`` of ``GemmParams``.

    They say how lanes share the outputs of a row: warps fill whole sectors of y, and load products
    without bank conflicts, unless too many lanes would idle for that. ``plane`` is the elements of
    a channel of y.
    """
    sector = SECTOR // dtype.itemsize
    aligned = width.output % sector == 0 and (segment == width.output or segment % sector == 0)
    # Rows of different channels begin alike, or aligning one does not help the others.
    mask = 0 if aligned or plane % sector else sector - 1
    interleave = {2: 1, 4: 2}.get(width.stride, 0)
    group = max(sector, 8 << interleave)
    places = -(-(segment + mask) // group) * group
    return (places, mask, interleave) if places <= 1.25 * segment else (segment, 0, 0)


def _loaded_channels(config: GemmConfig) -> int:
    """Return the channels that a thread of the epilogue holds at a time (``kSumChannels``)."""
    return 16 if gcd(config.co_tile, config.sum_channels) % 16 == 0 else 8


def _grid(tiles: int, threads: int, shared_bytes: int) -> int:
    """Return the blocks that share the tiles: block b computes tiles b, b + grid, ...

    Several tiles of a block share what it works out once; blocks enough for several waves keep the
    card busy to the end. The waves are those of an H100; results do not depend on them.
    """
    resident = max(1, H100_SXM.blocks_per_multiprocessor(threads, 255, shared_bytes))
    at_a_time = resident * H100_SXM.multiprocessors

    def blocks(share: int) -> int:
        # An odd number: with an even one, a block would always get the same phases, and so always
        # much work or always little.
        return min(tiles, -(-tiles // share) | 1)

    def time(share: int) -> float:
        # What a block works out once takes about a tenth of a tile.
        return -(-blocks(share) // at_a_time) * (share + 0.1)

    most = max(1, tiles // (LEAST_WAVES * at_a_time))
    return blocks(min(range(1, most + 1), key=time))


def plan_implicit_gemm(
    problem: Problem,
    dtype: KernelDtype,
    has_bias: bool,
    config: GemmConfig,
    bits: int | None = None,
    *,
    activation: Activation = NO_ACTIVATION,
    x_aligned: bool = True,
) -> Plan:
    """Return the plan of the implicit GEMM with the tiles of ``config``.

    Parameters
    ----------
    bits : int, optional
        Forces the index width (tests do).
    x_aligned : bool
        Whether the address of x is a multiple of 16 bytes.
    """
    math = MATHS[config.math]
    depth, height, width = axes(problem)
    layout = shared_layout(problem, dtype, config)
    co_tiles = -(-problem.out_channels_per_group // config.co_tile)
    slices = -(-width.kernel // config.tap_slice)
    k_steps = -(-problem.in_channels_per_group // math.step_k)
    segments = -(-width.output // config.segment)
    d_tiles = -(-depth.positions // config.tile_d)
    h_tiles = -(-height.positions // config.tile_h)
    tiles = (
        problem.batch
        * problem.groups
        * co_tiles
        * segments
        * d_tiles
        * h_tiles
        * depth.phases
        * height.phases
    )
    fragments = (
        problem.groups
        * co_tiles
        * slices
        * depth.kernel
        * height.kernel
        * k_steps
        * config.m_tiles
        * WARP
    )
    unit = copy_bytes(problem.input[2], dtype, x_aligned)
    rows_h = config.tile_h + (config.stage_taps_h - 1) * height.input_step
    row_places, sector_mask, interleave = _row_places(
        width, prod(problem.output), dtype, config.segment
    )

    params = common_params(problem, has_bias, activation)
    for axis, tile, count in zip(
        params["axis"],
        (config.tile_d, config.tile_h, config.tile_w),
        (d_tiles, h_tiles, segments),
        strict=True,
    ):
        axis["tile"] = tile
        axis["tiles"] = count
    params["axis"][2]["tap_slice"] = config.tap_slice
    params["axis"][2]["tap_slices"] = slices
    params["co_tiles"] = co_tiles
    params["tiles"] = tiles
    gemm = params["gemm"]
    for name, divisor in (
        ("co_tile", config.co_tile),
        ("row_tiles", config.tile_w // 8),
        ("tile_h", config.tile_h),
        ("segment", config.segment),
        ("pass_rows", config.pass_rows),
        ("row_places", row_places),
        ("warps_m", config.warps_m),
        ("stage_taps_h", config.stage_taps_h),
        ("sum_channels", config.sum_channels),
        ("co_tiles", co_tiles),
        ("segments", segments),
        ("groups", problem.groups),
    ):
        gemm[name] = fast_divmod(divisor)
    for a, axis, count in ((0, depth, d_tiles), (1, height, h_tiles)):
        gemm["phases"][a] = fast_divmod(axis.phases)
        gemm["boxes"][a] = fast_divmod(count)
    for name, value in (
        ("m_tiles", config.m_tiles),
        ("stage_steps", config.stage_steps),
        ("stages_c", -(-k_steps // config.stage_steps)),
        ("stages", config.stages),
        ("stage_bytes", layout.stage_bytes),
        ("stage_weights", layout.stage_weights),
        ("sector_mask", sector_mask),
        ("log2_interleave", interleave),
        ("product_pitch", layout.product_pitch),
        ("output_taps", layout.output_taps),
        ("row_outputs", layout.row_outputs),
        ("sums", layout.sums),
        ("block_tile", layout.block_tile),
    ):
        gemm[name] = value

    fill_box_copy(
        gemm["x"],
        extent=problem.input,
        channels=problem.in_channels_per_group,
        box=(config.tile_d, rows_h, config.tile_w),
        channel_pitch=layout.channel_pitch,
        copy_elements=unit // dtype.itemsize,
        threads=config.threads,
    )

    if bits is None:
        # Samples are found with 64-bit arithmetic in both widths.
        bits = index_bits(
            replace(problem, batch=1),
            tiles,
            fragments,
            # Steps to rows that do not exist.
            (config.rows + depth.output + height.output) * height.input_step,
        )
    macros = {"CONVT3D_WARPGROUPS": 1} if config.wgmma else {}
    pack = packing_launch("pack_weight", dtype, bits, math, params, fragments, **macros)
    multiply = Launch(
        kernel="convt3d_implicit_gemm",
        options=variant_options(
            dtype,
            bits,
            activation,
            CONVT3D_MATH=math.number,
            CONVT3D_WARP_M_TILES=config.warp_m_tiles,
            CONVT3D_WARP_N_TILES=config.warp_n_tiles,
            CONVT3D_SUM_CHANNELS=_loaded_channels(config),
            **macros,
        ),
        grid=min(_grid(tiles, config.threads, layout.total), INDEX32_LIMIT),
        block=config.threads,
        shared_bytes=layout.total,
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
        packed_bytes=fragments * math.parts * FRAGMENT_BYTES,
    )
