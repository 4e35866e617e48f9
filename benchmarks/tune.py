"""Measure the configurations of kernels on the current GPU and keep the fastest in a table.

Run with ``python benchmarks/tune.py [PROBLEM ...]``, problems being ids of ``tests/cases.jsonl``.
Needs CuPy and a CUDA device. Every configuration that can run is compared with the gather kernel
and timed by events, the L2 cache overwritten before each call; the least median of those that were
right goes into ``cupy_convt3d/tuning/<device name>.json``, which ``algorithm="auto"`` reads. What
the table says about other problems stays.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cupy

from benchmarks.gpu_environment import device_environment, host_environment
from benchmarks.gpu_timing import TINY, Effort, Flush, flushed_times
from benchmarks.gpu_workload import (
    PROBLEMS,
    Workload,
    device_operands,
    load_workload,
    whole_accuracy,
)
from benchmarks.tuning_table import update_table
from cupy_convt3d import conv_transpose3d
from cupy_convt3d._choice import candidates
from cupy_convt3d._device import device_of
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._tuning import DIRECTORY, signature, table_path

#: Largest difference to the gather kernel, absolute and relative: KernelBench's tolerances, and for
#: TF32 that of a dtype with as many bits.
TOLERANCES = {"float32": 1e-4, "float64": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
TF32_TOLERANCE = 1e-2


def measure(
    workload: Workload, dtype: str, precision: str, config: Any, flush: Flush, effort: Effort
) -> float:
    """Return the median milliseconds of a configuration; raises ValueError if it is wrong."""
    operands = device_operands(workload, dtype)

    def call() -> Any:
        return conv_transpose3d(
            *operands.arrays, **workload.settings, precision=precision, config=config
        )

    tolerance = TF32_TOLERANCE if precision == "tf32" else TOLERANCES[dtype]
    outside = whole_accuracy(workload, call(), tolerance)["share_outside_gather"]
    if outside:
        raise ValueError(f"{outside:.2%} of the outputs differ from the gather kernel")
    return statistics.median(flushed_times(call, flush, effort))


def fastest(
    workload: Workload, dtype: str, precision: str, flush: Flush, effort: Effort
) -> tuple[Any, float] | None:
    """Return the fastest configuration and its milliseconds, or None if there is none."""
    best: tuple[Any, float] | None = None
    device = device_of(cupy.cuda.Device().id)
    problem, kernel_dtype = workload.problem, DTYPES[dtype]
    for config in candidates(problem, kernel_dtype, "auto", precision, True, device):
        try:
            time = measure(workload, dtype, precision, config, flush, effort)
        except (ValueError, RuntimeError, cupy.cuda.compiler.CompileException) as error:
            print(f"  {config}: {str(error).splitlines()[0]}", flush=True)
            continue
        print(f"  {config}: {time:.4f} ms", flush=True)
        if best is None or time < best[1]:
            best = config, time
    return best


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=PROBLEMS, help="ids of tests/cases.jsonl")
    parser.add_argument("--dtypes", nargs="+", choices=sorted(TOLERANCES), default=["float32"])
    parser.add_argument(
        "--precisions", nargs="+", choices=["ieee", "bf16x3", "tf32"], default=["ieee", "bf16x3"]
    )
    parser.add_argument("--directory", type=Path, help="of the tables (with --tiny: this one)")
    parser.add_argument("--tiny", action="store_true", help="small shapes, few repeats: a trial")
    options = parser.parse_args(arguments)
    effort = TINY if options.tiny else Effort()
    environment = {**device_environment(), **host_environment()}
    device = environment["device"]["name"]
    versions = {key: environment[key] for key in ("cuda", "packages", "revision")}
    # The times of a trial must not reach the package.
    directory = options.directory or (Path() if options.tiny else DIRECTORY)
    path = table_path(device, directory)
    flush = Flush(effort)
    for name in options.problems:
        workload = load_workload(name, options.tiny)
        for dtype in options.dtypes:
            # The precisions are ways to compute in float32.
            for precision in options.precisions if dtype == "float32" else ["ieee"]:
                print(f"{name} {dtype} {precision}", flush=True)
                best = fastest(workload, dtype, precision, flush, effort)
                if best is None:
                    continue
                key = signature(workload.problem, dtype, precision)
                now = datetime.datetime.now(datetime.timezone.utc)
                update_table(path, device, now, versions, {key: dataclasses.asdict(best[0])})
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
