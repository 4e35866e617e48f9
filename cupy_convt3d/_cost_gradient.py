"""What a configuration of a gradient would cost on a card; a model like ``_cost.py``."""

from __future__ import annotations

import math
from dataclasses import replace

from cupy_convt3d._cost import (
    NOMINAL_BATCH,
    Work,
    blocks_at_a_time,
    compulsory_bytes,
    overlapped,
    pairs,
    tensor_rate,
)
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._phase import axes
from cupy_convt3d._plan_grad_input import GradInputConfig, layout_of
from cupy_convt3d._plan_grad_weight import GradWeightConfig, shared_bytes_of
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import FRAGMENT_BYTES, MATHS, WARP, copy_bytes
from cupy_convt3d._unit_rates import UnitRates

#: Instructions of a warp to load a fragment of B element by element and split it, by math, and of
#: a fragment of A from shared memory.
B_INSTRUCTIONS = {
    "float16": 7.0,
    "bfloat16": 7.0,
    "tf32": 6.0,
    "tf32x3": 10.0,
    "bf16x3": 20.0,
    "float64": 2.0,
}
A_INSTRUCTIONS = {
    "float16": 14.0,
    "bfloat16": 14.0,
    "tf32": 12.0,
    "tf32x3": 20.0,
    "bf16x3": 40.0,
    "float64": 4.0,
}
#: Wavefronts of shared memory for a fragment of B, if its columns lie in different banks; one of A
#: has twice as many.
B_WAVEFRONTS = {
    "float16": 4.0,
    "bfloat16": 4.0,
    "tf32": 2.0,
    "tf32x3": 2.0,
    "bf16x3": 4.0,
    "float64": 2.0,
}


def _copies(elements: float, extent: int, dtype: KernelDtype) -> float:
    """Return the warp instructions that copy so many elements of rows of ``extent``."""
    unit = max(4, copy_bytes(extent, dtype, aligned=True)) / dtype.itemsize
    return elements / unit / WARP * 5


def grad_input_seconds(
    config: GradInputConfig, problem: Problem, dtype: KernelDtype, rates: UnitRates
) -> float:
    """Return the modelled seconds of the gradient of the input on tensor cores.

    ``problem`` is that of `input_gradient`.
    """
    problem = replace(problem, batch=NOMINAL_BATCH)
    mma = MATHS[config.math]
    depth, height, width = axes(problem)
    layout = layout_of(problem, dtype, config)
    k_steps = -(-problem.in_channels_per_group // mma.step_k)
    blocks = (
        problem.batch
        * problem.groups
        * -(-problem.out_channels_per_group // (16 * config.m_tiles))
        * -(-width.output // config.segment)
        * -(-depth.output // config.tile_d)
        * -(-height.output // config.tile_h)
    )
    warps = config.warps_m * config.warps_n
    m, n = config.warp_m_tiles, config.warp_n_tiles
    # Averages over the blocks of a plane.
    taps_d, taps_h = pairs(depth) / depth.output, pairs(height) / height.output
    steps = taps_d * taps_h * width.kernel * k_steps
    loads = taps_d * max(1.0, taps_h / config.stage_taps_h) * k_steps
    x_elements = mma.step_k * config.tile_d * layout.rows_h * layout.row
    weight_bytes = (
        width.kernel * config.stage_taps_h * config.m_tiles * mma.parts * WARP * FRAGMENT_BYTES
    )
    stage_bytes = x_elements * dtype.itemsize + weight_bytes
    conflicts = math.gcd(width.input_stride, 4)

    work = Work(dram=compulsory_bytes(problem, dtype))
    work.tensor = blocks * warps * steps * m * n * mma.terms * 16 * 8 * mma.step_k
    per_step = m * n * mma.terms + m * mma.parts + n * B_INSTRUCTIONS[mma.name] + 12
    work.issue = blocks * (
        warps * (300 + steps * per_step + m * n * 20)
        + loads
        * (
            _copies(x_elements, problem.input[2], dtype)
            + weight_bytes / 16 / WARP * 5
            + warps * 100
        )
    )
    work.shared = blocks * (
        warps * steps * (m * mma.parts * 4 + n * B_WAVEFRONTS[mma.name] * conflicts)
        + loads * stage_bytes / 128
    )
    work.l2 = blocks * loads * stage_bytes + math.prod(problem.y_shape) * dtype.itemsize
    return _seconds(work, config.threads, m * n, layout.total, blocks, dtype, mma.name, rates)


def grad_weight_seconds(
    config: GradWeightConfig, problem: Problem, dtype: KernelDtype, rates: UnitRates
) -> float:
    """Return the modelled seconds of the gradient of the weights, all splits together."""
    depth, height, width = axes(problem)
    channels = (problem.in_channels_per_group, problem.out_channels_per_group)
    tiles = (
        problem.groups
        * -(-channels[0] // config.ci_tile)
        * -(-channels[1] // config.co_tile)
        * -(-height.kernel // config.taps_h)
        * -(-width.kernel // config.taps_w)
    )
    # Rows of x that a block goes through for one of its taps along depth, of all splits.
    rows = problem.batch * pairs(depth) * height.input
    positions = rows * -(-width.input // config.segment) * config.segment
    y_row = width.stride * config.segment + (config.taps_w - 1) * width.dilation
    y_rows = height.stride + (config.taps_h - 1) * height.dilation / config.tile_h
    segments = rows * -(-width.input // config.segment)
    x_elements = positions * config.ci_tile
    y_elements = segments * y_rows * y_row * config.co_tile
    blocks = tiles * depth.kernel * config.splits
    item_rows = tiles * positions / config.shares

    work = Work(dram=compulsory_bytes(problem, dtype))
    loaded = tiles * (x_elements + y_elements) * dtype.itemsize
    if config.math:
        mma = MATHS[config.math]
        m, n = config.tile
        warp_steps = item_rows * config.threads / WARP / mma.step_k
        work.tensor = warp_steps * m * n * mma.terms * 16 * 8 * mma.step_k
        work.issue = warp_steps * (
            m * n * mma.terms + m * A_INSTRUCTIONS[mma.name] + n * B_INSTRUCTIONS[mma.name] + 12
        )
        conflicts = math.gcd(width.stride, 4)
        work.shared = warp_steps * (2 * m + n * conflicts) * B_WAVEFRONTS[mma.name] + loaded / 128
        sums = m * n
    else:
        ci, co = config.tile
        real = 4 if dtype.name.startswith("complex") else 1
        threads = item_rows * config.threads
        work.fma = threads * ci * co * real
        work.issue = threads / WARP * (ci * co * real + 2 * (ci + co) + 6)
        work.shared = threads / WARP * (ci + 1.5 * co) * max(1.0, dtype.itemsize / 4)
        sums = ci * co // 4
    work.issue += tiles * (
        _copies(x_elements, problem.input[2], dtype) + _copies(y_elements, problem.output[2], dtype)
    )
    sums_bytes = (
        math.prod(problem.weight_shape) * config.splits * config.shares * dtype.accumulator_bytes
    )
    work.l2 = loaded + 2 * sums_bytes
    shared = shared_bytes_of(problem, dtype, config)
    return _seconds(work, config.threads, sums, shared, blocks, dtype, config.math, rates)


def _seconds(
    work: Work,
    threads: int,
    tiles: int,
    shared: int,
    blocks: int,
    dtype: KernelDtype,
    mma: str | None,
    rates: UnitRates,
) -> float:
    """Return the time of the slowest unit, stretched by the last wave; ``tiles`` of sums."""
    sums = tiles * dtype.accumulator_bytes
    held = blocks_at_a_time(rates, threads, sums, shared)
    tensor = tensor_rate(rates, MATHS[mma]) if mma else 1.0
    waves = blocks / (held * rates.multiprocessors)
    # A grid of less than a wave leaves multiprocessors idle.
    tail = max(1.0, rates.multiprocessors / blocks) if waves < 1 else math.ceil(waves) / waves
    return overlapped(work.times(rates, dtype, tensor)) * tail
