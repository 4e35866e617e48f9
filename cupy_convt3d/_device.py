"""What a plan needs to know of the device it runs on."""

from __future__ import annotations

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
