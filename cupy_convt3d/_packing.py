"""The launch that rearranges weights for tensor cores, one thread for each lane of a fragment."""

from __future__ import annotations

import numpy as np

from cupy_convt3d._activation import NO_ACTIVATION
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._params import INDEX32_LIMIT
from cupy_convt3d._plan import Launch, launch_params, variant_options
from cupy_convt3d._tensor_core import Math

THREADS = 256


def packing_launch(
    kernel: str,
    dtype: KernelDtype,
    bits: int,
    math: Math,
    params: np.void,
    lanes: int,
    **macros: int,
) -> Launch:
    """Return the launch of a packing kernel that makes the fragments of so many lanes.

    ``params`` are those of the kernel that multiplies.
    """
    own = params.copy()
    own["tiles"] = lanes
    return Launch(
        kernel=kernel,
        options=variant_options(dtype, bits, NO_ACTIVATION, CONVT3D_MATH=math.number, **macros),
        grid=min(-(-lanes // THREADS), INDEX32_LIMIT),
        block=THREADS,
        shared_bytes=0,
        params=launch_params(own),
        roles=("weight", "packed"),
    )
