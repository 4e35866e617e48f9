"""Print what would limit every kernel of the plans of known problems on known cards: a model.

Run on a simulated CUDA device (environment ``SIMGPU=1``) that writes the counters of each launch to
the file named by ``SIMGPU_PROFILE``::

    python benchmarks/speed_of_light.py                      # all problems, a few minutes
    python benchmarks/speed_of_light.py kb1-58 kb2 nnunet-222 --card h100 --json report.json
    python benchmarks/speed_of_light.py kb1 --algorithm gather --precision ieee

Nothing here is a measurement: every time is *modelled*. Work is counted in the simulation, and
divided by the published rates of ``cupy_convt3d/_unit_rates.py``; ``pipe_model.py`` says how, unit
by unit. The slowest unit bounds a kernel from below. Latency, and units that wait for each other,
come on top.

- Counters are those of PTX, not of SASS: issue slots count PTX instructions.
- Only some blocks of a large grid are run: the first, the last and others spread over it. Counts
  are scaled by the blocks of the grid over those that ran. Phases of a strided problem differ in
  their taps, so this has an error of some percent, seen where useful/issued products exceed 100 %;
  ``--blocks`` makes it smaller.
- DRAM: compulsory bytes are x, weight, bias and y once (for one launch: its own arrays once).
  Beside them stands an estimate from runs of the first n/2 and n blocks, neighbours in the grid:
  what the second half adds to the first in unique sectors is taken for what all others add. So data
  that all blocks share and what neighbours share count once, and what distant blocks share counts
  again; where the arrays of a launch fit the L2 cache together, only compulsory bytes count.
- L2: the lower figure has an L1 cache that never forgets, the upper one ("L2 max") has none.
- Occupancy and waves come from the registers and shared memory that ptxas reports.
- Each card has the plan that is chosen for it: wgmma runs on Hopper alone.
- PyTorch's times are published ones, of other people's machines.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pipe_model import (
    Counters,
    UnitTimes,
    Window,
    read_counters,
    read_window,
    tail_factor,
    unit_times,
    useful_products,
)
from benchmarks.sampled_counters import Choice, array_bytes, collect, tiles_of
from benchmarks.workloads import WORKLOADS, Workload, select
from cupy_convt3d._plan import Launch, Plan
from cupy_convt3d._tensor_core import MATHS
from cupy_convt3d._unit_rates import CARDS, SECTOR, WARP, UnitRates

#: Arrays that a kernel only reads where a sum is NaN.
READ_FOR_NANS = {"sum_grad_weight": {"x", "grad_output"}}


@dataclass(frozen=True)
class OnCard:
    """One launch on one card."""

    registers: int
    shared_bytes: int
    blocks_per_multiprocessor: int
    occupancy: float
    waves: float
    tail: float
    times: UnitTimes


@dataclass(frozen=True)
class Report:
    """One launch: its counters, and what they mean on the card that it was planned for."""

    stage: str
    launch: Launch
    counters: Counters
    windows: list[Window]
    compulsory_bytes: int
    card: OnCard


@functools.cache
def _resources(kernel: str, options: tuple[str, ...], target: str) -> Any:
    from benchmarks.kernel_resources import compile_variant

    return compile_variant(kernel, options, target)


def on_card(
    launch: Launch,
    counters: Counters,
    windows: list[Window],
    compulsory_bytes: int,
    card: UnitRates,
) -> OnCard:
    """Return what one launch does on one card, by the model."""
    target = launch.architecture or str(card.capability)
    usage = _resources(launch.kernel, launch.options, target)
    shared = usage.static_shared + launch.shared_bytes
    resident = card.blocks_per_multiprocessor(launch.block, usage.registers, shared)
    return OnCard(
        registers=usage.registers,
        shared_bytes=shared,
        blocks_per_multiprocessor=resident,
        occupancy=resident * launch.block / WARP / card.max_warps,
        waves=launch.grid / (resident * card.multiprocessors) if resident else float("inf"),
        tail=tail_factor(launch.grid, card.multiprocessors, resident) if resident else 1.0,
        times=unit_times(counters, windows, tiles_of(launch), compulsory_bytes, card),
    )


def reports(
    workload: Workload, plan: Plan, records: list[dict[str, Any]], choice: Choice
) -> list[Report]:
    """Return a report for each launch of a plan, from the records that `collect` made of it."""
    sizes = array_bytes(workload, plan, choice)
    stages = {"packing": plan.packing, "launch": plan.launches}
    result = []
    for record in records:
        launch = stages[record["stage"]][record["index"]]
        counters = read_counters(record["counters"])
        windows = [read_window(line) for line in record["windows"]]
        compulsory = sum(
            sizes[role] for role in set(launch.roles) - READ_FOR_NANS.get(launch.kernel, set())
        )
        result.append(
            Report(
                record["stage"],
                launch,
                counters,
                windows,
                compulsory,
                on_card(launch, counters, windows, compulsory, CARDS[choice.card]),
            )
        )
    return result


def issued_products(launch: Launch, counters: Counters, dtype: str) -> float:
    """Return the products that a launch makes, in tensor cores if it uses them.

    The terms that split operands need for a product count as one.
    """
    if counters.tensor:
        number = next(o.split("=")[1] for o in launch.options if o.startswith("-DCONVT3D_MATH="))
        terms = next(math.terms for math in MATHS.values() if math.number == int(number))
        return sum(counters.tensor.values()) / terms
    return counters.fma_f64 if dtype == "float64" else counters.products_f32


def _ratio(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.0f}%" if whole else "    - "


def print_workload(
    names: list[str], workload: Workload, plan: Plan, found: list[Report], choice: Choice
) -> None:
    """Print one problem on one card: counts of each launch, then modelled microseconds."""
    sizes = array_bytes(workload, plan, choice)
    compulsory = sum(size for role, size in sizes.items() if role not in ("workspace", "packed"))
    useful = useful_products(workload.problem())
    print(
        f"\n{', '.join(names)}: {choice.operation}, {plan.algorithm}, {choice.dtype}, "
        f"precision {choice.precision}; {useful / 1e9:.3g} G useful products, "
        f"{compulsory / 1e6:.4g} MB compulsory"
    )
    issued = sum(issued_products(r.launch, r.counters, choice.dtype) for r in found)
    print(f"  useful / issued products {_ratio(useful, issued).strip()}, all launches together")
    print(
        f"  {'counted':22s} {'blocks':>9s} {'ran':>4s} {'lanes':>6s} {'loads':>6s} {'stores':>6s}"
        f" {'bank+':>6s} {'local B':>8s}   (loads without cp.async, stores: sector efficiency)"
    )
    for report in found:
        c = report.counters
        conflicts = c.shared_wavefronts - c.shared_ideal_wavefronts
        print(
            f"  {_label(report):22s} {c.blocks:9d} {c.blocks_run:4d} {_ratio(c.active_lanes, 1)}"
            f" {_ratio(c.load_bytes_asked, SECTOR * c.load_sectors)}"
            f" {_ratio(c.store_bytes_asked, SECTOR * c.store_sectors)}"
            f" {_ratio(conflicts, c.shared_ideal_wavefronts)} {c.local_bytes:8.3g}"
        )
    first = found[0].card.times
    print(
        f"  {'modelled us, ' + first.card:22s}"
        + "".join(f"{unit:>10s}" for unit in first.units)
        + f" {'L2 max':>9s} | {'limit':>9s} {'DRAM/min':>8s} {'regs':>4s} {'smem':>6s}"
        f" {'occ':>4s} {'waves':>7s} {'tail':>5s}"
    )
    for report in found:
        card = report.card
        times = card.times
        print(
            f"  {_label(report):22s}"
            + "".join(f"{us:10.4g}" for us in times.units.values())
            + f" {times.l2_without_l1:9.4g} | {times.limit:>9s}"
            f" {times.dram_bytes / max(report.compulsory_bytes, 1):8.2f} {card.registers:4d}"
            f" {card.shared_bytes:6d} {card.occupancy:4.0%} {card.waves:7.2f} {card.tail:5.2f}"
        )
        if len(times.tensor) > 1:
            print(f"    tensor: {', '.join(f'{k} {v:.4g}' for k, v in times.tensor.items())}")
    total, packing = totals(found)
    line = f"  = {total:.4g} us modelled, at least"
    if packing:
        line += f", and {packing:.4g} us of packing weights"
    floor = 1e6 * compulsory / CARDS[choice.card].dram_bytes_per_second
    print(f"{line}; compulsory bytes alone {floor:.4g} us")
    if workload.eager_ms and choice.operation == "forward":
        print(
            f"  PyTorch eager, published, us: {1e3 * workload.eager_ms[0]:.0f} (H200), "
            f"{1e3 * workload.eager_ms[1]:.0f} (H100 PCIe), both torch 2.5 with tf32; "
            f"{1e3 * workload.eager_ms[2]:.0f} (H100 SXM, torch 2.9)"
        )
    sys.stdout.flush()


def _label(report: Report) -> str:
    return ("pack: " if report.stage == "packing" else "") + report.launch.kernel


def totals(found: list[Report]) -> tuple[float, float]:
    """Return the modelled microseconds of the launches of a call, and of packing weights."""
    by_stage = {"launch": 0.0, "packing": 0.0}
    for report in found:
        by_stage[report.stage] += report.card.times.microseconds
    return by_stage["launch"], by_stage["packing"]


def as_json(
    names: list[str], workload: Workload, plan: Plan, found: list[Report], choice: Choice
) -> dict[str, Any]:
    """Return everything that `print_workload` prints, and the counters behind it."""
    launches = []
    for report in found:
        counters = asdict(report.counters)
        counters["tensor"] = {
            f"{shape} {kind}": n for (shape, kind), n in report.counters.tensor.items()
        }
        times = report.card.times
        launches.append(
            {
                "stage": report.stage,
                "kernel": report.launch.kernel,
                "options": report.launch.options,
                "issued_products": issued_products(report.launch, report.counters, choice.dtype),
                "compulsory_bytes": report.compulsory_bytes,
                "counters": counters,
                "windows": [asdict(window) for window in report.windows],
                "modelled": asdict(report.card)
                | {"units": times.units, "limit": times.limit, "us": times.microseconds},
            }
        )
    return {
        "choice": asdict(choice),
        "names": names,
        "workload": workload.to_json(),
        "algorithm": plan.algorithm,
        "useful_products": useful_products(workload.problem()),
        "launches": launches,
        "modelled_us": totals(found),
    }


def distinct(workloads: list[Workload]) -> dict[Workload, list[str]]:
    """Return the workloads that differ in their problem, each with all names it goes by."""
    by_problem: dict[Any, tuple[Workload, list[str]]] = {}
    for workload in workloads:
        key = (workload.problem(), workload.bias)
        by_problem.setdefault(key, (workload, []))[1].append(workload.name)
    return dict(by_problem.values())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "problems", nargs="*", help="names or beginnings of names; all problems without any"
    )
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--card", choices=sorted(CARDS), action="append")
    parser.add_argument(
        "--dtype", default="float32", choices=("float16", "bfloat16", "float32", "float64")
    )
    parser.add_argument("--precision", default="ieee", choices=("ieee", "bf16x3", "tf32"))
    parser.add_argument(
        "--operation", default="forward", choices=("forward", "grad_input", "grad_weight")
    )
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--nondeterministic", action="store_true")
    parser.add_argument("--blocks", type=int, help="blocks that run of a grid; by its cost without")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(workload.name for workload in WORKLOADS))
        return 0
    if options.blocks is not None and options.blocks < 2:
        parser.error(f"--blocks must be at least 2, got {options.blocks}")
    choices = [
        Choice(
            options.dtype,
            options.precision,
            options.algorithm,
            not options.nondeterministic,
            options.operation,
            card,
        )
        for card in options.card or ["h100", "a100", "rtx4090"]
    ]
    try:
        workloads = distinct(select(options.problems))
        records = [collect(list(workloads), choice, options.blocks) for choice in choices]
    except (ValueError, RuntimeError) as error:
        sys.exit(f"speed_of_light.py: {error}")
    print("All times are modelled, none is measured: see the head of benchmarks/speed_of_light.py.")
    results = []
    for workload, names in workloads.items():
        for choice, of_card in zip(choices, records, strict=True):
            plan = choice.plan(workload)
            own = [record for record in of_card if record["workload"] == workload.name]
            found = reports(workload, plan, own, choice)
            print_workload(names, workload, plan, found, choice)
            results.append(as_json(names, workload, plan, found, choice))
    if options.json:
        document = {"modelled": True, "workloads": results}
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
