"""The time of a run, and the process that has the device.

Kernels run in a process of their own. One that hangs, or that leaves a CUDA error behind, which no
later call of its process would survive, costs one row of the results and not the run.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from benchmarks.gpu_tasks import Row, Task


class Budget:
    """The seconds that a run may take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - self._clock())

    def refusal(self, estimate_s: float) -> str | None:
        """Return why work of that many seconds must not begin, or None."""
        left = self.left()
        if estimate_s <= left:
            return None
        return f"no time: may need {estimate_s:.0f} s, {left:.0f} s left"


class Worker:
    """A process that runs tasks, started when it is needed and again after it was lost."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def run(self, task: Task, limit_s: float) -> Row:
        """Return the task's row: with its results, or with the text of what went wrong."""
        if self._connection is None:
            self._start()
        assert self._connection is not None
        self._connection.send(task)
        try:
            if not self._connection.poll(limit_s):
                self.stop()
                return {**task.row(), "error": f"ended after {limit_s:.0f} s without an answer"}
            row, usable = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self.stop()
            return {**task.row(), "error": "the process died"}
        if not usable:
            self.stop()
        result: Row = row
        return result

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None and self._connection is not None:
            self._process.kill()
            # A process inside the driver may outlive its end for a while.
            self._process.join(timeout=20)
            self._connection.close()
        self._process = self._connection = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Not a daemon, which may not have children: torch.compile starts some.
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()


def _serve(connection: Connection) -> None:
    """Answer each task with its row and whether this process can go on."""
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        row = task.row()
        try:
            task.run(row)
        except ImportError as error:
            row["skipped"] = str(error)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        connection.send((row, _device_is_usable()))


def _device_is_usable() -> bool:
    try:
        import cupy

        cupy.cuda.Device().synchronize()
    except Exception:
        return False
    return True
