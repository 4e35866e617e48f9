"""How boxes of a tensor are copied to shared memory: ``BoxCopy`` of the kernels' parameters."""

from __future__ import annotations

import math
from typing import Any

from cupy_convt3d._params import fast_divmod
from cupy_convt3d._problem import Triple


def fill_box_copy(
    target: Any,
    *,
    extent: Triple,
    channels: int,
    box: Triple,
    channel_pitch: int,
    copy_elements: int,
    threads: int,
    plane_step: int = 1,
) -> None:
    """Fill a ``BoxCopy``.

    Parameters
    ----------
    target : BOX_COPY
    extent : (int, int, int)
        Of the tensor.
    channels : int
        Of the tensor, per group.
    box : (int, int, int)
        Planes, rows in a plane, and elements in a row that are copied.
    channel_pitch : int
        Elements from one channel to the next in shared memory.
    copy_elements : int
        Of one copy; a row of the box is whole copies.
    threads : int
        Of the block.
    plane_step : int
        Planes of the tensor from one plane of the box to the next.
    """
    row_copies = box[2] // copy_elements
    copies = math.prod(box[:2]) * row_copies
    copy_channels = max(1, threads // copies)
    target["extent"] = extent
    target["rows_h"] = fast_divmod(box[1])
    target["row_copies"] = fast_divmod(row_copies)
    target["copies"] = fast_divmod(copies)
    for name, value in (
        ("channels", channels),
        ("source_step", copy_channels * math.prod(extent)),
        ("target_step", copy_channels * channel_pitch),
        ("copy_elements", copy_elements),
        ("copy_channels", copy_channels),
        ("row", box[2]),
        ("channel_pitch", channel_pitch),
        ("plane_step", plane_step),
    ):
        target[name] = value
