"""Compile every variant of every kernel for every supported architecture and print what it uses.

Run with ``python benchmarks/kernel_resources.py [--few] [ARCHITECTURE ...]``, such as 80 90; all of
them take an hour on two cores. Needs CuPy and NVRTC 12.8 or later, no GPU. The columns are
registers per thread and shared memory per block (static + dynamic, bytes), empty where a variant
does not run. The exit status is 1 if a variant uses local memory (spills), more registers than its
blocks can have, or more shared memory than a block may have on the architecture, or if ptxas says
that it serialized the variant's wgmma instructions.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cupy_backends.cuda.libs import nvrtc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cupy_convt3d._activation import ACTIVATIONS
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._loader import compile_options, kernel_source
from cupy_convt3d._plan import Launch
from cupy_convt3d._tensor_core import MATHS
from tests.variants import launches

#: Shared memory that a block can opt in to, in bytes (CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability").
SHARED_PER_BLOCK = {
    80: 163 * 1024,
    86: 99 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    120: 99 * 1024,
}

#: Endings of the macros that select a tile.
TILE_MACROS = (
    "TILE_TAPS",
    "TILE_CI",
    "TILE_CO",
    "TILE_POSITIONS",
    "WHOLE_ROWS",
    "M_TILES",
    "N_TILES",
    "SUM_CHANNELS",
    "TAPS_W",
)

#: Registers of a block at most, on all of them.
REGISTERS_PER_BLOCK = 64 * 1024


@dataclass(frozen=True)
class Usage:
    """What ptxas reports for one kernel; sizes are in bytes.

    ``serialized`` has its remarks about wgmma instructions that wait for each other.
    """

    registers: int
    static_shared: int
    local: int
    serialized: tuple[str, ...]


def compile_variant(kernel: str, options: tuple[str, ...], target: str) -> Usage:
    """Compile for a target such as "90" or "90a" as the product does, with ptxas's report."""
    program = nvrtc.createProgram(kernel_source(kernel), f"{kernel}.cu", (), ())
    try:
        nvrtc.compileProgram(
            program,
            (
                *compile_options(options),
                f"-arch=sm_{target}",
                "-ftz=true",
                "--device-as-default-execution-space",
                "--ptxas-options=-v",
            ),
        )
        log = nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found.group(1)) if found else 0

    registers = number(r"Used (\d+) registers")
    if not registers:
        raise RuntimeError(f"no report of ptxas for {kernel}, sm_{target}: {log!r}")
    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return Usage(
        registers,
        number(r"(\d+) bytes smem"),
        number(r"(\d+) bytes stack frame") + spilled,
        tuple(re.findall(r"wgmma\S* instructions are serialized.*", log)),
    )


def faults(launch: Launch, usage: Usage, architecture: int) -> list[str]:
    """Return what makes a variant unfit for an architecture."""
    found = list(usage.serialized)
    if usage.local:
        found.append(f"{usage.local} bytes of local memory")
    # Registers are handed out in units of 8 for each thread.
    if -(-usage.registers // 8) * 8 * launch.block > REGISTERS_PER_BLOCK:
        found.append(f"{usage.registers} registers for {launch.block} threads")
    if usage.static_shared + launch.shared_bytes > SHARED_PER_BLOCK[architecture]:
        found.append(f"{usage.static_shared + launch.shared_bytes} bytes of shared memory")
    return found


def describe(launch: Launch) -> str:
    """Return a variant's name: kernel, dtype, index width, then math, tiles and activation."""
    values = dict(option.removeprefix("-DCONVT3D_").split("=") for option in launch.options)
    dtype = next(d.name for d in DTYPES.values() if d.number == int(values["DTYPE"]))
    math = next((m.name for m in MATHS.values() if str(m.number) == values.get("MATH")), "")
    tile = "x".join(value for name, value in values.items() if name.endswith(TILE_MACROS))
    activation = ("", *ACTIVATIONS)[int(values.get("ACTIVATION", 0))]
    return (
        f"{launch.kernel:33s} {dtype:10s} {values['INDEX_BITS']} {math:9s} {tile:6s}"
        f" {activation:10s}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "architectures", nargs="*", type=int, default=list(SHARED_PER_BLOCK), metavar="architecture"
    )
    parser.add_argument("--few", action="store_true", help="leave out some tiles of each kernel")
    options = parser.parse_args()
    architectures = options.architectures
    variants = sorted(launches(options.few), key=lambda launch: (launch.kernel, launch.options))
    print(f"{'kernel, dtype, index bits, math, tile, activation':75s}", end="")
    print("".join(f"    sm_{a:<8d}" for a in architectures))
    bad = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = [
            [
                pool.submit(
                    compile_variant,
                    launch.kernel,
                    launch.options,
                    launch.architecture or str(architecture),
                )
                if launch.runs_on(architecture)
                else None
                for architecture in architectures
            ]
            for launch in variants
        ]
        for launch, row in zip(variants, rows, strict=True):
            cells = []
            for architecture, future in zip(architectures, row, strict=True):
                if future is None:
                    cells.append(" " * 11)
                    continue
                usage = future.result()
                cells.append(f"{usage.registers:4d} {usage.static_shared + launch.shared_bytes:6d}")
                bad += [
                    f"{describe(launch)} sm_{architecture}: {fault}"
                    for fault in faults(launch, usage, architecture)
                ]
            print(f"{describe(launch):75s}" + "    ".join(cells), flush=True)
    compiled = sum(future is not None for row in rows for future in row)
    print(f"{len(variants)} variants, compiled {compiled} times: {len(bad)} faults")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
