"""The activations on the CPU, in place and in little memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cupy_convt3d._activation import Activation

#: Elements that are worked on at a time: their temporaries stay in the caches.
CHUNK = 1 << 13


def activate(values: NDArray[Any], activation: Activation) -> None:
    """Apply an activation to a C-contiguous array of real floats, in place and in its dtype."""
    if activation.name is None:
        return
    flat = values.reshape(-1)
    for begin in range(0, flat.size, CHUNK):
        _activate_chunk(flat[begin : begin + CHUNK], activation)


def _activate_chunk(values: NDArray[Any], activation: Activation) -> None:
    if activation.name == "relu":
        # NaN stays NaN, as in torch.
        np.maximum(values, 0, out=values)
    elif activation.name == "leaky_relu":
        slope = values.dtype.type(activation.negative_slope)
        np.multiply(values, slope, out=values, where=~(values > 0))
    elif activation.name == "gelu":
        # By erfc, because 1 + erf has no correct digit left far below 0. NumPy has neither.
        arguments = (values * -math.sqrt(0.5)).tolist()
        values *= values.dtype.type(0.5)
        values *= np.fromiter(map(math.erfc, arguments), values.dtype, values.size)
    elif activation.name == "silu":
        values /= 1 + np.exp(-values)
