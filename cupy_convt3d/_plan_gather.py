"""The launch of ``kernels_cu/convt3d_gather.cu``: columns, register tile, weight stage and grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._problem import Problem, coordinate_range
from cupy_convt3d._unit_rates import SECTOR

#: Register tiles (output channels, rows) of a thread, by bytes of the accumulator. The widest fill
#: 64 registers with sums; narrower ones waste no products when channels or rows are few.
TILES: dict[int, tuple[tuple[int, int], ...]] = {
    4: ((1, 1), (4, 1), (16, 1), (1, 4), (4, 4), (8, 4), (16, 4), (1, 8), (4, 8), (8, 8)),
    8: ((1, 1), (4, 1), (8, 1), (1, 4), (4, 4), (8, 4), (1, 8), (4, 8)),
    16: ((1, 1), (4, 1), (1, 4), (4, 4)),
}

#: As in the kernel: (tap, channel) pairs of a weight stage, taps among them, and phases along width
#: of a block.
STAGE_PAIRS = 256
MAX_STAGE_TAPS = 64
MAX_WIDTH_PHASES = 8

#: Taps along the rows of a unit at most.
MAX_UNIT_TAPS = MAX_STAGE_TAPS // MAX_WIDTH_PHASES

THREADS = 256


@dataclass(frozen=True, slots=True)
class GatherConfig:
    """The register tile of a thread, output channels and rows, and the phases of a block.

    A block owns one phase along width, or all of them (``whole_rows``): then it writes whole rows
    of the output, and lanes whose phase has fewer taps than another wait. The bits of the result
    are the same for every configuration.
    """

    tile_co: int
    tile_positions: int
    whole_rows: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """How the output is cut into columns; independent of the batch.

    ``rows`` is the axis that a column lies along, ``planes`` the other one of depth and height.
    """

    planes: Axis
    rows: Axis
    width: Axis
    along_depth: bool

    @property
    def row_spacing(self) -> int:
        """From one row of a column to its next, in positions: what one tap moves the input by."""
        step, stride = self.rows.input_step, self.rows.input_stride
        return step // stride if self.rows.most_taps > 1 and step % stride == 0 else 1

    @property
    def unit_taps(self) -> int:
        """Taps along the rows that share a window of x."""
        if self.row_spacing * self.rows.input_stride != self.rows.input_step:
            return 1
        return min(self.rows.most_taps, MAX_UNIT_TAPS)

    def row_tiles(self, tile_positions: int) -> int:
        """Return the columns that cover the rows of the longest phase."""
        spacing = self.row_spacing
        return -(-self.rows.positions // (tile_positions * spacing)) * spacing


def columns_of(problem: Problem) -> Columns:
    """Lay the columns along height, or along depth where that wastes less.

    The axis decides on the order of summation, so it must follow neither from a tile nor from the
    batch.
    """
    depth, height, width = axes(problem)
    choices = [Columns(depth, height, width, False), Columns(height, depth, width, True)]

    def cost(columns: Columns) -> float:
        widest = 8
        waste = columns.row_tiles(widest) * widest / columns.rows.positions
        # Loads of x: one for each row and tap without neighbours, few where many taps share them.
        return waste * (1 + 0.3 / columns.unit_taps)

    return min(choices, key=cost)


def can_have_whole_rows(problem: Problem) -> bool:
    """Return whether blocks can own several phases along width."""
    return 1 < problem.stride[2] <= MAX_WIDTH_PHASES


def plan_gather(
    problem: Problem,
    dtype: KernelDtype,
    has_bias: bool,
    bits: int | None = None,
    *,
    activation: Activation = NO_ACTIVATION,
    config: GatherConfig | None = None,
) -> Plan:
    """Return the plan of the gather kernel; ``bits`` forces the index width (tests do)."""
    config = config or choose_config(problem, dtype)
    columns = columns_of(problem)
    width_phases = columns.width.stride if config.whole_rows else 1
    unit_taps, stage_channels = choose_stage(problem)
    stage_units = _stage_units(columns, unit_taps, stage_channels, width_phases)

    row = columns.width.output if config.whole_rows else columns.width.positions
    row_tiles = columns.row_tiles(config.tile_positions)
    count = problem.batch * columns.planes.positions * row_tiles * row
    co_tiles = -(-problem.out_channels_per_group // config.tile_co)
    phases = columns.planes.phases * columns.rows.phases
    phases *= 1 if config.whole_rows else columns.width.phases
    tiles = -(-count // THREADS) * phases * problem.groups * co_tiles

    params = common_params(problem, has_bias, activation)
    if columns.along_depth:
        params["axis"][:2] = params["axis"][1::-1].copy()
    params["co_tiles"] = co_tiles
    params["tiles"] = tiles
    params["stage_channels"] = stage_channels
    params["stage_taps"] = fast_divmod(stage_units * unit_taps * width_phases)
    gather = params["gather"]
    gather["columns"] = count
    gather["row"] = fast_divmod(row)
    gather["batch"] = fast_divmod(max(1, problem.batch))
    gather["row_spacing"] = fast_divmod(columns.row_spacing)
    gather["input_spacing"] = columns.row_spacing * columns.rows.input_stride
    gather["width_phases"] = fast_divmod(width_phases)
    gather["unit_taps"] = unit_taps
    gather["stage_units"] = stage_units
    for name, extents in (
        ("x", problem.input),
        ("y", problem.output),
        ("weight", problem.kernel),
    ):
        steps = (extents[1] * extents[2], extents[2])
        gather[f"{name}_step"] = steps[::-1] if columns.along_depth else steps
    gather["x_volume"] = math.prod(problem.input)
    gather["y_volume"] = math.prod(problem.output)
    if bits is None:
        # Coordinates of a column's last rows, which may not exist.
        stray = (
            config.tile_positions
            * columns.row_spacing
            * columns.rows.stride
            * columns.rows.input_stride
        )
        furthest = max(coordinate_range(problem)) + 2 * stray
        taps = math.prod(axis.most_taps + MAX_STAGE_TAPS for axis in axes(problem))
        bits = index_bits(problem, tiles, count, furthest, taps * width_phases)
    launch = Launch(
        kernel="convt3d_gather",
        options=variant_options(
            dtype,
            bits,
            activation,
            CONVT3D_TILE_CO=config.tile_co,
            CONVT3D_TILE_POSITIONS=config.tile_positions,
        ),
        grid=min(tiles, INDEX32_LIMIT),
        block=THREADS,
        shared_bytes=0,
        params=launch_params(params),
        roles=("x", "weight", "bias", "y"),
    )
    return Plan("gather", (launch,), workspace_bytes=0, deterministic=True)


def choose_config(problem: Problem, dtype: KernelDtype) -> GatherConfig:
    """Return a good configuration for every device."""
    return GatherConfig(*choose_tile(problem, dtype), whole_rows=_pays_whole_rows(problem, dtype))


def choose_tile(problem: Problem, dtype: KernelDtype) -> tuple[int, int]:
    """Return the register tile that costs least for one tap of all outputs.

    Products are made for whole tiles, of channels and of rows. Issue slots and shared memory both
    count, because neither works at its peak while the other one does.
    """
    columns = columns_of(problem)
    taps = columns.unit_taps

    def cost(tile: tuple[int, int]) -> float:
        tile_co, rows = tile
        tiles = -(-problem.out_channels_per_group // tile_co) * columns.row_tiles(rows)
        issue = tile_instructions(tile, taps, dtype)
        return tiles * (issue + 0.5 * 4 * tile_wavefronts(tile, taps, dtype))

    return min(TILES[dtype.accumulator_bytes], key=cost)


def tile_instructions(tile: tuple[int, int], taps: float, dtype: KernelDtype) -> float:
    """Return the instructions of a warp for one tap and one channel of a tile.

    ``taps`` are those of a unit. Rounded from profiles of the kernel's PTX.
    """
    tile_co, rows = tile
    real_products = 4 if dtype.name.startswith("complex") else 1
    vectors = max(1, tile_co * dtype.accumulator_bytes / 16)
    loads = (rows + taps - 1) / taps
    return tile_co * rows * real_products + vectors + 2 * loads + 5 + 20 / taps


def tile_wavefronts(tile: tuple[int, int], taps: float, dtype: KernelDtype) -> float:
    """Return the wavefronts of shared memory and L1 for the same: of weights and of x."""
    tile_co, rows = tile
    weights = tile_co * dtype.accumulator_bytes / 4
    return weights + 1.25 * (rows + taps - 1) / taps * dtype.itemsize / 4


def lane_waste(width: Axis) -> float:
    """Return the taps that lanes of all phases along width go through, over those they have."""
    return width.most_taps * width.stride / width.kernel


def _pays_whole_rows(problem: Problem, dtype: KernelDtype) -> bool:
    """Whether writing every stride-th element costs more than lanes that wait.

    The factor is a modelled one: products that an H100 issues in the time in which its L2 cache
    takes 4 bytes.
    """
    if not can_have_whole_rows(problem):
        return False
    width = axes(problem)[2]
    products = problem.in_channels_per_group * math.prod(
        axis.kernel / axis.tap_step / axis.gcd for axis in axes(problem)
    )
    repeated = min(width.stride, SECTOR // dtype.itemsize) - 1
    return products * (lane_waste(width) - 1) <= 10 * repeated * dtype.itemsize / 4


def choose_stage(problem: Problem) -> tuple[int, int]:
    """Return the taps of a unit and the channels of a chunk, which fix the order of summation.

    So they follow from the problem alone. A few channels are enough where there are many taps: then
    the inputs that a block reads again for every tap stay in its L1 cache.
    """
    columns = columns_of(problem)
    unit_taps = columns.unit_taps
    # A block may own all phases along width, or one.
    phases = columns.width.stride if can_have_whole_rows(problem) else 1
    unit = unit_taps * phases
    taps = _units(columns, unit_taps) * unit
    channels = min(problem.in_channels_per_group, STAGE_PAIRS // min(taps, max(32, unit)))
    return unit_taps, channels


def _units(columns: Columns, unit_taps: int) -> int:
    """Return the units of the phase that has most."""
    row_units = -(-columns.rows.most_taps // unit_taps)
    return columns.planes.most_taps * columns.width.most_taps * row_units


def _stage_units(columns: Columns, unit_taps: int, stage_channels: int, width_phases: int) -> int:
    """Return the units of a stage: as many as the kernel's arrays hold."""
    taps = min(MAX_STAGE_TAPS, STAGE_PAIRS // stage_channels)
    return min(_units(columns, unit_taps), taps // (unit_taps * width_phases))
