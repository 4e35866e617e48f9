"""Measure what a call costs the host, from the second call of a signature on.

Run with ``python benchmarks/host_overhead.py``. Needs CuPy and a CUDA device. The problem is tiny
and nothing synchronises inside a timed batch, so the time is that of Python: validation, the
look-up of the plan, the allocation of the result, and the queueing of the launch. The last line is
a CuPy kernel launch alone, for comparison.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import cupy
import numpy as np

from cupy_convt3d import ConvTranspose3dPlan, conv_transpose3d

BATCHES = 30
CALLS = 200


def microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the best time of a call over batches of calls."""
    for _ in range(CALLS):
        call()
    times = []
    for _ in range(BATCHES):
        cupy.cuda.Stream.null.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(times), min(times)


def main() -> None:
    x = cupy.asarray(np.ones((1, 2, 2, 3, 4), dtype=np.float32))
    weight = cupy.asarray(np.ones((2, 3, 2, 2, 2), dtype=np.float32))
    bias = cupy.asarray(np.ones(3, dtype=np.float32))
    out = conv_transpose3d(x, weight, bias, stride=2)
    plan = ConvTranspose3dPlan(weight, bias, stride=2)
    side = cupy.cuda.Stream(non_blocking=True)

    def plan_on_another_stream() -> None:
        with side:
            plan(x)

    empty = cupy.RawKernel('extern "C" __global__ void empty(const float* x) {}', "empty")
    calls: dict[str, Callable[[], object]] = {
        "conv_transpose3d": lambda: conv_transpose3d(x, weight, bias, stride=2),
        "conv_transpose3d, algorithm='gather'": lambda: conv_transpose3d(
            x, weight, bias, stride=(2, 2, 2), algorithm="gather"
        ),
        "conv_transpose3d, out=": lambda: conv_transpose3d(x, weight, bias, stride=2, out=out),
        "conv_transpose3d, activation='relu'": lambda: conv_transpose3d(
            x, weight, bias, stride=2, activation="relu"
        ),
        "ConvTranspose3dPlan": lambda: plan(x),
        "ConvTranspose3dPlan, out=": lambda: plan(x, out=out),
        "ConvTranspose3dPlan, another stream": plan_on_another_stream,
        "an empty cupy.RawKernel": lambda: empty((1,), (32,), (x,)),
    }
    print(f"{'host time per call, microseconds':40s} {'median':>7s} {'best':>7s}")
    for name, call in calls.items():
        median, best = microseconds(call)
        print(f"{name:40s} {median:7.1f} {best:7.1f}")


if __name__ == "__main__":
    main()
