"""Check and time everything on a GPU, within minutes: ours in every variant, torch beside it.

Run with ``python benchmarks/gpu.py``. Needs CuPy and a CUDA device; torch with CUDA and matplotlib
are used if they are there. Work is ordered by importance, and what does not fit in ``--minutes`` is
skipped and noted. Writes ``gpu-<card>-<time>.json`` after every row, with versions, clocks and raw
samples, and at the end a plot of the medians beside it. The exit status is 1 if a result of ours
was wrong or a call failed, 2 if there is no device.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpu_environment import ClockSamples, host_environment
from benchmarks.gpu_plot import draw
from benchmarks.gpu_tasks import Describe, Row, Task, passed, tasks
from benchmarks.gpu_timing import TINY, Effort
from benchmarks.gpu_worker import Budget, Worker
from benchmarks.gpu_workload import PROBLEMS, TOLERANCE, load_workload

#: Seconds that are kept for ending the process and drawing.
RESERVE_S = 10.0


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Replace the file at once, so that a run that is ended leaves a whole one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)


def work_through(
    work: Iterable[Task],
    budget: Budget,
    run: Callable[[Task, float], Row],
    keep: Callable[[Row], None],
) -> bool:
    """Run tasks in order while there is time; return whether none failed."""
    good = True
    for task in work:
        refusal = budget.refusal(task.estimate_s)
        if refusal:
            row = {**task.row(), "skipped": refusal}
        else:
            begin = time.monotonic()
            row = run(task, min(task.limit_s, budget.left()))
            row["passed"] = passed(task, row)
            row["took_s"] = round(time.monotonic() - begin, 2)
            good = good and row["passed"]
        keep(row)
    return good


def line(row: Row) -> str:
    """Return a row of the results as a line of text."""
    name = [row.get("problem", row["kind"]), row.get("library", ""), row["variant"]]
    text = " ".join(filter(None, [*name, row.get("dtype"), row.get("protocol")])).ljust(70)
    if "skipped" in row:
        return f"{text} skipped: {row['skipped']}"
    if "median_ms" in row:
        text += f" {row['median_ms']:10.4f} ms"
        text += f" {2e-9 * row['multiply_adds'] / row['median_ms']:7.1f} TFLOP/s"
    if "max_error" in row:
        text += f" max error {row['max_error']:.1e}"
    if "share_outside" in row:
        text += f", outside {row['share_outside']:.2%}"
    if "largest" in row:
        text += f" of {row['largest']:.1e}"
    if "error" in row:
        text += f" {row['error'].splitlines()[0]}"
    if row.get("wrong"):
        text += f" wrong: {', '.join(row['wrong'])}"
    return text + ("" if row["passed"] else "  FAILED")


def default_path(device: str, now: datetime.datetime) -> Path:
    name = re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-")
    return Path(f"gpu-{name}-{now:%Y%m%d-%H%M%S}.json")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all (default 8)")
    parser.add_argument("--output", type=Path, help="the JSON file; the plot is beside it")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, help="ids of tests/cases.jsonl")
    parser.add_argument("--tiny", action="store_true", help="small shapes, few repeats: a trial")
    options = parser.parse_args(arguments)
    budget = Budget(60 * options.minutes - RESERVE_S)
    effort = TINY if options.tiny else Effort()
    problems = tuple(options.problems)
    workloads = {name: load_workload(name, options.tiny) for name in problems}

    worker = Worker()
    with ClockSamples() as clocks:
        try:
            environment = worker.run(Describe(), budget.left())
            if "device" not in environment:
                print(environment.get("error") or environment.get("skipped"), file=sys.stderr)
                return 2
            now = datetime.datetime.now(datetime.timezone.utc)
            path = options.output or default_path(environment["device"]["name"], now)
            results: dict[str, Any] = {
                "date": now.isoformat(timespec="seconds"),
                "environment": {**environment, **host_environment()},
                "tolerance": TOLERANCE,
                "effort": vars(effort),
                "tiny": options.tiny,
                "problems": {name: w.describe() for name, w in workloads.items()},
                "rows": [],
                "clocks": [],
            }
            if not environment["torch"]["usable"]:
                print(f"only ours: {environment['torch']['note']}")

            def keep(row: Row) -> None:
                print(line(row), flush=True)
                results["rows"].append(row)
                write_json(path, results)

            work = tasks(problems, effort, options.tiny, environment["torch"]["usable"])
            good = work_through(work, budget, worker.run, keep)
        finally:
            worker.stop()
    results["clocks"] = clocks.samples
    write_json(path, results)
    print(path)
    try:
        draw(results, path.with_suffix(".png"))
        print(path.with_suffix(".png"))
    except (ImportError, ValueError) as error:
        print(f"no plot: {error}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
