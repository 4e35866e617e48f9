"""Which kernel a problem runs on, and with which tiles: candidates x can_run x cost.

Nothing here needs a GPU: a device is a `Device` record, a configuration a frozen record, and its
cost a model (``_cost.py``) or, where ``benchmarks/tune.py`` made a table for the device, a
measurement.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

from cupy_convt3d import _cost
from cupy_convt3d._cost import Config
from cupy_convt3d._device import Device
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._plan_depth_to_space import (
    DepthToSpaceConfig,
    fit_depth_to_space,
    is_depth_to_space,
    shared_bytes_of,
)
from cupy_convt3d._plan_gather import MAX_WIDTH_PHASES, GatherConfig, can_have_whole_rows
from cupy_convt3d._plan_gather import TILES as GATHER_TILES
from cupy_convt3d._plan_implicit_gemm import GemmConfig, fit_config, needs_64_bits, shared_layout
from cupy_convt3d._plan_scatter import ScatterConfig, scatter_config
from cupy_convt3d._plan_subpixel import SubpixelConfig, fit_subpixel, is_subpixel, layout_of
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import Math, maths_of
from cupy_convt3d._tuning import tuned_config
from cupy_convt3d._unit_rates import A100, H100_SXM, RTX_4090, UnitRates

#: The records of configurations.
RECORDS = (GatherConfig, ScatterConfig, GemmConfig, DepthToSpaceConfig, SubpixelConfig)

_NARROW = ((1, 4), (2, 4), (3, 4), (4, 4), (5, 4), (6, 4))

#: Tiles of 16 x 8 products of a warp in the implicit GEMM, along m and n, that fit 255 registers
#: without spills, by math. tf32x3 has sums of single k steps beside the large ones.
GEMM_TILES = {
    "float16": (*_NARROW, (7, 4)),
    "bfloat16": (*_NARROW, (7, 4)),
    "tf32": (*_NARROW, (7, 4), (9, 3)),
    "tf32x3": (*_NARROW[:-1], (6, 3), (7, 3)),
    "bf16x3": (*_NARROW, (7, 4), (9, 3)),
    "float64": ((1, 4), (2, 4), (3, 4)),
}
#: The same for depth to space, which loops over m tiles anyway, by bytes of a sum.
DEPTH_TO_SPACE_TILES = {4: ((1, 4), (2, 4), (4, 4)), 8: ((1, 4), (2, 4))}
#: The same for the sub-pixel kernel, by bytes of a sum: one m tile for each phase where depth and
#: height have two.
SUBPIXEL_TILES = {4: ((4, 6), (4, 4), (2, 4)), 8: ((4, 2), (2, 4))}
#: The first two with 64-bit indices, which take more registers, and the sub-pixel kernel with them.
TILES_64 = ((1, 4), (2, 4))
SUBPIXEL_TILES_64 = {4: ((4, 2), (2, 4)), 8: ((4, 1), (2, 2))}

#: Most tiles of a warp of 8 x 8 products along m, and tiles along n, of the implicit GEMM by wgmma,
#: that fit 255 registers without spills; where a problem needs fewer along m, it gets them.
WGMMA_TILES_OF = {
    "float16": ((32, 2), (16, 4), (10, 6), (7, 8)),
    "bfloat16": ((32, 2), (16, 4), (10, 6), (7, 8)),
    "tf32": ((32, 2), (16, 4), (10, 6), (7, 8)),
    "tf32x3": ((20, 2), (14, 4), (10, 6), (8, 8)),
    "bf16x3": ((32, 2), (14, 4), (9, 6), (6, 8)),
}
#: The same for depth to space.
DEPTH_TO_SPACE_WGMMA_TILES = {
    "float16": ((32, 2), (16, 4), (16, 2)),
    "bfloat16": ((32, 2), (16, 4), (16, 2)),
    "tf32": ((32, 2), (16, 4), (16, 2)),
    "tf32x3": ((16, 2), (8, 2)),
    "bf16x3": ((32, 2), (16, 4), (16, 2)),
}
#: Warps of a block along m and n for them.
WGMMA_WARPS = ((1, 8), (2, 4), (1, 4))
DEPTH_TO_SPACE_WGMMA_WARPS = ((1, 8), (1, 4))

#: Warps of a block along m and n.
WARPS = ((1, 8), (1, 6), (1, 4), (1, 2), (2, 4), (2, 3), (2, 2), (4, 2), (4, 1))

#: Least compute capability of the tensor-core kernels: that of mma.sync and cp.async.
TENSOR_CORES = 80
#: The compute capability that has wgmma.
HOPPER = 90


@functools.lru_cache(maxsize=1024)
def choose(
    problem: Problem,
    dtype: KernelDtype,
    algorithm: str,
    precision: str,
    deterministic: bool,
    device: Device,
) -> Config:
    """Return the configuration that should be fastest.

    Raises
    ------
    ValueError
        None of the algorithm's configurations can run; with the reason.
    """
    if algorithm == "auto" and deterministic:
        measured = tuned_config(device.name, problem, dtype.name, precision)
        if measured is not None:
            return config_of(measured)
    found = candidates(problem, dtype, algorithm, precision, deterministic, device)
    possible = [c for c in found if can_run(c, problem, dtype, device) is None]
    if not possible:
        raise ValueError(
            f"algorithm must be one that can run, got {algorithm!r}: {no_candidate(dtype, device)}"
        )
    rates = rates_of(device)
    return min(possible, key=lambda config: _cost.seconds(config, problem, dtype, rates))


def candidates(
    problem: Problem,
    dtype: KernelDtype,
    algorithm: str,
    precision: str,
    deterministic: bool,
    device: Device,
) -> list[Config]:
    """Return the configurations that are worth a look, in a fixed order.

    "auto" has those of every algorithm; of a scatter that needs atomics only if ``deterministic``
    is False.
    """
    found: list[Config] = []
    if algorithm in ("auto", "gather"):
        whole_rows = (False, True) if can_have_whole_rows(problem) else (False,)
        found += [
            GatherConfig(*tile, whole)
            for tile in GATHER_TILES[dtype.accumulator_bytes]
            for whole in whole_rows
        ]
    if algorithm in ("auto", "scatter"):
        scatter = scatter_config(problem, dtype)
        if algorithm == "scatter" or scatter.owns_output or not deterministic:
            found.append(scatter)
    if algorithm in ("auto", "implicit_gemm") and device.capability >= TENSOR_CORES:
        for math in maths_of(dtype, precision):
            found += _tensor_core_candidates(problem, dtype, math, device)
    return found


def _tensor_core_candidates(
    problem: Problem, dtype: KernelDtype, math: Math, device: Device
) -> list[Config]:
    wide = needs_64_bits(problem)
    # 64-bit indices take registers that its sums need.
    has_wgmma = device.capability == HOPPER and math.name in WGMMA_TILES_OF and not wide
    found: list[Config] = []
    if is_depth_to_space(problem):
        for tiles in TILES_64 if wide else DEPTH_TO_SPACE_TILES[dtype.accumulator_bytes]:
            for warps in WARPS:
                found += fit_depth_to_space(problem, dtype, math, tiles, warps, device.shared_bytes)
        if has_wgmma:
            for tiles in DEPTH_TO_SPACE_WGMMA_TILES[math.name]:
                # Whole multiprocessors, and halves: the deepest pipeline leaves no room for a
                # second block.
                for warps, share in itertools.product(DEPTH_TO_SPACE_WGMMA_WARPS, (1, 2)):
                    shared_bytes = device.shared_bytes // share
                    found += fit_depth_to_space(
                        problem, dtype, math, tiles, warps, shared_bytes, True
                    )
    if is_subpixel(problem):
        by_bytes = SUBPIXEL_TILES_64 if wide else SUBPIXEL_TILES
        for tiles, warps in itertools.product(by_bytes[dtype.accumulator_bytes], WARPS):
            subpixel = fit_subpixel(problem, dtype, math, tiles, warps, device.shared_bytes)
            if subpixel is not None:
                found.append(subpixel)
    steps = (1, 2) if problem.in_channels_per_group > math.step_k else (1,)
    shapes = [
        (tiles, warps, False)
        for tiles in (TILES_64 if wide else GEMM_TILES[math.name])
        for warps in WARPS
    ]
    if has_wgmma:
        shapes += [
            (tiles, warps, True) for tiles in WGMMA_TILES_OF[math.name] for warps in WGMMA_WARPS
        ]
    for (tiles, warps, wgmma), stages, stage_steps in itertools.product(shapes, (3, 2), steps):
        config = fit_config(
            problem, dtype, math, tiles, warps, device.shared_bytes, stages, stage_steps, wgmma
        )
        # Several depths of the pipeline may shrink to the same.
        if config is not None and config not in found:
            found.append(config)
    return found


def can_run(config: Config, problem: Problem, dtype: KernelDtype, device: Device) -> str | None:
    """Return why a configuration cannot run a problem on a device, or None if it can."""
    if isinstance(config, GatherConfig):
        if config.whole_rows and not can_have_whole_rows(problem):
            return f"whole rows need a stride of 2 to {MAX_WIDTH_PHASES} along W"
        return None
    if isinstance(config, ScatterConfig):
        return None
    if dtype.name.startswith("complex") or device.capability < TENSOR_CORES:
        return no_candidate(dtype, device)
    if isinstance(config, GemmConfig | DepthToSpaceConfig) and (
        config.wgmma and device.capability != HOPPER
    ):
        return f"wgmma needs compute capability 9.0, the device has {device.capability / 10}"
    if isinstance(config, DepthToSpaceConfig):
        if not is_depth_to_space(problem):
            return "depth to space needs kernel == stride, at most 2 along W, and no padding"
        _, inputs, stage = shared_bytes_of(problem, dtype, config)
        shared = inputs + config.stages * stage
    elif isinstance(config, SubpixelConfig):
        if not is_subpixel(problem):
            return "sub-pixel convolution needs a stride of 2 along W, and no dilation"
        phases = problem.stride[0] * problem.stride[1]
        if config.co_blocks * phases > config.warp_m_tiles * config.warps_m:
            return f"its blocks have too few m tiles for {phases} phases along depth and height"
        shared = layout_of(problem, dtype, config).total
    else:
        shared = shared_layout(problem, dtype, config).total
    if shared > device.shared_bytes:
        return f"it needs {shared} bytes of shared memory, the device has {device.shared_bytes}"
    return None


def no_candidate(dtype: KernelDtype, device: Device) -> str:
    """Return why there is no configuration at all."""
    if dtype.name.startswith("complex"):
        return "tensor cores have no complex numbers"
    if device.capability < TENSOR_CORES:
        return f"mma.sync needs compute capability 8.0, the device has {device.capability / 10}"
    return f"no tile fits {device.shared_bytes} bytes of shared memory"


def rates_of(device: Device) -> UnitRates:
    """Return the rates of the card that a device is most like, with its own multiprocessors."""
    by_capability = {80: A100, 86: RTX_4090, 89: RTX_4090, 120: RTX_4090}
    card = by_capability.get(device.capability, H100_SXM)
    return dataclasses.replace(card, multiprocessors=device.multiprocessors)


def config_of(fields: dict[str, Any]) -> Config:
    """Return the configuration whose fields a table of measurements holds.

    Raises
    ------
    ValueError
        No configuration has these fields.
    """
    for record in RECORDS:
        if {field.name for field in dataclasses.fields(record)} == set(fields):
            return record(**fields)
    raise ValueError(f"no configuration has the fields {sorted(fields)}")
