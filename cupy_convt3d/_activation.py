"""The function that may be applied to each output before it is rounded: its names and settings."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

from cupy_convt3d._dtypes import KernelDtype

#: In the order of their numbers in ``kernels_cu/convt3d_config.cuh``, from 1 on; 0 is none.
ACTIVATIONS = ("relu", "leaky_relu", "gelu", "silu")


class Activation(NamedTuple):
    """An activation in canonical form: ``negative_slope`` is 0 unless leaky_relu uses it.

    A tuple, because it is part of the key of every cached plan: tuples are hashed without Python.
    """

    name: str | None
    negative_slope: float

    @property
    def number(self) -> int:
        """``CONVT3D_ACTIVATION`` in ``kernels_cu/convt3d_config.cuh``."""
        return 0 if self.name is None else 1 + ACTIVATIONS.index(self.name)


NO_ACTIVATION = Activation(None, 0.0)


def activation_of(name: Any, negative_slope: Any) -> Activation:
    """Return the activation of a call; raises TypeError or ValueError for what is none."""
    slope = _finite(negative_slope)
    if name is None:
        return NO_ACTIVATION
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(
            f"activation must be None or one of {', '.join(ACTIVATIONS)}, got {name!r}"
        )
    # Adding 0 turns -0, which would equal 0 as a key of a cache, into 0.
    return Activation(name, slope + 0.0 if name == "leaky_relu" else 0.0)


def check_activation(activation: Activation, dtype: KernelDtype) -> None:
    """Raise TypeError if complex numbers, which have no order, meet an activation."""
    if activation.name is not None and dtype.name.startswith("complex"):
        raise TypeError(
            f"activation must be None for complex dtypes, got {activation.name!r} "
            f"(the dtype is {dtype.name})"
        )


def _finite(negative_slope: Any) -> float:
    # bool is a Real; NumPy's is not.
    if isinstance(negative_slope, bool) or not isinstance(negative_slope, (float, Real)):
        raise TypeError(
            f"negative_slope must be a real number, got {negative_slope!r} "
            f"of type {type(negative_slope).__name__}"
        )
    try:
        slope = float(negative_slope)
    except OverflowError:
        slope = math.inf
    if not -math.inf < slope < math.inf:
        raise ValueError(f"negative_slope must be finite, got {negative_slope!r}")
    return slope
