"""Run the launches of plans on a simulated CUDA device and collect its counters.

The device must be one that writes a line of JSON counters per launch to the file named by
``SIMGPU_PROFILE`` and runs ``SIMGPU_SAMPLE`` blocks of a larger grid. It reads both when a process
starts, so `collect` starts one: this file, with the workloads on its standard input.

Arrays hold zeros: no address and no branch of a kernel depends on finite values. All workloads use
the same memory, one after the other, because a new allocation of gigabytes costs seconds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pipe_model import useful_products
from benchmarks.workloads import Workload
from cupy_convt3d._algorithm import check_algorithm, make_plan
from cupy_convt3d._choice_gradient import make_gradient_plan
from cupy_convt3d._device import Device
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan import Launch, Plan, Role
from cupy_convt3d._precision import precision_of
from cupy_convt3d._unit_rates import CARDS

#: Arrays begin at multiples of this, as those of an allocator do.
ALIGNMENT = 512

#: Fewest and most blocks that run of a grid. The phases of a strided problem differ by a factor of
#: 8 in their taps: 1024 random blocks give their mean to about 2 %.
FEWEST_BLOCKS, MOST_BLOCKS = 64, 1024

#: Useful products of the blocks that run, between those limits: some seconds.
PRODUCTS = 2e9


@dataclass(frozen=True)
class Choice:
    """What decides the plan of a workload besides its problem; ``card`` is one of ``CARDS``."""

    dtype: str = "float32"
    precision: str = "ieee"
    algorithm: str = "auto"
    deterministic: bool = True
    operation: str = "forward"
    card: str = "h100"

    @property
    def device(self) -> Device:
        """The card as a device that plans are made for."""
        rates = CARDS[self.card]
        return Device(rates.name, rates.capability, rates.multiprocessors, rates.shared_per_block)

    def plan(self, workload: Workload) -> Plan:
        """Return the plan; raises ValueError for an algorithm or precision it cannot have."""
        precision_of(self.precision)
        if self.operation in ("grad_input", "grad_weight"):
            return make_gradient_plan(
                self.operation,
                workload.problem(),
                DTYPES[self.dtype],
                self.algorithm,
                precision=self.precision,
                device=self.device,
            )
        check_algorithm(self.algorithm)
        return make_plan(
            workload.problem(),
            DTYPES[self.dtype],
            workload.bias,
            self.algorithm,
            self.deterministic,
            precision=self.precision,
            device=self.device,
        )


def array_bytes(workload: Workload, plan: Plan, choice: Choice) -> dict[Role, int]:
    """Return the sizes of the arrays that a plan's kernels can ask for."""
    problem, itemsize = workload.problem(), DTYPES[choice.dtype].itemsize
    x, y = (math.prod(shape) * itemsize for shape in (problem.x_shape, problem.y_shape))
    weight = math.prod(problem.weight_shape) * itemsize
    if choice.operation == "grad_weight":
        return {
            "x": x,
            "grad_output": y,
            "grad_weight": weight,
            "workspace": plan.workspace_bytes,
        }
    if choice.operation == "grad_input":
        return {
            "grad_output": y,
            "weight": weight,
            "bias": 0,
            "grad_input": x,
            "workspace": plan.workspace_bytes,
            "packed": plan.packed_bytes,
        }
    return {
        "x": x,
        "weight": weight,
        "bias": problem.out_channels * itemsize if workload.bias else 0,
        "y": y,
        "workspace": plan.workspace_bytes,
        "packed": plan.packed_bytes,
    }


def tiles_of(launch: Launch) -> int:
    """Return the tiles that a launch works on: its blocks, or more where blocks take several."""
    names = launch.params.dtype.names or ()
    return max(launch.grid, int(launch.params["tiles"][0]) if "tiles" in names else 0)


def window(launch: Launch, blocks: int) -> Launch:
    """Return a launch of the first ``blocks`` tiles alone, one for each block if there are enough.

    ``tiles`` bounds the loop of a kernel over its tiles; a kernel without that loop runs the first
    blocks because the grid ends there.
    """
    if blocks >= tiles_of(launch):
        return launch
    params = launch.params.copy()
    if "tiles" in (params.dtype.names or ()):
        params["tiles"] = blocks
    return dataclasses.replace(launch, grid=min(blocks, launch.grid), params=params)


def sample_size(workload: Workload, plan: Plan) -> int:
    """Return how many blocks of a plan's grids to run: a power of two, fewer of dearer blocks."""
    blocks = max(launch.grid for launch in plan.launches)
    wanted = PRODUCTS * blocks / max(1, useful_products(workload.problem()))
    power: int = 2 ** int(math.log2(max(1, wanted)))
    return min(MOST_BLOCKS, max(FEWEST_BLOCKS, power))


def collect(
    workloads: list[Workload], choice: Choice, blocks: int | None = None
) -> list[dict[str, Any]]:
    """Return the counters of every launch of every workload's plan.

    Parameters
    ----------
    blocks : int, >= 2, or None
        Blocks that are run of a grid (the first, the last, and some between), and blocks of the
        largest window. None: `sample_size` of each workload.

    Returns
    -------
    list of dict
        ``workload`` (its name), ``stage`` ("packing" or "launch"), ``index`` in the stage,
        ``counters`` (one line of the device) and ``windows`` (lines of the first ``blocks/2`` and
        ``blocks`` tiles).

    Raises
    ------
    RuntimeError
        If CuPy's device is not a simulated one, or the run fails.
    """
    if os.environ.get("SIMGPU") != "1":
        raise RuntimeError(
            "needs a simulated CUDA device that writes counters (environment SIMGPU=1, "
            "SIMGPU_PROFILE): a real GPU has none of them, use its profiler instead"
        )
    by_blocks: dict[int, list[Workload]] = {}
    for workload in workloads:
        size = blocks or sample_size(workload, choice.plan(workload))
        by_blocks.setdefault(size, []).append(workload)
    return [
        record for size, group in by_blocks.items() for record in _run_process(group, choice, size)
    ]


def _run_process(workloads: list[Workload], choice: Choice, blocks: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "SIMGPU_PROFILE": str(Path(folder) / "counters"),
            "SIMGPU_SAMPLE": str(blocks),
            # The tests check races; here they only cost time, as does filling new memory.
            "SIMGPU_RACECHECK": "0",
            "SIMGPU_INITCHECK": "0",
            "SIMGPU_POISON": "0",
            "SIMGPU_QUIET": "1",
        }
        request = {
            "workloads": [workload.to_json() for workload in workloads],
            "choice": dataclasses.asdict(choice),
            "blocks": blocks,
        }
        done = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the run on the simulated device failed:\n{done.stderr}")
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


def _serve(request: dict[str, Any]) -> list[dict[str, Any]]:
    import cupy
    import numpy as np

    from cupy_convt3d._launch import BoundPlan

    workloads = [Workload.from_json(fields) for fields in request["workloads"]]
    choice, blocks = Choice(**request["choice"]), request["blocks"]
    plans = [choice.plan(workload) for workload in workloads]
    sizes = [array_bytes(w, p, choice) for w, p in zip(workloads, plans, strict=True)]
    padded = max(sum(s + ALIGNMENT for s in by_role.values()) for by_role in sizes)
    memory = cupy.cuda.Memory(padded + ALIGNMENT)
    records = Path(os.environ["SIMGPU_PROFILE"])
    read = 0

    def run(launch: Launch, arrays: dict[Role, Any]) -> dict[str, Any]:
        nonlocal read
        BoundPlan(Plan("", (launch,), 0, True), 0).run(arrays)
        with records.open(encoding="utf-8") as file:
            file.seek(read)
            line = file.readline()
            read = file.tell()
        record: dict[str, Any] = json.loads(line)
        if record["kernel"] != launch.kernel:
            raise RuntimeError(f"counters of {record['kernel']} where {launch.kernel} ran")
        # Counts of source lines are long, and nothing here reads them.
        record.pop("lines", None)
        return record

    results = []
    for workload, plan, by_role in zip(workloads, plans, sizes, strict=True):
        arrays: dict[Role, Any] = {}
        address = -(-memory.ptr // ALIGNMENT) * ALIGNMENT
        for role, size in by_role.items():
            arrays[role] = np.uintp(address) if size else None
            address += -(-size // ALIGNMENT) * ALIGNMENT
        for stage, launches in (("packing", plan.packing), ("launch", plan.launches)):
            for index, launch in enumerate(launches):
                results.append(
                    {
                        "workload": workload.name,
                        "stage": stage,
                        "index": index,
                        "counters": run(launch, arrays),
                        "windows": [run(window(launch, n), arrays) for n in (blocks // 2, blocks)],
                    }
                )
    return results


if __name__ == "__main__":
    json.dump(_serve(json.load(sys.stdin)), sys.stdout)
