"""Checks of ``out``: what it must be, and that it shares no memory with an operand."""

from __future__ import annotations

from typing import Any


def check_out(
    out: Any,
    shape: tuple[int, ...],
    dtype: Any,
    contiguous: bool,
    address: int,
    itemsize: int,
) -> None:
    """Raise unless ``out`` has the result's shape and dtype and is C-contiguous and aligned."""
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have the shape of the result, {shape}, got {tuple(out.shape)}")
    if out.dtype != dtype:
        raise TypeError(f"out must have the dtype of x, {dtype}, got {out.dtype}")
    if not contiguous:
        raise ValueError("out must be C-contiguous, got strides " + str(_strides(out)))
    if address % itemsize:
        raise ValueError(f"out must be aligned to its item size of {itemsize} bytes")


def check_no_overlap(out: tuple[int, int], operands: dict[str, tuple[int, int]]) -> None:
    """Raise ValueError if the bytes [begin, end) of ``out`` meet those of an operand."""
    for name, (begin, end) in operands.items():
        if out[0] < end and begin < out[1]:
            raise ValueError(f"out must not lie in the range of memory of {name}")


def byte_range(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, int]:
    """Return the range of addresses that a strided array spans; strides are in bytes."""
    if 0 in shape:
        return address, address
    spans = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    begin = address + sum(span for span in spans if span < 0)
    end = address + sum(span for span in spans if span > 0) + itemsize
    return begin, end


def _strides(out: Any) -> tuple[int, ...]:
    strides = out.strides if hasattr(out, "strides") else out.stride()
    return tuple(strides)
