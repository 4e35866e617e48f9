"""Order between CUDA streams, by events: the host never waits."""

from __future__ import annotations

from typing import Any

#: The handle of every thread's own default stream: equal handles are equal streams only without it.
_PER_THREAD = 2


class Written:
    """The end of what is queued so far on CuPy's current stream, which wrote some array."""

    __slots__ = ("_event", "_is_capturing", "_stream")

    def __init__(self, cupy: Any) -> None:
        # Held, because a later stream could get the handle of one that is gone.
        self._stream = cupy.cuda.get_current_stream()
        self._event = cupy.cuda.Event(disable_timing=True)
        self._event.record(self._stream)
        self._is_capturing = cupy.cuda.runtime.streamIsCapturing

    def precede(self, stream: Any) -> bool:
        """Make what is queued next on ``stream`` wait; return whether it is another stream.

        A stream that captures a graph cannot wait for what is outside of it: there the caller sees
        to the order.
        """
        handle = stream.ptr
        if handle == self._stream.ptr and handle != _PER_THREAD:
            return False
        if not self._is_capturing(handle):
            stream.wait_event(self._event)
        return True
