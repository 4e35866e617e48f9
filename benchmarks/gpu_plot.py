"""Draw the medians of a GPU benchmark, ours beside torch.

Run with ``python benchmarks/gpu_plot.py RESULTS.json``; writes ``RESULTS.png``. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Medians = dict[str, dict[str, float]]


def medians(results: dict[str, Any], protocol: str = "flushed") -> Medians:
    """Return ``{variant: {problem: milliseconds}}`` of the operation's rows that have times."""
    found: Medians = {}
    for row in results["rows"]:
        if (row["kind"], row.get("protocol")) == ("time", protocol) and "median_ms" in row:
            label = (
                row["variant"] if row["library"] == "cupy_convt3d" else f"torch {row['variant']}"
            )
            found.setdefault(label, {})[row["problem"]] = row["median_ms"]
    return found


def draw(results: dict[str, Any], path: Path) -> None:
    """Write a PNG with one group of bars per problem, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = medians(results)
    problems = [p for p in results["problems"] if any(p in times for times in bars.values())]
    if not problems:
        raise ValueError("results must have at least one row with times")
    figure, axes = pyplot.subplots(figsize=(3 + len(problems), 6), layout="constrained")
    width = 0.85 / len(bars)
    colors = pyplot.get_cmap("tab20")
    for number, (label, times) in enumerate(bars.items()):
        at = [i for i, problem in enumerate(problems) if problem in times]
        axes.bar(
            [i + (number - (len(bars) - 1) / 2) * width for i in at],
            [times[problems[i]] for i in at],
            width,
            label=label,
            color=colors(number % colors.N),
            hatch="//" if label.startswith("torch") else None,
        )
    axes.set_yscale("log")
    axes.set_ylabel("median time, ms (L2 flushed)")
    axes.set_xticks(range(len(problems)), problems, rotation=20, ha="right")
    axes.set_title(
        f"3-D transposed convolution, float32, {results['environment']['device']['name']}"
    )
    axes.grid(axis="y", which="both", alpha=0.3)
    axes.legend(ncols=2, fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    path = parser.parse_args().results
    draw(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".png"))
    print(path.with_suffix(".png"))


if __name__ == "__main__":
    main()
