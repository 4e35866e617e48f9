"""Turn the counters of a kernel into the time that each unit of a card needs for them.

Every time here is *modelled*: work counted, over a published rate (``cupy_convt3d._unit_rates``).
A kernel is never faster than its slowest unit; it is slower where units wait for each other,
because latencies and the interplay of units are not modelled.

Work is that of the counted blocks, times the blocks of the grid over the counted ones.

===========  ==========================================================================
unit         work
===========  ==========================================================================
tensor       multiply-adds of ``mma.sync`` and of ``wgmma``, by shape and type, each at the
             rate of its instruction
fma, fp64    float32 and float64 multiply-adds, additions and products, in whole warps
shared/L1    wavefronts of shared memory (128 bytes each; cp.async writes count as ideal
             ones); what wgmma reads of B, which the counters leave out; and, over the same
             data path, sectors of global loads and stores, four a wavefront
issue        PTX instructions of warps. ptxas fuses, splits, hoists and deletes: what is
             issued in the end may be less or more
L2           sectors that reach the L2 cache: all of cp.async, stores and atomics. Of the
             loads at least each sector once that the counted blocks load (an L1 cache that
             never forgets, and what they share for free), at most all (no L1 cache). The
             lower figure counts; the upper one is given beside it
DRAM         see `dram_bytes`
===========  ==========================================================================

Integer and conversion instructions are in "issue" alone, although some run at half rate.

The counters count a wgmma once for each of its four warps, and do not tell whether A comes from
registers or from shared memory. Registers are assumed; from shared memory an instruction would read
16 wavefronts more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._problem import Problem
from cupy_convt3d._unit_rates import SECTOR, WARP, UnitRates

#: Bytes of a wavefront: all banks of shared memory once.
WAVEFRONT = 128

#: Rows of a wgmma's A, more than any ``mma.sync`` has.
WGMMA_ROWS = 64

#: Bytes of an element of a wgmma's factors.
ELEMENT = {"tf32": 4, "f16": 2, "bf16": 2}


def axis_products(axis: Axis) -> int:
    """Return the pairs of an input and a tap that meet an output of this axis.

    Tap ``k`` sends input ``i`` to ``i*stride + k*dilation - padding``, an output if it is in
    ``[0, output)``: for each tap a range of inputs.
    """
    total = 0
    for tap in range(axis.kernel):
        shift = tap * axis.dilation - axis.padding
        first = max(0, -(shift // axis.stride))
        last = min(axis.input - 1, (axis.output - 1 - shift) // axis.stride)
        total += max(0, last - first + 1)
    return total


def useful_products(problem: Problem) -> int:
    """Return the products that land in the output: what no direct algorithm can do without."""
    channels = problem.in_channels * problem.out_channels_per_group
    return problem.batch * channels * math.prod(axis_products(axis) for axis in axes(problem))


@dataclass(frozen=True)
class Window:
    """Sectors of the first blocks of a grid, run by themselves: what neighbours share."""

    blocks: int
    unique_sectors: int


@dataclass(frozen=True)
class Counters:
    """The counters of one launch, scaled to its whole grid.

    ``tensor`` maps (shape, type of the factors) to multiply-adds. Sums count every lane of a warp,
    also idle ones: they occupy the unit all the same.
    """

    blocks: int
    blocks_run: int
    tensor: dict[tuple[str, str], float]
    fma_f32: float
    products_f32: float
    fma_f64: float
    warp_instructions: float
    shared_wavefronts: float
    shared_ideal_wavefronts: float
    load_sectors: float
    unique_load_sectors: float
    async_sectors: float
    store_sectors: float
    atomic_sectors: float
    load_bytes_asked: float
    store_bytes_asked: float
    local_bytes: float
    active_lanes: float


def read_counters(record: dict[str, Any]) -> Counters:
    """Return the counters of one line that a simulated device wrote (SIMGPU_PROFILE)."""
    scale = record["blocks_in_grid"] / record["blocks_run"]
    warps = record["warp_instructions_by_class"]
    memory, shared = record["global"], record["shared"].values()

    def lanes(*classes: str) -> float:
        return scale * WARP * sum(warps.get(name, 0) for name in classes)

    tensor: dict[tuple[str, str], float] = {}
    wgmma_wavefronts = 0.0
    for name, entry in record["mma"].items():
        shape, kind = _mma_shape_and_type(name)
        products = scale * entry["flops"] / 2
        tensor[shape, kind] = tensor.get((shape, kind), 0.0) + products
        if _is_wgmma(shape):
            # Each element of B is read once for all rows.
            wgmma_wavefronts += products / WGMMA_ROWS * ELEMENT[kind] / WAVEFRONT
    return Counters(
        blocks=record["blocks_in_grid"],
        blocks_run=record["blocks_run"],
        tensor=tensor,
        fma_f32=lanes("fma32", "add32", "mul32"),
        products_f32=lanes("fma32"),
        fma_f64=lanes("fp64"),
        warp_instructions=scale * record["warp_instructions"],
        shared_wavefronts=scale * sum(s["wavefronts"] for s in shared) + wgmma_wavefronts,
        shared_ideal_wavefronts=scale * sum(s["ideal_wavefronts"] for s in shared)
        + wgmma_wavefronts,
        load_sectors=scale * memory["load"]["sectors"],
        unique_load_sectors=scale * memory["unique_load_sectors"],
        async_sectors=scale * memory["async_copy"]["sectors"],
        store_sectors=scale * memory["store"]["sectors"],
        atomic_sectors=scale * memory["atomic"]["sectors"],
        load_bytes_asked=scale * memory["load"]["bytes_asked"],
        store_bytes_asked=scale * memory["store"]["bytes_asked"],
        local_bytes=scale * record["local"]["bytes"],
        active_lanes=record["active_lanes"],
    )


def _mma_shape_and_type(name: str) -> tuple[str, str]:
    """Return shape and type of the factors of an instruction.

    Such as "mma.m16n8k8.row.col.f32.tf32.tf32.f32" or "wgmma.m64n128k16.f32.bf16.bf16".
    """
    instruction, *parts = name.split(".")
    if instruction not in ("mma", "wgmma"):
        raise ValueError(f"no rate is known for {name}: the model has those of mma.sync and wgmma")
    shape = next(part for part in parts if part.startswith("m") and "n" in part)
    types = [part for part in parts if part in ("f16", "bf16", "tf32", "f32", "f64")]
    # Sums, factor, factor, and the addend of mma.
    return shape, types[1]


def _is_wgmma(shape: str) -> bool:
    return shape.startswith(f"m{WGMMA_ROWS}n")


def read_window(record: dict[str, Any]) -> Window:
    """Return the sectors of one line of a window's run."""
    return Window(record["blocks_run"], record["global"]["unique_sectors"])


def unique_bytes_of_grid(windows: list[Window], blocks: int) -> float:
    """Return the bytes that a grid touches if blocks share data with near neighbours alone.

    ``windows`` are runs of the first n/2 and n blocks. What the second half of the last one
    added is taken for what every further half adds: data that all blocks read (weights) count
    once, halos shared inside half a window count once, and those shared across windows again.
    """
    half, whole = windows[-2], windows[-1]
    if whole.blocks >= blocks or whole.blocks == half.blocks:
        return whole.unique_sectors * SECTOR * (blocks / whole.blocks)
    slope = (whole.unique_sectors - half.unique_sectors) / (whole.blocks - half.blocks)
    return (whole.unique_sectors + slope * (blocks - whole.blocks)) * SECTOR


def dram_bytes(unique_bytes: float, compulsory_bytes: float, card: UnitRates) -> float:
    """Return the modelled DRAM traffic of a launch.

    Never less than the compulsory bytes, every array of the launch once. Exactly those if they fit
    the L2 cache together. Otherwise the bytes of `unique_bytes_of_grid`: neighbouring blocks run at
    the same time and find each other's sectors in the L2 cache, far ones do not. That is too much
    where the cache holds more than a window of blocks, and too little where it holds less.
    """
    if compulsory_bytes <= card.l2_bytes:
        return compulsory_bytes
    return max(compulsory_bytes, unique_bytes)


@dataclass(frozen=True)
class UnitTimes:
    """Modelled microseconds of each unit for one launch on one card."""

    card: str
    tensor: dict[str, float]
    fma: float
    fp64: float
    shared: float
    issue: float
    l2: float
    l2_without_l1: float
    dram: float
    dram_bytes: float

    @property
    def units(self) -> dict[str, float]:
        """Return the microseconds of each unit, by its name in the table above."""
        return {
            "tensor": sum(self.tensor.values()),
            "fma": self.fma,
            "fp64": self.fp64,
            "shared/L1": self.shared,
            "issue": self.issue,
            "L2": self.l2,
            "DRAM": self.dram,
        }

    @property
    def limit(self) -> str:
        """Return the unit that takes longest."""
        return max(self.units, key=lambda unit: self.units[unit])

    @property
    def microseconds(self) -> float:
        """Return the time of that unit: the kernel's lower bound."""
        return max(self.units.values())


def unit_times(
    counters: Counters, windows: list[Window], tiles: int, compulsory_bytes: float, card: UnitRates
) -> UnitTimes:
    """Return the modelled times of one launch; ``tiles`` is what a window's blocks are a part of.

    A block of a window works on one tile, a block of the grid on several where the grid is smaller.
    """
    c = counters
    # What cp.async loaded is among the unique sectors.
    first_loads = min(c.load_sectors, max(0.0, c.unique_load_sectors - c.async_sectors))
    uncached = c.async_sectors + c.store_sectors + c.atomic_sectors
    l1_wavefronts = (c.load_sectors + c.store_sectors) * SECTOR / WAVEFRONT
    async_wavefronts = c.async_sectors * SECTOR / WAVEFRONT
    l2_rate = card.l2_bytes_per_second / SECTOR
    dram = dram_bytes(unique_bytes_of_grid(windows, tiles), compulsory_bytes, card)
    us = 1e6
    return UnitTimes(
        card=card.name,
        tensor={
            f"{shape} {kind}": us * products / _tensor_rate(card, shape, kind)
            for (shape, kind), products in c.tensor.items()
        },
        fma=us * c.fma_f32 / card.fma_per_second("f32"),
        fp64=us * c.fma_f64 / card.fma_per_second("f64"),
        shared=us
        * (c.shared_wavefronts + l1_wavefronts + async_wavefronts)
        / card.shared_wavefronts_per_second,
        issue=us * c.warp_instructions / card.issues_per_second,
        l2=us * (first_loads + uncached) / l2_rate,
        l2_without_l1=us * (c.load_sectors + uncached) / l2_rate,
        dram=us * dram / card.dram_bytes_per_second,
        dram_bytes=dram,
    )


def _tensor_rate(card: UnitRates, shape: str, kind: str) -> float:
    return card.wgmma_per_second(kind) if _is_wgmma(shape) else card.mma_per_second(kind, shape)


def tail_factor(blocks: int, multiprocessors: int, blocks_per_multiprocessor: int) -> float:
    """Return how much longer a grid takes than work that divides evenly: at least 1.

    A grid of more than one wave takes whole waves. One that fits a single wave is spread over the
    multiprocessors, and the fullest has the last word.
    """
    resident = multiprocessors * blocks_per_multiprocessor
    if blocks <= resident:
        return -(-blocks // multiprocessors) * multiprocessors / blocks
    return -(-blocks // resident) * resident / blocks
