"""How tensor cores multiply, and what the kernels that use them share of their layouts.

``kernels_cu/tensor_core.cuh`` and ``tile_load.cuh`` have the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

from cupy_convt3d._dtypes import KernelDtype

#: Bytes that the pitch of a channel of x in shared memory is, modulo ``BANK_CYCLE``, by the size of
#: an element: the channels of a fragment then lie in different banks.
PITCH_BYTES = {2: 16, 4: 32, 8: 32}
BANK_CYCLE = 128

#: Bytes of a lane's fragment of one 16 x k matrix of weights.
FRAGMENT_BYTES = 16
WARP = 32

#: Rows of a tile of weights of wgmma, and how many of them an instruction may have: any number, but
#: each is a variant to compile.
WGMMA_ROWS = 8
WGMMA_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32)
#: What kernels with wgmma are compiled for: the instruction is of this architecture alone.
WGMMA_ARCHITECTURE = "90a"


@dataclass(frozen=True, slots=True)
class Math:
    """One way in which tensor cores multiply (``kernels_cu/tensor_core.cuh``).

    ``step_k`` channels are multiplied by one instruction; split operands have 2 ``parts`` and need
    3 ``terms``.
    """

    name: str
    number: int
    step_k: int
    parts: int
    terms: int


FLOAT16 = Math("float16", 0, 16, 1, 1)
BFLOAT16 = Math("bfloat16", 1, 16, 1, 1)
TF32 = Math("tf32", 2, 8, 1, 1)
TF32X3 = Math("tf32x3", 3, 8, 2, 3)
BF16X3 = Math("bf16x3", 4, 16, 2, 3)
FLOAT64 = Math("float64", 5, 4, 1, 1)

#: The maths of float32 that are accurate enough for each precision, the fastest first.
PRECISIONS = {"ieee": (TF32X3,), "bf16x3": (BF16X3, TF32X3), "tf32": (TF32, BF16X3, TF32X3)}

_OTHERS = {"float16": (FLOAT16,), "bfloat16": (BFLOAT16,), "float64": (FLOAT64,)}


def maths_of(dtype: KernelDtype, precision: str) -> tuple[Math, ...]:
    """Return how tensor cores can multiply a dtype; complex numbers they cannot."""
    if dtype.name == "float32":
        return PRECISIONS[precision]
    return _OTHERS.get(dtype.name, ())


MATHS = {math.name: math for math in (FLOAT16, BFLOAT16, TF32, TF32X3, BF16X3, FLOAT64)}


def channel_pitch(size: int, dtype: KernelDtype) -> int:
    """Return the bytes from one channel of ``size`` bytes in shared memory to the next."""
    return size + (PITCH_BYTES[dtype.itemsize] - size) % BANK_CYCLE


def copy_bytes(extent: int, dtype: KernelDtype, aligned: bool) -> int:
    """Return the size of the copies of x to shared memory, which start at multiples of it.

    Parameters
    ----------
    extent : int
        Elements of the pieces of x that are copied: each must be whole copies.
    aligned : bool
        Whether x starts at a multiple of 16 bytes.
    """
    for unit in (16, 8, 4):
        # cp.async copies 8 bytes too, but only float64 asks for that.
        if unit == 8 > dtype.itemsize:
            continue
        if unit < dtype.itemsize or not (aligned or unit == dtype.itemsize):
            break
        if extent * dtype.itemsize % unit == 0:
            return unit
    return dtype.itemsize


def up_to_8(count: int) -> int:
    """Return the next multiple of 8, the columns of a fragment."""
    return -(-count // 8) * 8


def even_share(total: int, most: int) -> int:
    """Return the size of the parts, of at most ``most``, that ``total`` is evenly cut into."""
    parts = -(-total // most)
    return -(-total // parts)
