"""The launches of the scatter: how inputs and taps are cut into boxes, and what comes around."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._plan import Launch, Plan, Role, launch_params, variant_options
from cupy_convt3d._problem import Problem, Triple

#: Register tile (taps, output channels, positions) of a thread, by bytes of the accumulator: for
#: several output channels per group, and for one.
TILES: dict[int, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    4: ((4, 4, 4), (8, 1, 4)),
    8: ((2, 4, 4), (4, 1, 4)),
    16: ((2, 2, 4), (4, 1, 4)),
}

MAX_THREADS = 256

#: Dynamic shared memory of a block at most, in bytes. With the static weight stage (at most 8 KiB)
#: three blocks fit a multiprocessor of sm_80 and later data-centre parts, one fits sm_86, 89 and
#: 120.
SHARED_LIMIT = 48 * 1024

#: Elements of one (n, co) plane that a block of fill_bias and finish_sums writes.
PLANE_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Boxes:
    """Per axis: inputs and taps of a block, outputs that it reaches, outputs that it visits."""

    tile: Triple
    tap_slice: Triple
    reach: Triple
    box: Triple
    owns_output: bool


@dataclass(frozen=True, slots=True)
class ScatterConfig:
    """What the scatter does with its sums: stores them, or adds them with atomics."""

    owns_output: bool


def scatter_config(problem: Problem, dtype: KernelDtype) -> ScatterConfig:
    """Return how the scatter would run a problem."""
    several, single = TILES[dtype.accumulator_bytes]
    _, tile_co, tile_positions = several if problem.out_channels_per_group > 1 else single
    bytes_per_output = tile_co * dtype.accumulator_bytes
    boxes = choose_boxes(problem, bytes_per_output, MAX_THREADS * tile_positions)
    return ScatterConfig(boxes.owns_output)


def plan_scatter(
    problem: Problem,
    dtype: KernelDtype,
    has_bias: bool,
    bits: int | None = None,
    *,
    activation: Activation = NO_ACTIVATION,
) -> Plan:
    """Return the plan of the scatter; ``bits`` forces the index width (tests do).

    Where blocks own their outputs it is one launch. Otherwise `fill_bias` comes first, and
    `finish_sums` last if there is an activation or if 16-bit floats add up in a float32 workspace
    of y's shape.
    """
    several, single = TILES[dtype.accumulator_bytes]
    tile_taps, tile_co, tile_positions = several if problem.out_channels_per_group > 1 else single
    most_inputs = MAX_THREADS * tile_positions
    boxes = choose_boxes(problem, tile_co * dtype.accumulator_bytes, most_inputs)
    phase_axes = axes(problem)
    tiles = tuple(-(-a.input // t) for a, t in zip(phase_axes, boxes.tile, strict=True))
    slices = tuple(-(-a.kernel // t) for a, t in zip(phase_axes, boxes.tap_slice, strict=True))
    co_tiles = -(-problem.out_channels_per_group // tile_co)
    blocks = problem.batch * problem.groups * co_tiles * math.prod(tiles) * math.prod(slices)

    params = common_params(problem, has_bias, activation)
    for i, target in enumerate(params["axis"]):
        target["tile"] = boxes.tile[i]
        target["tiles"] = tiles[i]
        target["tap_slice"] = boxes.tap_slice[i]
        target["tap_slices"] = slices[i]
        target["reach"] = boxes.reach[i]
        target["tile_divmod"] = fast_divmod(boxes.tile[i])
        target["box"] = fast_divmod(boxes.box[i])
    params["co_tiles"] = co_tiles
    params["tiles"] = blocks
    params["owns_output"] = boxes.owns_output
    volume = math.prod(boxes.box)
    if bits is None:
        bits = index_bits(problem, blocks, volume + MAX_THREADS)

    in_workspace = dtype.itemsize < dtype.accumulator_bytes and not boxes.owns_output
    inputs = math.prod(boxes.tile)
    scatter = Launch(
        kernel="convt3d_scatter",
        options=variant_options(
            dtype,
            bits,
            activation if boxes.owns_output else NO_ACTIVATION,
            CONVT3D_TILE_CO=tile_co,
            CONVT3D_TILE_TAPS=tile_taps,
            CONVT3D_TILE_POSITIONS=tile_positions,
        ),
        grid=min(blocks, INDEX32_LIMIT),
        block=max(64, min(MAX_THREADS, -(-inputs // tile_positions // 32) * 32)),
        shared_bytes=math.prod(boxes.reach) * tile_co * dtype.accumulator_bytes,
        params=launch_params(params),
        roles=("x", "weight", "bias", "y", "workspace" if in_workspace else "y"),
    )
    if boxes.owns_output:
        return Plan("scatter", (scatter,), workspace_bytes=0, deterministic=True)

    plane = plane_params(problem, has_bias, activation)
    sums: Role = "workspace" if in_workspace else "y"
    fill = Launch(
        kernel="fill_bias",
        options=variant_options(dtype, bits),
        grid=min(int(plane["tiles"]), INDEX32_LIMIT),
        block=MAX_THREADS,
        shared_bytes=0,
        params=launch_params(plane),
        roles=("bias", sums),
    )
    if not in_workspace and activation == NO_ACTIVATION:
        return Plan("scatter", (fill, scatter), workspace_bytes=0, deterministic=False)
    finish = Launch(
        kernel="finish_sums",
        options=variant_options(dtype, bits, activation),
        grid=fill.grid,
        block=MAX_THREADS,
        shared_bytes=0,
        params=fill.params,
        roles=(sums, "y"),
    )
    workspace_bytes = math.prod(problem.y_shape) * dtype.accumulator_bytes if in_workspace else 0
    return Plan("scatter", (fill, scatter, finish), workspace_bytes, deterministic=False)


def plane_params(problem: Problem, has_bias: bool, activation: Activation) -> np.void:
    """Return the ``Params`` of `fill_bias` and `finish_sums`."""
    params = common_params(problem, has_bias, activation)
    plane = math.prod(problem.output)
    params["plane"] = plane
    params["plane_chunk"] = PLANE_CHUNK
    params["tiles"] = problem.batch * problem.out_channels * -(-plane // PLANE_CHUNK)
    return params


def choose_boxes(problem: Problem, bytes_per_output: int, most_inputs: int) -> Boxes:
    """Cut the inputs and the taps of a problem into the boxes of the blocks.

    The sums of a block must fit ``SHARED_LIMIT`` at ``bytes_per_output`` for each output reached.
    Taps are cut only if those of a single input do not fit. Among boxes of inputs with power-of-two
    (or whole) extents, the cheapest by a count of instructions per input wins.
    """
    phase_axes = axes(problem)
    most_outputs = SHARED_LIMIT // bytes_per_output
    tap_slice = _slice_taps(phase_axes, most_outputs)
    whole_kernel = tap_slice == tuple(a.kernel for a in phase_axes)

    def boxes_of(tile: Triple) -> Boxes | None:
        reach = _triple(
            (t - 1) * a.stride + (k - 1) * a.dilation + 1
            for t, k, a in zip(tile, tap_slice, phase_axes, strict=True)
        )
        if math.prod(tile) > most_inputs or math.prod(reach) > most_outputs:
            return None
        owns = whole_kernel and all(
            a.stride >= a.reach or t == a.input for t, a in zip(tile, phase_axes, strict=True)
        )
        box = _triple(
            _owned_extent(a, t) if owns else min(r, a.output)
            for a, t, r in zip(phase_axes, tile, reach, strict=True)
        )
        return Boxes(tile, tap_slice, reach, box, owns)

    tiles = itertools.product(*(_box_extents(axis.input, most_inputs) for axis in phase_axes))
    # A box of one input always fits, so there is a candidate.
    candidates = [boxes for tile in tiles if (boxes := boxes_of(_triple(tile))) is not None]
    return min(candidates, key=lambda boxes: _cost(problem, boxes))


def _triple(values: Iterable[int]) -> Triple:
    first, second, third = values
    return first, second, third


def _box_extents(extent: int, most: int) -> list[int]:
    """Return the powers of two below an extent, and the extent itself."""
    extents = [1 << i for i in range(most.bit_length()) if 1 << i < extent]
    return [*extents, extent] if extent <= most else extents


def _slice_taps(phase_axes: tuple[Axis, ...], most_outputs: int) -> Triple:
    """Halve the axis that reaches furthest until the taps of one input fit."""
    taps = [axis.kernel for axis in phase_axes]

    def reaches() -> list[int]:
        return [(k - 1) * a.dilation + 1 for k, a in zip(taps, phase_axes, strict=True)]

    while math.prod(reaches()) > most_outputs:
        spans = reaches()
        widest = spans.index(max(spans))
        taps[widest] = -(-taps[widest] // 2)
    return taps[0], taps[1], taps[2]


def _owned_extent(axis: Axis, tile: int) -> int:
    """Return how many outputs the block with most of them owns along an axis."""
    tiles = -(-axis.input // tile)
    if tiles == 1:
        return axis.output
    last_begin = max((tiles - 1) * tile * axis.stride - axis.padding, 0)
    return max(min(tile * axis.stride, axis.output), axis.output - last_begin)


def _cost(problem: Problem, boxes: Boxes) -> float:
    """Estimate the instructions of all blocks for one output channel (a model, not measured).

    For each input and tap: a product per input channel, and a load, an addition and a store in
    shared memory. For each output reached one store to clear it. For each visited about 16
    instructions to find its place, and an atomic, counted as 32, where the block does not own it;
    each row of them counts as 32 more, so that long rows win.
    """
    blocks = math.prod(
        -(-i // t) for i, t in zip(problem.input, boxes.tile, strict=True)
    ) * math.prod(-(-k // t) for k, t in zip(problem.kernel, boxes.tap_slice, strict=True))
    # Inputs are computed for whole warps of threads with several positions each.
    lanes = -(-math.prod(boxes.tile) // 128) * 128
    products = lanes * math.prod(boxes.tap_slice) * (problem.in_channels_per_group + 3)
    visited = math.prod(boxes.box) * (16 if boxes.owns_output else 48)
    rows = boxes.box[0] * boxes.box[1] * 32
    return float(blocks * (products + math.prod(boxes.reach) + visited + rows))
