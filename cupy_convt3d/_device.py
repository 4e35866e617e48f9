"""What a plan needs to know of the device it runs on."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """The limits of one CUDA device.

    ``capability`` is 10 * major + minor; ``shared_bytes`` is the most shared memory that one block
    may ask for.
    """

    name: str
    capability: int
    multiprocessors: int
    shared_bytes: int


#: What plans are made for where there is no device.
H100 = Device("NVIDIA H100 80GB HBM3", 90, 132, 227 * 1024)


@functools.cache
def device_of(index: int) -> Device:
    """Return the record of a CUDA device."""
    import cupy

    found = cupy.cuda.runtime.getDeviceProperties(index)
    return Device(
        found["name"].decode(),
        10 * found["major"] + found["minor"],
        found["multiProcessorCount"],
        found["sharedMemPerBlockOptin"],
    )
