"""The variants of the kernels that plans can ask for."""

from __future__ import annotations

from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan import Launch
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._plan_scatter import plan_scatter
from cupy_convt3d._problem import make_problem

#: Output channels per group that lead to each register tile of the kernels.
CHANNELS = (1, 2, 4, 8, 16)


def launches() -> list[Launch]:
    """Return one launch of each variant, that of most shared memory."""
    best: dict[tuple[str, tuple[str, ...]], Launch] = {}
    for channels in CHANNELS:
        # Boxes of this input are cut, so that the scatter fills, adds with atomics and converts.
        problem = make_problem((1, 2, 40, 40, 40), (2, channels, 3, 5, 5))
        for dtype in DTYPES.values():
            for bits in (32, 64):
                for planner in (plan_gather, plan_scatter):
                    for launch in planner(problem, dtype, True, bits).launches:
                        key = (launch.kernel, launch.options)
                        if key not in best or launch.shared_bytes > best[key].shared_bytes:
                            best[key] = launch
    return list(best.values())


def kernel_variants() -> list[tuple[str, tuple[str, ...]]]:
    """Return the kernels and options of all variants."""
    return [(launch.kernel, launch.options) for launch in launches()]
