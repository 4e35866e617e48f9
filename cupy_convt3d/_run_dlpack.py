"""Run a call whose operands are other libraries' arrays on a CUDA device (JAX, Numba, ...)."""

from __future__ import annotations

from typing import Any

from cupy_convt3d._call import Settings
from cupy_convt3d._run_cupy import run_cupy


def run_dlpack(x: Any, weight: Any, bias: Any, out: Any, settings: Settings) -> Any:
    """Return the result as a CuPy array; the operands are seen through DLPack without a copy.

    DLPack orders the streams: CuPy's current stream waits for the work that made the operands.
    """
    if out is not None:
        raise TypeError(
            f"out must be None for arrays of other libraries, got {type(out).__name__}: they may "
            "be immutable; pass CuPy arrays (cupy.from_dlpack) to use out"
        )
    bias_array = None if bias is None else from_dlpack(bias)
    return run_cupy(from_dlpack(x), from_dlpack(weight), bias_array, None, settings)


def from_dlpack(array: Any) -> Any:
    """Return a CuPy array that is a view of another library's."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "arrays on a CUDA device need CuPy: pip install 'cupy-convt3d[cuda12]' "
            "or 'cupy-convt3d[cuda13]'"
        ) from error
    return cupy.from_dlpack(array)
