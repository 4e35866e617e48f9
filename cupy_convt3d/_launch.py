"""Run a plan on the current CUDA device: compile once, then pass pointers. No decisions."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_convt3d._loader import load_kernel
from cupy_convt3d._plan import Launch, Plan, Role

_NULL = np.uintp(0)

_BoundLaunch = tuple[Any, tuple[int], tuple[int], tuple[Role, ...], Any, int]


class BoundPlan:
    """A plan with its kernels compiled for one device.

    Building one needs the device to be current; running it too. ``captured`` keeps what captured
    graphs use of the caller's memory.
    """

    __slots__ = ("_launches", "_packing", "captured", "packed_bytes", "workspace_bytes")

    def __init__(self, plan: Plan, device: int) -> None:
        self.workspace_bytes = plan.workspace_bytes
        self.packed_bytes = plan.packed_bytes
        self.captured: list[Any] = []
        self._packing = [_bind(launch, device) for launch in plan.packing]
        self._launches = [_bind(launch, device) for launch in plan.launches]

    def pack(self, arrays: dict[Role, Any]) -> None:
        """Fill ``"packed"`` from ``"weight"``, on CuPy's current stream; before the first `run`."""
        _launch(self._packing, arrays)

    def run(self, arrays: dict[Role, Any]) -> None:
        """Launch everything else on CuPy's current stream.

        ``arrays`` maps every role to a CuPy array, or to an address as ``numpy.uintp``; ``"bias"``
        may be None.
        """
        _launch(self._launches, arrays)


def _bind(launch: Launch, device: int) -> _BoundLaunch:
    return (
        load_kernel(
            launch.kernel, launch.options, launch.shared_bytes, device, launch.architecture
        ),
        (launch.grid,),
        (launch.block,),
        launch.roles,
        # CuPy copies a plain block of bytes three times faster than a structured dtype.
        launch.params.view(f"V{launch.params.nbytes}"),
        launch.shared_bytes,
    )


def _launch(launches: list[_BoundLaunch], arrays: dict[Role, Any]) -> None:
    for kernel, grid, block, roles, params, shared_bytes in launches:
        arguments = [_NULL if (a := arrays[role]) is None else a for role in roles]
        kernel(grid, block, (*arguments, params), shared_mem=shared_bytes)
