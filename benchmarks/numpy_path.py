"""Time the NumPy path against torch on the same CPU cores.

Run with ``python benchmarks/numpy_path.py``. Needs torch. Prints the best of several calls of each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cupy_convt3d import conv_transpose3d

PROBLEMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "KernelBench 58": ((16, 32, 16, 32, 64), (32, 16, 3, 5, 7), {}),
    "2x2x2 up-sampling": ((2, 128, 16, 16, 16), (128, 64, 2, 2, 2), {"stride": 2}),
    "3x3x3, stride 2": ((4, 32, 16, 32, 32), (32, 64, 3, 3, 3), {"stride": 2, "padding": 1}),
    "3 input channels": ((16, 3, 16, 32, 32), (3, 16, 3, 3, 3), {"stride": 2, "padding": 1}),
    "depthwise": ((1, 64, 16, 16, 16), (64, 1, 3, 3, 3), {"groups": 64}),
    "one channel": ((1, 1, 64, 64, 64), (1, 1, 3, 3, 3), {"padding": 1}),
    "23x23x23 kernel": ((1, 3, 16, 16, 16), (3, 8, 23, 23, 23), {}),
    "stride 200": ((1, 10, 1, 4000, 2), (10, 2, 1, 1, 1), {"stride": (1, 200, 20)}),
}

CALLS = 5


def best_seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    rng = np.random.default_rng(0)
    print(f"{'seconds, best of ' + str(CALLS):20s} {'ours':>8s} {'torch':>8s} {'ratio':>6s}")
    for name, (x_shape, weight_shape, settings) in PROBLEMS.items():
        x = rng.standard_normal(x_shape, dtype=np.float32)
        weight = rng.standard_normal(weight_shape, dtype=np.float32)
        tensors = torch.from_numpy(x), torch.from_numpy(weight)
        ours = best_seconds(lambda x=x, w=weight, s=settings: conv_transpose3d(x, w, **s))
        theirs = best_seconds(
            lambda t=tensors, s=settings: torch.nn.functional.conv_transpose3d(*t, **s)
        )
        print(f"{name:20s} {ours:8.4f} {theirs:8.4f} {ours / theirs:6.2f}")


if __name__ == "__main__":
    main()
