"""Run a call whose operands are NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_convt3d._call import Settings, check_dtypes, checked_problem
from cupy_convt3d._numpy_path import conv_transpose3d_numpy
from cupy_convt3d._overlap import byte_range, check_no_overlap, check_out


def run_numpy(x: Any, weight: Any, bias: Any, out: Any, settings: Settings) -> Any:
    """Return the transposed convolution of NumPy arrays; see `cupy_convt3d.conv_transpose3d`."""
    check_dtypes(x, weight, bias, settings.activation)
    bias_shape = None if bias is None else bias.shape
    problem = checked_problem(x.shape, weight.shape, bias_shape, settings)
    y_shape = problem.y_shape if x.ndim == 5 else problem.y_shape[1:]
    if out is None:
        out = np.empty(y_shape, dtype=x.dtype)
    else:
        # NumPy copes with any alignment.
        check_out(out, y_shape, x.dtype, out.flags.c_contiguous, 0, x.dtype.itemsize)
        if not out.flags.writeable:
            raise ValueError("out must be writeable, got a read-only array")
        operands = {"x": x, "weight": weight, "bias": bias}
        check_no_overlap(
            _byte_range(out),
            {name: _byte_range(a) for name, a in operands.items() if a is not None},
        )
    conv_transpose3d_numpy(
        problem,
        x.reshape(problem.x_shape),
        weight,
        bias,
        out.reshape(problem.y_shape),
        settings.activation,
    )
    return out


def _byte_range(array: Any) -> tuple[int, int]:
    return byte_range(array.ctypes.data, array.shape, array.strides, array.itemsize)
