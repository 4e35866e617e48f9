"""Times on a CUDA device: events around a call, the L2 cache overwritten before each.

Two protocols. ``flushed_times`` queues everything and waits once, so that the overwriting hides
what the call costs the host: time of the device. ``kernelbench_times`` follows KernelBench
(``timing.py``, ``time_execution_with_cuda_event``): it waits before each trial.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    At least ``flush_bytes``, and ``flush_caches`` times the L2 cache, are overwritten before each
    call: more than once its size, as its replacement policy is not known.
    """

    repeats: int = 50
    seconds: float = 1.0
    warm_ups: int = 5
    trials: int = 100
    flush_bytes: int = 256 * 1024 * 1024
    flush_caches: int = 2


#: For a simulated device, whose times mean nothing.
TINY = Effort(repeats=3, seconds=0.0, warm_ups=1, trials=2, flush_bytes=1024, flush_caches=0)


class Flush:
    """A buffer that overwrites the L2 cache, on CuPy's current stream."""

    def __init__(self, effort: Effort) -> None:
        import cupy

        l2_bytes = int(cupy.cuda.Device().attributes["L2CacheSize"])
        size = max(effort.flush_bytes, effort.flush_caches * l2_bytes)
        self._buffer = cupy.empty(size, dtype="u1")

    def __call__(self) -> None:
        """Queue the overwriting."""
        self._buffer.data.memset_async(0, self._buffer.nbytes)


def _event_pairs(count: int) -> list[tuple[Any, Any]]:
    import cupy

    return [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(count)]


def flushed_times(call: Callable[[], Any], flush: Flush, effort: Effort) -> list[float]:
    """Return the milliseconds of ``effort.repeats`` calls, or more within ``effort.seconds``.

    Not more than four times as many: beyond that a median does not get better.
    """
    import cupy

    for _ in range(effort.warm_ups):
        call()
    times: list[float] = []
    end = time.monotonic() + effort.seconds
    while not times or (len(times) < 4 * effort.repeats and time.monotonic() < end):
        pairs = _event_pairs(effort.repeats)
        for begin_event, end_event in pairs:
            flush()
            begin_event.record()
            call()
            end_event.record()
        pairs[-1][1].synchronize()
        times += [cupy.cuda.get_elapsed_time(*pair) for pair in pairs]
    return times


def kernelbench_times(call: Callable[[], Any], flush: Flush, effort: Effort) -> list[float]:
    """Return the milliseconds of ``effort.trials`` calls, measured as KernelBench does."""
    import cupy

    device = cupy.cuda.Device()
    for _ in range(effort.warm_ups):
        call()
        device.synchronize()
    times = []
    for _ in range(effort.trials + 1):
        device.synchronize()
        ((begin_event, end_event),) = _event_pairs(1)
        flush()
        begin_event.record()
        call()
        end_event.record()
        device.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin_event, end_event))
    return times[1:]


def summary(times: list[float]) -> dict[str, Any]:
    """Return the raw samples in milliseconds (events resolve half a microsecond) and statistics."""
    return {
        "median_ms": round(statistics.median(times), 5),
        "mean_ms": round(statistics.fmean(times), 5),
        "min_ms": round(min(times), 5),
        "max_ms": round(max(times), 5),
        "samples_ms": [round(t, 5) for t in times],
    }
