"""The launches of ``kernels_cu/convt3d_subpixel.cu``: tiles, stages and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._box_copy import fill_box_copy
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._packing import packing_launch
from cupy_convt3d._params import common_params, fast_divmod, index_bits
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
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
from cupy_convt3d._unit_rates import H100_SXM

#: Output channels of an m tile; its other half is their second phase along width.
CHANNELS = 8


@dataclass(frozen=True, slots=True)
class SubpixelConfig:
    """The tiles of the sub-pixel kernel.

    A block has ``warps_m * warps_n`` warps, each with ``warp_m_tiles`` x ``warp_n_tiles`` tiles of
    16 x 8 sums. It computes ``co_blocks`` times 8 output channels in all phases, of ``tile_d *
    tile_h`` rows of positions, each the tiles of ``row_warps`` warps. A k step has ``step_offsets``
    offsets along width, a stage of the pipeline one k step; ``stages`` of them are in shared
    memory.
    """

    math: str
    warp_m_tiles: int
    warp_n_tiles: int
    warps_m: int
    warps_n: int
    co_blocks: int
    tile_d: int
    tile_h: int
    row_warps: int
    step_offsets: int
    stages: int

    @property
    def threads(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def tile_w(self) -> int:
        """Positions of a row."""
        return 8 * self.warp_n_tiles * self.row_warps

    @property
    def step_channels(self) -> int:
        return MATHS[self.math].step_k // self.step_offsets


@dataclass(frozen=True, slots=True)
class Offsets:
    """The inputs that the outputs ``stride*q + phase`` of all phases meet along an axis.

    They are ``q + first``, ``q + first + 1``, ...: ``count`` of them. The first meets phase r by
    the tap ``first_tap + r``, where there is such a tap, and each further one by ``stride`` less.
    """

    first: int
    first_tap: int
    count: int


def offsets_of(axis: Axis) -> Offsets:
    """Return the offsets of an axis without dilation."""
    first = -((axis.kernel - 1 - axis.padding) // axis.stride)
    last = (axis.stride - 1 + axis.padding) // axis.stride
    return Offsets(first, axis.padding - axis.stride * first, last - first + 1)


def is_subpixel(problem: Problem) -> bool:
    """Whether the stride is 2 along width, without dilation: the kernel's own conditions."""
    return (
        problem.stride[2] == 2
        and not problem.is_gradient
        and all(axis.dilation == 1 for axis in axes(problem))
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """The box of x in a stage, and bytes of the dynamic shared memory."""

    rows_h: int
    row: int
    channel_pitch: int
    stage_weights: int
    stage_bytes: int
    total: int


def steps_along_width(problem: Problem, step_offsets: int) -> int:
    """Return the k steps that the offsets along width make."""
    return -(-offsets_of(axes(problem)[2]).count // step_offsets)


def layout_of(problem: Problem, dtype: KernelDtype, config: SubpixelConfig) -> Layout:
    """Return what a stage holds and where things are in shared memory."""
    depth, height, width = axes(problem)
    steps_w = steps_along_width(problem, config.step_offsets)
    rows_h = config.tile_h + offsets_of(height).count - 1
    # The first element is moved down to a multiple of 8.
    shift = offsets_of(width).first % 8
    row = up_to_8(shift + config.tile_w + steps_w * config.step_offsets - 1)
    channel = channel_pitch(config.tile_d * rows_h * row * dtype.itemsize, dtype)
    stage_weights = config.step_channels * channel
    taps = min(depth.stride, depth.kernel) * height.kernel
    fragments = steps_w * config.co_blocks * MATHS[config.math].parts * WARP
    stage_bytes = stage_weights + taps * fragments * FRAGMENT_BYTES
    return Layout(
        rows_h,
        row,
        channel // dtype.itemsize,
        stage_weights,
        stage_bytes,
        config.stages * stage_bytes,
    )


def fit_subpixel(
    problem: Problem,
    dtype: KernelDtype,
    math: Math,
    warp_tiles: tuple[int, int],
    warps: tuple[int, int],
    shared_bytes: int,
) -> SubpixelConfig | None:
    """Return the configuration of these warps that suits a problem best, or None if none fits.

    Parameters
    ----------
    problem : Problem
        One that `is_subpixel`.
    warp_tiles, warps : (int, int)
        Tiles of 16 x 8 sums of a warp, and warps of a block, along m and n.
    shared_bytes : int
        What a block may use.
    """
    depth, height, width = axes(problem)
    phases = depth.stride * height.stride
    channel_blocks = -(-problem.out_channels_per_group // CHANNELS)
    most_blocks = warp_tiles[0] * warps[0] // phases
    if most_blocks == 0:
        return None
    row_warps = -(-width.positions // (8 * warp_tiles[1]))
    row_warps = even_share(row_warps, min(row_warps, warps[1]))
    rows = warps[1] // row_warps
    tile_h = even_share(height.positions, min(rows, height.positions))
    tile_d = even_share(depth.positions, min(rows // tile_h, depth.positions))
    config = SubpixelConfig(
        math.name,
        *warp_tiles,
        *warps,
        even_share(channel_blocks, min(channel_blocks, most_blocks)),
        tile_d,
        tile_h,
        row_warps,
        _step_offsets(problem, math),
        3,
    )
    for trial in _smaller(config):
        if layout_of(problem, dtype, trial).total <= shared_bytes:
            return trial
    return None


def _step_offsets(problem: Problem, math: Math) -> int:
    """Return the offsets along width of a k step that waste less of it."""

    def steps(offsets: int) -> int:
        channels = math.step_k // offsets
        return steps_along_width(problem, offsets) * -(-problem.in_channels_per_group // channels)

    # The k step of float64 has no halves.
    return 2 if math.name != "float64" and steps(2) < steps(1) else 1


def _smaller(config: SubpixelConfig) -> Iterator[SubpixelConfig]:
    """Yield configurations of ever less shared memory."""
    while True:
        yield config
        yield replace(config, stages=2)
        # Fewer rows leave warps idle.
        for name in ("tile_d", "tile_h", "row_warps"):
            if getattr(config, name) > 1:
                config = replace(config, **{name: -(-getattr(config, name) // 2)})
                break
        else:
            return


def plan_subpixel(
    problem: Problem,
    dtype: KernelDtype,
    has_bias: bool,
    config: SubpixelConfig,
    bits: int | None = None,
    *,
    activation: Activation = NO_ACTIVATION,
    x_aligned: bool = True,
    multiprocessors: int = H100_SXM.multiprocessors,
) -> Plan:
    """Return the plan of the sub-pixel kernel with the tiles of ``config``.

    Parameters
    ----------
    bits : int, optional
        Forces the index width (tests do).
    x_aligned : bool
        Whether the address of x is a multiple of 16 bytes.
    multiprocessors : int
        Of the device: its blocks share the tiles. Results do not depend on it.
    """
    math = MATHS[config.math]
    own_axes = axes(problem)
    depth, height, _ = own_axes
    layout = layout_of(problem, dtype, config)
    steps_w = steps_along_width(problem, config.step_offsets)
    co_tiles = -(-problem.out_channels_per_group // (CHANNELS * config.co_blocks))
    k_steps = -(-problem.in_channels_per_group // config.step_channels)
    tile = (config.tile_d, config.tile_h, config.tile_w)
    boxes = [-(-axis.positions // size) for axis, size in zip(own_axes, tile, strict=True)]
    tiles = problem.batch * problem.groups * co_tiles * prod(boxes)
    fragments = (
        problem.groups
        * co_tiles
        * k_steps
        * depth.kernel
        * height.kernel
        * steps_w
        * config.co_blocks
        * WARP
    )

    params = common_params(problem, has_bias, activation)
    params["co_tiles"] = co_tiles
    params["tiles"] = tiles
    for axis, size in zip(params["axis"], tile, strict=True):
        axis["tile"] = size
    gemm = params["gemm"]
    for name, divisor in (
        ("tile_h", config.tile_h),
        ("warps_m", config.warps_m),
        ("co_tiles", co_tiles),
        ("segments", boxes[2]),
        ("groups", problem.groups),
    ):
        gemm[name] = fast_divmod(divisor)
    for a in (0, 1):
        gemm["boxes"][a] = fast_divmod(boxes[a])
    for name, value in (
        ("stages", config.stages),
        ("stage_bytes", layout.stage_bytes),
        ("stage_weights", layout.stage_weights),
    ):
        gemm[name] = value
    fill_box_copy(
        gemm["x"],
        extent=problem.input,
        channels=problem.in_channels_per_group,
        box=(config.tile_d, layout.rows_h, layout.row),
        channel_pitch=layout.channel_pitch,
        copy_elements=copy_bytes(problem.input[2], dtype, x_aligned) // dtype.itemsize,
        threads=config.threads,
    )
    subpixel = params["subpixel"]
    for a, axis in enumerate(own_axes):
        offsets = offsets_of(axis)
        subpixel["first_offset"][a] = offsets.first
        subpixel["first_tap"][a] = offsets.first_tap
        subpixel["offsets"][a] = offsets.count
    subpixel["offsets"][2] = steps_w * config.step_offsets
    subpixel["step_offsets"] = config.step_offsets
    subpixel["step_channels"] = config.step_channels
    subpixel["co_blocks"] = config.co_blocks
    subpixel["row_warps"] = fast_divmod(config.row_warps)
    subpixel["phases"] = fast_divmod(depth.stride * height.stride)
    subpixel["phases_h"] = fast_divmod(height.stride)

    if bits is None:
        # Samples are found with 64-bit arithmetic in both widths.
        bits = index_bits(
            replace(problem, batch=1),
            tiles * offsets_of(depth).count * k_steps,
            fragments,
            # Steps to rows that do not exist.
            *(
                (size + axis.output) * axis.stride + axis.padding + axis.kernel
                for axis, size in zip(own_axes, tile, strict=True)
            ),
        )
    # With as many registers as a thread can have.
    resident = H100_SXM.blocks_per_multiprocessor(config.threads, 255, layout.total)
    pack = packing_launch("pack_subpixel", dtype, bits, math, params, fragments)
    multiply = Launch(
        kernel="convt3d_subpixel",
        options=variant_options(
            dtype,
            bits,
            activation,
            CONVT3D_MATH=math.number,
            CONVT3D_WARP_M_TILES=config.warp_m_tiles,
            CONVT3D_WARP_N_TILES=config.warp_n_tiles,
        ),
        grid=min(tiles, multiprocessors * max(1, resident)),
        block=config.threads,
        shared_bytes=layout.total,
        params=launch_params(params),
        roles=("x", "weight", "packed", "bias", "y"),
    )
    return Plan(
        "implicit_gemm",
        (multiply,),
        workspace_bytes=0,
        deterministic=True,
        packing=(pack,),
        packed_bytes=fragments * math.parts * FRAGMENT_BYTES,
    )
