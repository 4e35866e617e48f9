"""How accurate products of float32 must be: ``precision=``."""

from __future__ import annotations

import os
from typing import Any

#: From the most accurate on: a kernel may be more accurate than it is asked to be.
PRECISIONS = ("ieee", "bf16x3", "tf32")


def precision_of(precision: Any) -> str:
    """Return one of `PRECISIONS`; None follows ``CUPY_TF32`` as CuPy's matmul does.

    Raises
    ------
    ValueError
        Neither None nor one of `PRECISIONS`, or ``CUPY_TF32`` is no integer.
    """
    if precision is None:
        return _from_environment()
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(
            f"precision must be None or one of {', '.join(PRECISIONS)}, got {precision!r}"
        )
    return precision


def _from_environment() -> str:
    # CuPy keeps what it read at its first product; here each call reads.
    text = os.environ.get("CUPY_TF32", "0")
    try:
        return "tf32" if int(text) > 0 else "ieee"
    except ValueError:
        raise ValueError(
            f"precision=None needs an integer in the environment variable CUPY_TF32, got {text!r}"
        ) from None
