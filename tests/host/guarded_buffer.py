"""A copy of an array between two guards, as device memory that shows stray accesses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GUARD_BYTES = 4096
#: A NaN in every format, so that what a kernel reads out of bounds shows; not the poison of shared
#: memory or the workspace (all ones), so that writing what was read there shows too.
_GUARD = np.tile(np.array([0xFE, 0xFF], dtype=np.uint8), GUARD_BYTES // 2)
#: What the allocator of CuPy guarantees.
_ALIGNMENT = 512


class GuardedBuffer:
    """Memory of ``nbytes`` bytes, filled with 0xFF, with a guard on either side."""

    def __init__(self, nbytes: int) -> None:
        self._memory = np.empty(nbytes + 2 * GUARD_BYTES + _ALIGNMENT, dtype=np.uint8)
        begin = GUARD_BYTES + -(self._memory.ctypes.data + GUARD_BYTES) % _ALIGNMENT
        self.contents = self._memory[begin : begin + nbytes]
        self.contents[:] = 0xFF
        self._before = self._memory[begin - GUARD_BYTES : begin]
        self._after = self._memory[begin + nbytes : begin + nbytes + GUARD_BYTES]
        self._before[:] = _GUARD
        self._after[:] = _GUARD

    @classmethod
    def copy_of(cls, array: NDArray[Any]) -> GuardedBuffer:
        """Return a buffer with the bytes of a C-contiguous array."""
        buffer = cls(array.nbytes)
        buffer.contents[:] = array_bytes(array)
        return buffer

    @property
    def address(self) -> int:
        """Address of the first byte of the contents."""
        return self.contents.ctypes.data

    def first_damage(self) -> int | None:
        """Return the offset from the contents of the first damaged guard byte, or None."""
        before = first_difference(self._before, _GUARD)
        if before is not None:
            return before - GUARD_BYTES
        after = first_difference(self._after, _GUARD)
        return None if after is None else after + self.contents.size


def array_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of the bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8)


def first_difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> int | None:
    """Return the index of the first difference of two arrays of one size, or None."""
    if np.array_equal(a, b):
        return None
    return int(np.argmax(a != b))
