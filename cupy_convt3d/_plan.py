"""What one call launches, as plain data: computed once per signature, then only run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._params import PARAMS

#: What a kernel's pointer parameter points to. ``bias`` may be absent: then a null pointer is
#: passed.
Role = Literal[
    "x", "weight", "bias", "y", "grad_output", "grad_input", "grad_weight", "workspace", "packed"
]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    ``kernel`` names the file in ``kernels_cu`` and its entry point; the entry point takes the
    arrays of ``roles`` in order, then ``params`` by value. ``architecture`` is "90a" if the kernel
    has instructions of this architecture alone, and runs on no other; empty stands for that of the
    device.
    """

    kernel: str
    options: tuple[str, ...]
    grid: int
    block: int
    shared_bytes: int
    params: NDArray[Any]
    roles: tuple[Role, ...]
    architecture: str = ""

    def runs_on(self, capability: int) -> bool:
        """Return whether devices of this compute capability, such as 90, can run the kernel."""
        return self.architecture in ("", f"{capability}a")


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches of one call, in order, and the scratch memory they share.

    ``workspace_bytes`` is 0 where none is needed. ``deterministic`` says that two runs on the same
    data give the same bits. ``packing`` are launches that go before the others and depend on the
    weights alone: they fill ``packed``, of ``packed_bytes``, and need not be repeated while the
    weights stay the same.
    """

    algorithm: str
    launches: tuple[Launch, ...]
    workspace_bytes: int
    deterministic: bool
    packing: tuple[Launch, ...] = ()
    packed_bytes: int = 0


def launch_params(params: np.void) -> NDArray[Any]:
    """Return the size-one array that CuPy passes to a kernel as a struct by value."""
    array = np.empty(1, dtype=params.dtype)
    array[0] = params
    array.flags.writeable = False
    return array


def variant_options(
    dtype: KernelDtype, index_bits: int, activation: Activation = NO_ACTIVATION, **macros: int
) -> tuple[str, ...]:
    """Return the ``-D`` options that select one variant of a kernel (convt3d_config.cuh)."""
    values = {
        "CONVT3D_DTYPE": dtype.number,
        "CONVT3D_INDEX_BITS": index_bits,
        "CONVT3D_PARAMS_SIZE": PARAMS.itemsize,
        **macros,
    }
    if activation.number:
        values["CONVT3D_ACTIVATION"] = activation.number
    return tuple(f"-D{name}={value}" for name, value in values.items())
