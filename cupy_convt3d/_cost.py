"""What a configuration would cost on a card: the work of each unit over the unit's rate.

A model, nothing here is measured. Instruction counts are rounded from profiles of the kernels' PTX;
``benchmarks/speed_of_light.py`` counts instead of estimating. Work is that of ``NOMINAL_BATCH``
samples whatever the batch is: a choice that followed the batch would let it change the bits of a
sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._plan_depth_to_space import (
    DepthToSpaceConfig,
    m_tiles_of,
    shared_bytes_of,
)
from cupy_convt3d._plan_gather import (
    THREADS,
    GatherConfig,
    columns_of,
    tile_instructions,
    tile_wavefronts,
)
from cupy_convt3d._plan_implicit_gemm import GemmConfig, shared_layout
from cupy_convt3d._plan_scatter import TILES as SCATTER_TILES
from cupy_convt3d._plan_scatter import ScatterConfig
from cupy_convt3d._plan_subpixel import SubpixelConfig, layout_of, offsets_of, steps_along_width
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import FRAGMENT_BYTES, MATHS, WARP, WGMMA_ROWS, Math
from cupy_convt3d._unit_rates import SECTOR, UnitRates

Config = GatherConfig | ScatterConfig | GemmConfig | DepthToSpaceConfig | SubpixelConfig

#: Samples that a choice is made for.
NOMINAL_BATCH = 8

#: Instructions of a warp to load the x of one 16 x 8 tile and split it, by math.
X_INSTRUCTIONS = {
    "float16": 1.0,
    "bfloat16": 1.0,
    "tf32": 6.0,
    "tf32x3": 10.0,
    "bf16x3": 20.0,
    "float64": 2.0,
}
#: How many of them less it takes where the tiles are neighbours in a row.
ROW_SAVES = {
    "float16": 0.0,
    "bfloat16": 0.0,
    "tf32": 2.0,
    "tf32x3": 2.0,
    "bf16x3": 4.0,
    "float64": 1.0,
}
#: Wavefronts of shared memory for the same.
X_WAVEFRONTS = {
    "float16": 2.0,
    "bfloat16": 2.0,
    "tf32": 2.0,
    "tf32x3": 2.0,
    "bf16x3": 4.0,
    "float64": 2.0,
}


@dataclass(slots=True)
class Work:
    """Work of the units: multiply-adds, warp instructions, wavefronts, bytes."""

    tensor: float = 0.0
    fma: float = 0.0
    issue: float = 0.0
    shared: float = 0.0
    l2: float = 0.0
    dram: float = 0.0

    def times(self, rates: UnitRates, dtype: KernelDtype, tensor_rate: float) -> list[float]:
        """Return the seconds of each unit."""
        kind = "f64" if dtype.name in ("float64", "complex128") else "f32"
        return [
            self.tensor / tensor_rate,
            self.fma / rates.fma_per_second(kind),
            self.issue / rates.issues_per_second,
            self.shared / rates.shared_wavefronts_per_second,
            self.l2 / rates.l2_bytes_per_second,
            self.dram / rates.dram_bytes_per_second,
        ]


def pairs(axis: Axis) -> int:
    """Return how many (output, tap) pairs of one axis have an input."""
    count = 0
    for tap in range(axis.kernel):
        if axis.stride == 1:
            # Inputs lowest + output*input_stride in [0, input).
            lowest = axis.origin + axis.padding - tap * axis.dilation
            first = max(0, -(lowest // axis.input_stride))
            last = min(axis.output - 1, (axis.input - 1 - lowest) // axis.input_stride)
            count += max(0, last - first + 1)
            continue
        # Outputs i*stride + tap*dilation - padding in [0, output).
        shift = tap * axis.dilation - axis.padding
        first = max(0, -(shift // axis.stride)) if shift < 0 else 0
        last = min(axis.input - 1, (axis.output - 1 - shift) // axis.stride)
        count += max(0, last - first + 1)
    return count


def share_with_taps(axis: Axis) -> float:
    """Return the share of an axis's phases that have a tap."""
    return sum(axis.phase(phase).taps > 0 for phase in range(axis.phases)) / axis.phases


def seconds(config: Config, problem: Problem, dtype: KernelDtype, rates: UnitRates) -> float:
    """Return the modelled seconds of a configuration."""
    nominal = replace(problem, batch=NOMINAL_BATCH)
    if isinstance(config, GemmConfig):
        return _implicit_gemm(config, nominal, dtype, rates)
    if isinstance(config, DepthToSpaceConfig):
        return _depth_to_space(config, nominal, dtype, rates)
    if isinstance(config, SubpixelConfig):
        return _subpixel(config, nominal, dtype, rates)
    if isinstance(config, GatherConfig):
        return _gather(config, nominal, dtype, rates)
    return _scatter(config, nominal, dtype, rates)


def compulsory_bytes(problem: Problem, dtype: KernelDtype) -> int:
    """Return the bytes of x, the weights and y."""
    shapes = (problem.x_shape, problem.weight_shape, problem.y_shape)
    return dtype.itemsize * sum(math.prod(shape) for shape in shapes)


def overlapped(times: list[float]) -> float:
    """Return the time of units that work at the same time: no two of them do so perfectly."""
    slowest = max(times)
    return slowest + 0.1 * (sum(times) - slowest)


def _stretch(blocks: float, rates: UnitRates, held: int, threads: int) -> float:
    """Return by how much a grid that does not fill all multiprocessors stretches the time.

    Of the last blocks, fewer than fill all multiprocessors, each has one to itself as long as there
    are any. A scheduler without a warp issues nothing.
    """
    waves = blocks // (held * rates.multiprocessors)
    rest = math.ceil((blocks - waves * held * rates.multiprocessors) / rates.multiprocessors)
    warps = min(held, math.ceil(blocks / rates.multiprocessors)) * threads / WARP
    tail = (waves * held + rest) * rates.multiprocessors / blocks
    return tail * max(1.0, rates.issue_slots_per_clock / warps)


def blocks_at_a_time(rates: UnitRates, threads: int, sums: int, shared: int) -> int:
    """Return how many blocks a multiprocessor holds; ``sums``: registers of a thread for them."""
    registers = min(255, 130 + sums)
    return max(1, rates.blocks_per_multiprocessor(threads, registers, shared))


@dataclass(frozen=True, slots=True)
class _Step:
    """The work of one warp for one k step of one tap; ``tiles`` of 16 x 8 sums."""

    tiles: int
    tensor: float
    issue: float
    shared: float


def _step_of_warp(config: GemmConfig | DepthToSpaceConfig) -> _Step:
    mma = MATHS[config.math]
    m, n = config.warp_m_tiles, config.warp_n_tiles
    # Both kinds load x into registers.
    issue = n * X_INSTRUCTIONS[mma.name] + 12
    if isinstance(config, DepthToSpaceConfig):
        # Of neighbours in a row, which need no addresses of their own.
        issue -= n * ROW_SAVES[mma.name]
    shared = n * X_WAVEFRONTS[mma.name]
    if config.wgmma:
        blocks, tiles = n // 2, m * (n // 2)
        # A block of 64 rows with its fences; tf32x3 adds the sums of a k step itself.
        issue += blocks * (mma.terms + 6) + (tiles * 4 if mma.name == "tf32x3" else 0)
        # Four warps share the weights of an instruction.
        shared += blocks * mma.terms * m * WGMMA_ROWS * 32 / 128 / 4
    else:
        tiles = m * n
        issue += tiles * mma.terms + m * mma.parts
        shared += m * mma.parts * WARP * FRAGMENT_BYTES / 128
    return _Step(tiles, tiles * mma.terms * 16 * 8 * mma.step_k, issue, shared)


def _implicit_gemm(
    config: GemmConfig, problem: Problem, dtype: KernelDtype, rates: UnitRates
) -> float:
    mma = MATHS[config.math]
    depth, height, width = axes(problem)
    layout = shared_layout(problem, dtype, config)
    slices = -(-width.kernel // config.tap_slice)
    k_steps = -(-problem.in_channels_per_group // mma.step_k)
    co_tiles = -(-problem.out_channels_per_group // config.co_tile)
    blocks = (
        problem.batch
        * problem.groups
        * co_tiles
        * -(-width.output // config.segment)
        * -(-depth.positions // config.tile_d)
        * -(-height.positions // config.tile_h)
        * depth.phases
        * height.phases
    )
    warps = config.warps_m * config.warps_n
    # Averages over the blocks of a plane; boxes of several rows meet about as many taps as one.
    taps_d, taps_h = pairs(depth) / depth.output, pairs(height) / height.output
    taps_w = pairs(width) / width.output
    met_h = share_with_taps(height)
    met = share_with_taps(depth) * met_h
    steps = slices * taps_d * taps_h * k_steps
    step = _step_of_warp(config)

    main = Work(dram=compulsory_bytes(problem, dtype))
    main.tensor = blocks * warps * steps * step.tensor
    # Of the rows that meet a tap: the others load nothing, and sum nothing.
    taps_of_row = max(1.0, taps_h / met_h) if met_h else 0.0
    loads = slices * taps_d * met_h * max(1.0, taps_of_row / config.stage_taps_h)
    loads *= -(-k_steps // config.stage_steps)
    stage_taps = min(taps_of_row, config.stage_taps_h)
    rows_h = config.tile_h + (stage_taps - 1) * height.input_step
    x_bytes = (
        config.stage_steps * mma.step_k * config.tile_d * rows_h * config.tile_w * dtype.itemsize
    )
    weight_bytes = (
        config.stage_steps * stage_taps * config.m_tiles * mma.parts * WARP * FRAGMENT_BYTES
    )
    stage_bytes = x_bytes + weight_bytes
    main.issue = blocks * (
        warps * (300 + steps * step.issue) + loads * (stage_bytes / 16 / WARP * 6 + warps * 150)
    )
    main.shared = blocks * (warps * steps * step.shared + loads * stage_bytes / 128)
    main.l2 = blocks * loads * stage_bytes

    rest = Work()
    outputs = config.co_tile * config.rows * config.segment
    items = -(-config.co_tile // config.sum_channels) * config.rows * config.segment
    per_warp = dtype.accumulator_bytes / 4
    rest.issue = blocks * (
        slices * (met * warps * step.tiles * 5.2 + items / WARP * 70)
        + outputs / WARP * (1.5 * slices + 3.0 + 1.6 * taps_w * met)
    )
    rest.shared = (
        blocks * per_warp * met * (warps * step.tiles * 4 * slices + outputs / WARP * taps_w * 1.3)
    )
    # Rows that begin inside a sector write its parts one after the other.
    broken = 1.2 if width.output * dtype.itemsize % SECTOR else 1.0
    rest.l2 = math.prod(problem.y_shape) * dtype.itemsize * broken

    sums = step.tiles * 4 * dtype.accumulator_bytes // 4
    held = blocks_at_a_time(rates, config.threads, sums, layout.total)
    rate = tensor_rate(rates, mma, config.wgmma)
    main_times = main.times(rates, dtype, rate)
    rest_times = rest.times(rates, dtype, rate)
    if held > 1:
        time = overlapped([a + b for a, b in zip(main_times, rest_times, strict=True)])
    else:
        # One block at a time: its epilogue waits for its products.
        time = overlapped(main_times) + overlapped(rest_times)
    return time * _stretch(blocks, rates, held, config.threads)


def tensor_rate(rates: UnitRates, mma: Math, wgmma: bool = False) -> float:
    """Return the multiply-adds per second of the instruction behind a math."""
    kind = {"float64": "f64", "tf32": "tf32", "tf32x3": "tf32"}.get(mma.name, "f16")
    if wgmma:
        return rates.wgmma_per_second(kind)
    return rates.mma_per_second(kind, "m8n8k4")


def _depth_to_space(
    config: DepthToSpaceConfig, problem: Problem, dtype: KernelDtype, rates: UnitRates
) -> float:
    mma = MATHS[config.math]
    _, inputs, stage_bytes = shared_bytes_of(problem, dtype, config)
    k_steps = -(-problem.in_channels_per_group // mma.step_k)
    m_tiles = m_tiles_of(problem, config.wgmma)
    parts = -(-m_tiles // config.part_m_tiles)
    blocks = (
        problem.batch * problem.groups * parts * -(-math.prod(problem.input) // config.positions)
    )
    stage_m = config.warps_m * config.warp_m_tiles
    m_stages = -(-min(config.part_m_tiles, m_tiles) // stage_m)
    warps = config.warps_m * config.warps_n
    step = _step_of_warp(config)
    steps = m_stages * k_steps
    stages = m_stages * -(-k_steps // config.stage_steps)
    weights = stages * stage_bytes

    work = Work(dram=compulsory_bytes(problem, dtype))
    work.tensor = blocks * warps * steps * step.tensor
    stored = m_stages * (step.tiles * 14 + config.warp_m_tiles * 30)
    work.issue = blocks * (
        warps * (400 + stages * 80 + steps * step.issue + stored)
        + (inputs + weights) / 16 / WARP * 6
    )
    work.shared = blocks * (warps * steps * step.shared + (inputs + weights) / 128)
    work.l2 = blocks * (inputs + weights) + math.prod(problem.y_shape) * dtype.itemsize
    shared = inputs + config.stages * stage_bytes
    sums = step.tiles * 4 * dtype.accumulator_bytes // 4
    held = blocks_at_a_time(rates, config.threads, sums, shared)
    time = overlapped(work.times(rates, dtype, tensor_rate(rates, mma, config.wgmma)))
    if held == 1:
        # Inputs arrive before the first product.
        time += blocks * inputs / rates.l2_bytes_per_second
    return time * _stretch(blocks, rates, held, config.threads)


def _subpixel(
    config: SubpixelConfig, problem: Problem, dtype: KernelDtype, rates: UnitRates
) -> float:
    mma = MATHS[config.math]
    depth, height, width = axes(problem)
    layout = layout_of(problem, dtype, config)
    k_steps = -(-problem.in_channels_per_group // config.step_channels)
    steps_w = steps_along_width(problem, config.step_offsets)
    offsets_d, offsets_h = offsets_of(depth).count, offsets_of(height).count
    co_tiles = -(-problem.out_channels_per_group // (8 * config.co_blocks))
    blocks = problem.batch * problem.groups * co_tiles
    for axis, size in zip(
        (depth, height, width), (config.tile_d, config.tile_h, config.tile_w), strict=True
    ):
        blocks *= -(-axis.positions // size)
    warps = config.warps_m * config.warps_n
    n = config.warp_n_tiles
    # Of a warp: fragments of x, and products of those with m tiles.
    fragments = offsets_d * offsets_h * k_steps * steps_w
    taps = depth.kernel * height.kernel * k_steps * steps_w * config.co_blocks / config.warps_m
    # Elements of 2 bytes are loaded one by one.
    instructions = X_INSTRUCTIONS[mma.name] - ROW_SAVES[mma.name]
    if dtype.itemsize == 2:
        instructions = 7.0
    wavefronts = 4.0 if dtype.itemsize == 2 else X_WAVEFRONTS[mma.name]

    work = Work(dram=compulsory_bytes(problem, dtype))
    work.tensor = blocks * warps * taps * n * mma.terms * 16 * 8 * mma.step_k
    loads = offsets_d * k_steps
    stage_taps = depth.kernel * height.kernel / offsets_d
    weights = stage_taps * steps_w * config.co_blocks * mma.parts * WARP * FRAGMENT_BYTES
    stage_bytes = layout.stage_weights + weights
    # 4 outputs of a lane are stored together only if rows begin at multiples of that.
    whole = width.output % 4 == 0
    tiles = config.warp_m_tiles * n
    adds = 4 if mma.name == "tf32x3" else 0
    work.issue = blocks * (
        warps
        * (
            500
            + fragments * (n * instructions + 20)
            + taps * (n * (mma.terms + adds) + mma.parts + 6)
            + tiles * (30 if whole else 45)
        )
        + loads * (stage_bytes / 16 / WARP * 6 + warps * 80)
    )
    work.shared = blocks * (
        warps * (fragments * n * wavefronts + taps * mma.parts * WARP * FRAGMENT_BYTES / 128)
        + loads * stage_bytes / 128
    )
    outputs = math.prod(problem.y_shape) * dtype.itemsize
    work.l2 = blocks * loads * stage_bytes + outputs * (1 if whole else 4)
    sums = tiles * 4 * dtype.accumulator_bytes // 4
    held = blocks_at_a_time(rates, config.threads, sums, layout.total)
    time = overlapped(work.times(rates, dtype, tensor_rate(rates, mma)))
    return time * _stretch(blocks, rates, held, config.threads)


def _products(problem: Problem) -> int:
    """Return the products that land in the output."""
    found = math.prod(pairs(axis) for axis in axes(problem))
    return problem.batch * problem.out_channels * problem.in_channels_per_group * found


def _real_products(dtype: KernelDtype) -> int:
    """Return the real products of one product."""
    return 4 if dtype.name.startswith("complex") else 1


def _gather(config: GatherConfig, problem: Problem, dtype: KernelDtype, rates: UnitRates) -> float:
    columns_of_problem = columns_of(problem)
    planes, rows, width = (
        columns_of_problem.planes,
        columns_of_problem.rows,
        columns_of_problem.width,
    )
    tile = (config.tile_co, config.tile_positions)
    co_tiles = -(-problem.out_channels_per_group // config.tile_co)
    columns = (
        problem.batch
        * problem.groups
        * co_tiles
        * planes.output
        * columns_of_problem.row_tiles(config.tile_positions)
        * rows.phases
        * width.output
    )
    taps = pairs(rows) / rows.output
    unit_taps = min(max(taps, 1.0), columns_of_problem.unit_taps)
    # Lanes of all phases along width go through the taps of the phase that has most.
    width_taps = width.most_taps if config.whole_rows else pairs(width) / width.output
    column_taps = taps * width_taps * pairs(planes) / planes.output
    products = columns * column_taps * problem.in_channels_per_group
    outputs = math.prod(problem.y_shape)

    work = Work(dram=compulsory_bytes(problem, dtype))
    work.fma = products * math.prod(tile) * _real_products(dtype)
    staged = column_taps * (width.stride if config.whole_rows else 1) * config.tile_co
    work.issue = (
        # Rows at a border are tested one by one.
        products * tile_instructions(tile, unit_taps, dtype) * 1.08
        + columns * (350 + 25 * staged * problem.in_channels_per_group / THREADS)
        + outputs * 7
    ) / WARP
    # Shared memory does not reach its peak while as many instructions are issued.
    work.shared = products / WARP * tile_wavefronts(tile, unit_taps, dtype) / 0.8
    repeated = 1 if config.whole_rows else min(width.stride, SECTOR // dtype.itemsize)
    loads = products * (config.tile_positions + unit_taps - 1) / unit_taps
    # Rows begin anywhere in a sector.
    work.l2 = outputs * dtype.itemsize * (repeated + 0.3) + 0.3 * loads * dtype.itemsize
    if repeated > 1:
        # Sectors that leave the L2 cache between their writes; how many is a guess.
        work.dram += 0.25 * outputs * dtype.itemsize
    # Several blocks share a multiprocessor, so a partly filled last wave costs little: only a grid
    # that leaves multiprocessors idle counts.
    idle = rates.multiprocessors * THREADS / columns
    return overlapped(work.times(rates, dtype, 1.0)) * max(1.0, idle)


def _scatter(
    config: ScatterConfig, problem: Problem, dtype: KernelDtype, rates: UnitRates
) -> float:
    several, single = SCATTER_TILES[dtype.accumulator_bytes]
    tile_taps, tile_co, _ = several if problem.out_channels_per_group > 1 else single
    co_tiles = -(-problem.out_channels_per_group // tile_co)
    inputs = math.prod(problem.input)
    taps = math.prod(problem.kernel)
    tap_tiles = -(-taps // tile_taps)
    columns = problem.batch * problem.groups * co_tiles * tile_co * tap_tiles * tile_taps * inputs
    products = columns * problem.in_channels_per_group
    outputs = math.prod(problem.y_shape)
    work = Work(dram=compulsory_bytes(problem, dtype))
    work.fma = products * _real_products(dtype)
    # Small boxes leave half of the lanes of a block without an input.
    work.issue = (
        products * 2 * (1.2 + 3.0 / (tile_taps * tile_co)) * _real_products(dtype)
        + columns * 8
        + outputs * 30
    ) / WARP
    work.shared = columns * 3 / WARP * dtype.accumulator_bytes / 4
    work.l2 = outputs * dtype.accumulator_bytes * 2
    if not config.owns_output:
        # Filled, added to by several blocks, and read again for 16-bit results.
        work.l2 += outputs * dtype.accumulator_bytes * 4
        work.dram += outputs * dtype.accumulator_bytes * 2
    return overlapped(work.times(rates, dtype, 1.0))
