"""A copy of an array between two guards, as device memory that shows stray accesses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GUARD_BYTES = 4096
#: What the allocator of CuPy guarantees.
_ALIGNMENT = 512


class GuardedBuffer:
    """Memory of ``nbytes`` bytes, filled with 0xFF, with a guard on either side.

    A guard is a NaN in every format, so that what a kernel reads there shows. A CPU keeps the bits
    of a NaN through arithmetic: buffers of one launch have different ``number``s, 1 to 6, and hence
    NaNs, so that what was read in one guard and written to another shows too.
    """

    def __init__(self, nbytes: int, number: int) -> None:
        self._memory = np.empty(nbytes + 2 * GUARD_BYTES + _ALIGNMENT, dtype=np.uint8)
        begin = GUARD_BYTES + -(self._memory.ctypes.data + GUARD_BYTES) % _ALIGNMENT
        self.contents = self._memory[begin : begin + nbytes]
        self.contents[:] = 0xFF
        self._before = self._memory[begin - GUARD_BYTES : begin]
        self._after = self._memory[begin + nbytes : begin + nbytes + GUARD_BYTES]
        self._guard = np.tile(np.array([0xFF - number, 0xFF], dtype=np.uint8), GUARD_BYTES // 2)
        self._before[:] = self._guard
        self._after[:] = self._guard

    @classmethod
    def copy_of(cls, array: NDArray[Any], number: int) -> GuardedBuffer:
        """Return a buffer with the bytes of a C-contiguous array."""
        buffer = cls(array.nbytes, number)
        buffer.contents[:] = array_bytes(array)
        return buffer

    @property
    def address(self) -> int:
        """Address of the first byte of the contents."""
        return self.contents.ctypes.data

    def first_damage(self) -> int | None:
        """Return the offset from the contents of the first damaged guard byte, or None."""
        before = first_difference(self._before, self._guard)
        if before is not None:
            return before - GUARD_BYTES
        after = first_difference(self._after, self._guard)
        return None if after is None else after + self.contents.size


def array_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of the bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8)


def first_difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> int | None:
    """Return the index of the first difference of two arrays of one size, or None."""
    if np.array_equal(a, b):
        return None
    return int(np.argmax(a != b))
