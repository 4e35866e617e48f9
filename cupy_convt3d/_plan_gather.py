"""The launch of ``kernels_cu/convt3d_gather.cu``: register tile, weight stage and grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._phase import axes
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._problem import Problem

#: Register tiles (output channels, positions) of a thread, by bytes of the accumulator. The widest
#: fills 64 registers with sums; narrower ones waste no products when there are few output channels.
TILES: dict[int, tuple[tuple[int, int], ...]] = {
    4: ((1, 4), (4, 4), (8, 4), (16, 4)),
    8: ((1, 4), (4, 4), (8, 4)),
    16: ((1, 4), (4, 4)),
}

#: As in the kernel: (tap, channel) pairs of a weight stage, and taps among them.
STAGE_PAIRS = 256
MAX_STAGE_TAPS = 64

THREADS = 256


@dataclass(frozen=True, slots=True)
class GatherConfig:
    """The register tile of a thread: output channels and positions."""

    tile_co: int
    tile_positions: int


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
    config = config or GatherConfig(*choose_tile(problem.out_channels_per_group, dtype))
    tile_co, tile_positions = config.tile_co, config.tile_positions
    phase_axes = axes(problem)
    most_taps = math.prod(axis.most_taps for axis in phase_axes)
    stage_taps, stage_channels = choose_stage(most_taps, problem.in_channels_per_group)

    positions = problem.batch * math.prod(axis.positions for axis in phase_axes)
    position_tiles = -(-positions // (THREADS * tile_positions))
    phases = math.prod(axis.phases for axis in phase_axes)
    co_tiles = -(-problem.out_channels_per_group // tile_co)
    tiles = position_tiles * phases * problem.groups * co_tiles

    params = common_params(problem, has_bias, activation)
    params["co_tiles"] = co_tiles
    params["tiles"] = tiles
    params["stage_channels"] = stage_channels
    params["stage_taps"] = fast_divmod(stage_taps)
    if bits is None:
        bits = index_bits(problem, tiles, positions, most_taps)
    launch = Launch(
        kernel="convt3d_gather",
        options=variant_options(
            dtype, bits, activation, CONVT3D_TILE_CO=tile_co, CONVT3D_TILE_POSITIONS=tile_positions
        ),
        grid=min(tiles, INDEX32_LIMIT),
        block=THREADS,
        shared_bytes=0,
        params=launch_params(params),
        roles=("x", "weight", "bias", "y"),
    )
    return Plan("gather", (launch,), workspace_bytes=0, deterministic=True)


def choose_tile(out_channels: int, dtype: KernelDtype) -> tuple[int, int]:
    """Return the register tile that makes the fewest products that are thrown away.

    Products are made for whole tiles of output channels. Among tiles that waste equally, the widest
    wins: it reuses each input most.
    """
    return min(
        TILES[dtype.accumulator_bytes],
        # A narrow tile loads x more often: 1/4 of an instruction a product is about what it costs.
        key=lambda tile: (-(-out_channels // tile[0])) * (tile[0] + 4),
    )


def choose_stage(most_taps: int, in_channels: int) -> tuple[int, int]:
    """Return (taps, channels) of a weight stage: at most ``STAGE_PAIRS`` pairs.

    At least 8 taps are staged together where there are as many, because the weights of neighbouring
    taps are neighbours in memory.
    """
    channels = min(in_channels, STAGE_PAIRS // min(most_taps, 8))
    taps = min(most_taps, STAGE_PAIRS // channels, MAX_STAGE_TAPS)
    return taps, channels
