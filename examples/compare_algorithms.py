"""Compare gather and scatter: the bits of repeated runs, and the distance to float64.

Where blocks of the scatter meet in an output they add to it with atomics, in the order in which
they happen to run. Float32 addition is not associative, so last bits can differ from run to run.
The gather sums each output in one fixed order.

Run: python examples/compare_algorithms.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_convt3d import conv_transpose3d

RUNS = 5


def cuda_arrays() -> Any:
    """Return CuPy if it finds a CUDA device, else None."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError):  # CUDARuntimeError: no driver or no device
        return None
    return cupy


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 8, 8, 12, 16), dtype=np.float32)
    # A stride of 2 is below the kernel's 4, so neighbouring inputs meet: the scatter needs atomics.
    weight = rng.standard_normal((8, 4, 4, 4, 4), dtype=np.float32)
    cupy = cuda_arrays()

    def run(dtype: str, algorithm: str) -> Any:
        xp = np if cupy is None else cupy
        operands = xp.asarray(x, dtype), xp.asarray(weight, dtype)
        y = conv_transpose3d(*operands, stride=2, padding=1, algorithm=algorithm)
        return y if cupy is None else cupy.asnumpy(y)

    if cupy is None:
        print("NumPy path, no CUDA device found: every algorithm is this one")
    exact = run("float64", "gather")
    for algorithm in ("auto",) if cupy is None else ("gather", "scatter"):
        results = np.stack([run("float32", algorithm) for _ in range(RUNS)])
        if len({y.tobytes() for y in results}) == 1:
            seen = f"the same bits in {RUNS} runs"
        else:
            seen = f"{RUNS} runs differ by up to {np.ptp(results, axis=0).max():.1e}"
        print(f"{algorithm}: {seen}, at most {np.abs(results - exact).max():.1e} from float64")


if __name__ == "__main__":
    main()
