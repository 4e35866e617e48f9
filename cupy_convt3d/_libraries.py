"""Which library the operands of a call belong to."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

Library = Literal["cupy", "numpy", "torch", "dlpack"]

#: DLPack's numbers for memory that a kernel can read: CUDA, and CUDA managed memory.
DLPACK_CUDA = (2, 13)


def library_of(value: Any, name: str) -> Library:
    """Return the library of one operand, or raise TypeError.

    CuPy and torch are only looked at if the caller has imported them: an array of theirs cannot
    exist otherwise.
    """
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return "cupy"
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name} must not be a masked array: the mask would be lost")
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        kind = int(value.__dlpack_device__()[0])
        if kind in DLPACK_CUDA:
            return "dlpack"
        raise TypeError(
            f"{name} must be on a CUDA device, or be a NumPy array or torch tensor, "
            f"got a {_type_name(value)} on DLPack device type {kind}: pass numpy.from_dlpack(...)"
        )
    raise TypeError(
        f"{name} must be a CuPy array, NumPy array, torch tensor or an object with __dlpack__ on a "
        f"CUDA device, got {_type_name(value)}"
    )


def common_library(operands: dict[str, Any]) -> Library:
    """Return the library that all operands belong to; only bias and out may be None.

    The first operand is never None.

    Raises
    ------
    TypeError
        An operand of no known library, or operands of several.
    """
    libraries = {
        name: library_of(value, name)
        for name, value in operands.items()
        if value is not None or name not in ("bias", "out")
    }
    if len(set(libraries.values())) > 1:
        found = ", ".join(f"{name} is a {_type_name(operands[name])}" for name in libraries)
        raise TypeError(
            f"{', '.join(operands)} must be of one library: {found}; convert some of them, "
            "for example with cupy.asarray, cupy.asnumpy or torch.from_numpy"
        )
    return next(iter(libraries.values()))


def check_library(library: Library, x: Any, out: Any) -> None:
    """Raise TypeError unless x, and out where it is given, belong to the library of the weights."""
    for name, value in (("x", x), ("out", out)):
        if (value is not None or name == "x") and library_of(value, name) != library:
            raise TypeError(
                f"{name} must be of the library of weight, {library}, got a {_type_name(value)}"
            )


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
