"""The dtypes of the operation: their names, sizes and numbers in the kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelDtype:
    """One supported dtype.

    ``number`` is ``CONVT3D_DTYPE`` in ``kernels_cu/convt3d_config.cuh``. Sizes are in bytes. 16-bit
    floats are summed in float32, all others in themselves.
    """

    name: str
    number: int
    itemsize: int
    accumulator_bytes: int


DTYPES: dict[str, KernelDtype] = {
    dtype.name: dtype
    for dtype in (
        KernelDtype("float16", 0, 2, 4),
        KernelDtype("bfloat16", 1, 2, 4),
        KernelDtype("float32", 2, 4, 4),
        KernelDtype("float64", 3, 8, 8),
        KernelDtype("complex64", 4, 8, 8),
        KernelDtype("complex128", 5, 16, 16),
    )
}


def kernel_dtype(dtype: Any, name: str) -> KernelDtype:
    """Return the supported dtype of an array or tensor, or raise TypeError naming the argument."""
    # str() of a torch dtype is "torch.float32"; NumPy marks a foreign byte order, as in ">f4".
    text = str(dtype).removeprefix("torch.")
    try:
        return DTYPES[text]
    except KeyError:
        pass
    supported = ", ".join(DTYPES)
    if re.fullmatch(r"[<>][fc]\d+", text):
        raise TypeError(
            f"{name} must be in the machine's byte order and have one of the dtypes {supported}, "
            f"got {dtype}: convert it first"
        )
    raise TypeError(
        f"{name} must have one of the dtypes {supported}, got {dtype}: convert it first"
    )
