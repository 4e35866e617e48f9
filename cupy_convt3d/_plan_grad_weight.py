"""The launches of ``kernels_cu/convt3d_grad_weight_*.cu``: tiles, splits and shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cupy_convt3d._activation import NO_ACTIVATION
from cupy_convt3d._box_copy import fill_box_copy
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._phase import axes
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import (
    BANK_CYCLE,
    MATHS,
    WARP,
    Math,
    copy_bytes,
    even_share,
    up_to_8,
)

#: Blocks that splits are made for: two for each multiprocessor of an H100. The same on every
#: device, because splits decide on the order of summation.
BLOCKS = 264

#: Stages of a split at least: fewer would spend their time filling the pipeline.
SPLIT_STAGES = 8

#: Bytes that the sums of all splits may take, unless those of one take more.
WORKSPACE_BYTES = 64 * 1024 * 1024

#: Bytes that the pitch of a channel in shared memory is, modulo `BANK_CYCLE`, by the size of an
#: element: 8 channels x 4 consecutive positions then lie in different banks.
PITCH_BYTES = {2: 16, 4: 16, 8: 32, 16: 16}

#: Positions along W of a stage at most, rows, and warps of a block.
MOST_POSITIONS = 64
MOST_ROWS = 8
WARPS = 8

#: Input and output channels of a thread of the direct kernel, by bytes of the accumulator, and of
#: its blocks.
DIRECT_TILES: dict[int, tuple[tuple[int, int], ...]] = {
    4: ((1, 1), (4, 4)),
    8: ((1, 1), (4, 4)),
    16: ((1, 1), (2, 4)),
}
DIRECT_CHANNELS = 16
DIRECT_THREADS = 256


@dataclass(frozen=True, slots=True)
class GradWeightConfig:
    """The tiles of the gradient of the weights.

    A block computes ``ci_tile`` x ``co_tile`` channels of ``taps_h`` x ``taps_w`` taps of one kd,
    from one of ``splits`` shares of the stages; a stage has ``tile_h`` rows of ``segment``
    positions, ``stages`` of them are in shared memory. ``shares`` warps or threads share the rows
    of a stage.

    With ``math`` its warps have ``tile`` tiles of 16 input channels and of 8 output channels of one
    tap, along m and n, and there are ``warps_m`` * ``warps_n`` * ``shares`` of them. Without, a
    thread of the direct kernel has ``tile`` input and output channels of one tap.
    """

    math: str | None
    tile: tuple[int, int]
    warps_m: int
    warps_n: int
    shares: int
    ci_tile: int
    co_tile: int
    taps_h: int
    taps_w: int
    tile_h: int
    segment: int
    stages: int
    splits: int

    @property
    def items(self) -> int:
        """Pieces of the block's weights: of the direct kernel one for each thread."""
        groups = self.ci_tile // self.tile[0] * (self.co_tile // self.tile[1])
        return groups * self.taps_h * self.taps_w

    @property
    def threads(self) -> int:
        if self.math:
            return WARP * self.warps_m * self.warps_n * self.shares
        return -(-self.items * self.shares // WARP) * WARP


@dataclass(frozen=True, slots=True)
class _Layout:
    """Elements of the boxes of x and grad_output in a stage, and bytes of shared memory."""

    x_pitch: int
    y_rows: int
    y_row: int
    y_pitch: int
    stage_y: int
    stage_bytes: int


def _layout(problem: Problem, dtype: KernelDtype, config: GradWeightConfig) -> _Layout:
    _, height, width = axes(problem)

    def pitch(elements: int) -> int:
        size = elements * dtype.itemsize
        return (size + (PITCH_BYTES[dtype.itemsize] - size) % BANK_CYCLE) // dtype.itemsize

    x_pitch = pitch(config.tile_h * config.segment)
    y_rows = (config.tile_h - 1) * height.stride + (config.taps_h - 1) * height.dilation + 1
    # The first element is moved down to a multiple of 8.
    span = (config.segment - 1) * width.stride + (config.taps_w - 1) * width.dilation + 1
    y_row = up_to_8(span + 7)
    y_pitch = pitch(y_rows * y_row)
    stage_y = config.ci_tile * x_pitch * dtype.itemsize
    return _Layout(
        x_pitch,
        y_rows,
        y_row,
        y_pitch,
        stage_y,
        stage_y + config.co_tile * y_pitch * dtype.itemsize,
    )


def shared_bytes_of(problem: Problem, dtype: KernelDtype, config: GradWeightConfig) -> int:
    """Return the dynamic shared memory of a block."""
    return config.stages * _layout(problem, dtype, config).stage_bytes


def _blocks_of_split(problem: Problem, config: GradWeightConfig) -> int:
    depth, height, width = axes(problem)
    return (
        problem.groups
        * -(-problem.in_channels_per_group // config.ci_tile)
        * -(-problem.out_channels_per_group // config.co_tile)
        * depth.kernel
        * -(-height.kernel // config.taps_h)
        * -(-width.kernel // config.taps_w)
    )


def _stages_of(problem: Problem, config: GradWeightConfig) -> int:
    """Return the stages of the whole sum, for a tap that never leaves grad_output."""
    depth, height, width = problem.input
    boxes = -(-height // config.tile_h) * -(-width // config.segment)
    return max(1, problem.batch) * depth * boxes


def _with_splits(
    problem: Problem, dtype: KernelDtype, config: GradWeightConfig
) -> GradWeightConfig:
    sums = math.prod(problem.weight_shape) * config.shares * dtype.accumulator_bytes
    splits = min(
        -(-BLOCKS // _blocks_of_split(problem, config)),
        _stages_of(problem, config) // SPLIT_STAGES,
        WORKSPACE_BYTES // sums,
    )
    return replace(config, splits=max(1, splits))


def _fitted(
    problem: Problem, dtype: KernelDtype, config: GradWeightConfig, shared_bytes: int, step: int
) -> GradWeightConfig | None:
    """Return the configuration with the pipeline, and then the box, made smaller until it fits."""
    while True:
        for stages in (3, 2):
            config = replace(config, stages=stages)
            if shared_bytes_of(problem, dtype, config) <= shared_bytes:
                return _with_splits(problem, dtype, config)
        if config.tile_h > config.shares:
            rows = max(config.shares, config.tile_h // 2)
            config = replace(config, tile_h=rows)
        elif config.segment > step:
            config = replace(config, segment=-(-(config.segment // 2) // step) * step)
        elif config.shares > 1:
            config = replace(config, shares=config.shares // 2)
        elif config.taps_h > 1:
            config = replace(config, taps_h=-(-config.taps_h // 2))
        elif config.taps_w > 1:
            config = replace(config, taps_w=-(-config.taps_w // 2))
        else:
            return None


def _segment(width: int, step: int) -> int:
    positions = even_share(width, min(width, MOST_POSITIONS))
    return -(-positions // step) * step


def fit_grad_weight(
    problem: Problem,
    dtype: KernelDtype,
    mma: Math,
    warp_tiles: tuple[int, int],
    shared_bytes: int,
) -> GradWeightConfig | None:
    """Return the tensor-core configuration of these warps that suits a problem, or None.

    Parameters
    ----------
    problem : Problem
        The transposed convolution whose weights have the gradient.
    warp_tiles : (int, int)
        Tiles of 16 input channels, and of 8 output channels of one tap, of a warp.
    shared_bytes : int
        What a block may use.
    """
    _, height, width = axes(problem)
    warps_m = min(2, -(-problem.in_channels_per_group // (16 * warp_tiles[0])))
    most_tiles = WARPS // warps_m * warp_tiles[1]
    co_groups = even_share(vectors := -(-problem.out_channels_per_group // 8), min(8, vectors))
    co_groups = min(co_groups, most_tiles)
    taps_w = even_share(width.kernel, min(width.kernel, most_tiles // co_groups))
    taps_h = even_share(height.kernel, min(height.kernel, most_tiles // co_groups // taps_w))
    warps_n = -(-taps_h * taps_w * co_groups // warp_tiles[1])
    rows = min(MOST_ROWS, height.input)
    shares = min(rows, max(1, WARPS // (warps_m * warps_n)))
    config = GradWeightConfig(
        math=mma.name,
        tile=warp_tiles,
        warps_m=warps_m,
        warps_n=warps_n,
        shares=shares,
        ci_tile=16 * warp_tiles[0] * warps_m,
        co_tile=8 * co_groups,
        taps_h=taps_h,
        taps_w=taps_w,
        tile_h=rows,
        segment=_segment(width.input, mma.step_k),
        stages=3,
        splits=1,
    )
    return _fitted(problem, dtype, config, shared_bytes, mma.step_k)


def fit_grad_weight_direct(
    problem: Problem, dtype: KernelDtype, shared_bytes: int
) -> GradWeightConfig:
    """Return the configuration of the direct kernel that suits a problem."""
    _, height, width = axes(problem)
    channels = (problem.in_channels_per_group, problem.out_channels_per_group)
    tile = min(
        DIRECT_TILES[dtype.accumulator_bytes],
        # Products are made for whole tiles; each loads its channels for all of them.
        key=lambda tile: (
            math.prod(-(-c // t) for c, t in zip(channels, tile, strict=True))
            * (tile[0] * tile[1] + tile[0] + tile[1])
        ),
    )
    groups = [-(-min(c, DIRECT_CHANNELS) // t) for c, t in zip(channels, tile, strict=True)]
    most_taps = DIRECT_THREADS // math.prod(groups)
    taps_w = even_share(width.kernel, min(width.kernel, most_taps))
    taps_h = even_share(height.kernel, min(height.kernel, most_taps // taps_w))
    rows = min(MOST_ROWS, height.input)
    shares = min(rows, DIRECT_THREADS // (math.prod(groups) * taps_h * taps_w))
    config = GradWeightConfig(
        math=None,
        tile=tile,
        warps_m=1,
        warps_n=1,
        shares=shares,
        ci_tile=groups[0] * tile[0],
        co_tile=groups[1] * tile[1],
        taps_h=taps_h,
        taps_w=taps_w,
        tile_h=rows,
        segment=_segment(width.input, 8),
        stages=3,
        splits=1,
    )
    fitted = _fitted(problem, dtype, config, shared_bytes, 1)
    if fitted is None:
        raise AssertionError("single rows, positions and taps fit the shared memory of any device")
    return fitted


def plan_grad_weight(
    problem: Problem,
    dtype: KernelDtype,
    config: GradWeightConfig,
    bits: int | None = None,
    *,
    aligned: bool = True,
) -> Plan:
    """Return the plan of the gradient of the weights with the tiles of ``config``.

    Parameters
    ----------
    problem : Problem
        The transposed convolution.
    bits : int, optional
        Forces the index width (tests do).
    aligned : bool
        Whether x and grad_output start at multiples of 16 bytes.
    """
    depth, height, width = axes(problem)
    layout = _layout(problem, dtype, config)
    segments = -(-width.input // config.segment)
    tiles = _blocks_of_split(problem, config) * config.splits
    count = math.prod(problem.weight_shape)
    sums = count * config.splits * config.shares

    params = common_params(problem, has_bias=False)
    params["tiles"] = tiles
    params["axis"][1]["tile"] = config.tile_h
    params["axis"][1]["tap_slice"] = config.taps_h
    params["axis"][2]["tap_slice"] = config.taps_w
    gemm = params["gemm"]
    gemm["co_tile"] = fast_divmod(config.co_tile)
    gemm["co_tiles"] = fast_divmod(-(-problem.out_channels_per_group // config.co_tile))
    gemm["groups"] = fast_divmod(problem.groups)
    gemm["segment"] = fast_divmod(config.segment)
    gemm["segments"] = fast_divmod(segments)
    gemm["warps_m"] = fast_divmod(config.warps_m)
    gemm["stages"] = config.stages
    gemm["stage_bytes"] = layout.stage_bytes
    gemm["stage_weights"] = layout.stage_y
    grad = params["grad_weight"]
    for name, divisor in (
        ("kernel_d", depth.kernel),
        ("h_slices", -(-height.kernel // config.taps_h)),
        ("w_slices", -(-width.kernel // config.taps_w)),
        ("ci_tiles", -(-problem.in_channels_per_group // config.ci_tile)),
        ("taps_w", config.taps_w),
        ("co_groups", config.co_tile // (8 if config.math else config.tile[1])),
        ("items", 1 if config.math else config.items),
    ):
        grad[name] = fast_divmod(divisor)
    grad["splits"] = config.splits
    grad["ci_tile"] = config.ci_tile
    grad["warps_n"] = config.warps_n
    grad["warps_k"] = config.shares
    for target, extent, channels, box, pitch in (
        (
            gemm["x"],
            problem.input,
            problem.in_channels_per_group,
            (1, config.tile_h, config.segment),
            layout.x_pitch,
        ),
        (
            grad["grad_output"],
            problem.output,
            problem.out_channels_per_group,
            (1, layout.y_rows, layout.y_row),
            layout.y_pitch,
        ),
    ):
        fill_box_copy(
            target,
            extent=extent,
            channels=channels,
            box=box,
            channel_pitch=pitch,
            copy_elements=copy_bytes(extent[2], dtype, aligned) // dtype.itemsize,
            threads=config.threads,
        )

    if bits is None:
        # Samples and sums are found with 64-bit arithmetic in both widths.
        bits = index_bits(
            replace(problem, batch=1),
            tiles,
            problem.batch,
            _stages_of(problem, config),
            # Steps to positions that do not exist.
            (config.tile_h + height.input) * height.stride,
            (config.segment + width.input) * width.stride,
        )
    macros = {"CONVT3D_TILE_CI": config.tile[0], "CONVT3D_TILE_CO": config.tile[1]}
    if config.math:
        macros = {
            "CONVT3D_MATH": MATHS[config.math].number,
            "CONVT3D_WARP_M_TILES": config.tile[0],
            "CONVT3D_WARP_N_TILES": config.tile[1],
        }
    multiply = Launch(
        kernel=f"convt3d_grad_weight_{'implicit_gemm' if config.math else 'direct'}",
        options=variant_options(dtype, bits, NO_ACTIVATION, **macros),
        grid=min(tiles, INDEX32_LIMIT),
        block=config.threads,
        shared_bytes=config.stages * layout.stage_bytes,
        params=launch_params(params),
        roles=("x", "grad_output", "workspace"),
    )
    add = Launch(
        kernel="sum_grad_weight",
        options=variant_options(dtype, 64),
        grid=min(-(-count // 256), INDEX32_LIMIT),
        block=256,
        shared_bytes=0,
        params=launch_params(params),
        roles=("x", "grad_output", "workspace", "grad_weight"),
    )
    return Plan(
        "implicit_gemm" if config.math else "direct",
        (multiply, add),
        workspace_bytes=sums * dtype.accumulator_bytes,
        deterministic=True,
    )
