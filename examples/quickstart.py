"""Call conv_transpose3d once: on a CUDA device if CuPy finds one, else on NumPy arrays.

Needs NumPy only, and compares with torch if that is installed. Run: python examples/quickstart.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_convt3d import conv_transpose3d


def array_library() -> tuple[Any, str]:
    try:
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except (ImportError, RuntimeError):  # CUDARuntimeError: no driver or no device
        return np, "NumPy path, no CUDA device found"
    return cupy, f"CUDA kernel on {device}"


rng = np.random.default_rng(0)
x = rng.standard_normal((2, 6, 4, 5, 6), dtype=np.float32)  # batch, channels, depth, height, width
weight = rng.standard_normal((6, 4, 3, 2, 5), dtype=np.float32)  # 6 channels to 2 groups of 4
bias = rng.standard_normal(8, dtype=np.float32)
stride, padding, groups = (1, 2, 3), (1, 0, 2), 2
xp, path = array_library()
y = conv_transpose3d(
    xp.asarray(x), xp.asarray(weight), xp.asarray(bias), stride, padding, groups=groups
)
print(f"{path}: {y.dtype} {y.shape}")
result = y if xp is np else xp.asnumpy(y)
try:
    import torch
except ImportError:
    output = np.array((2, 3, 4))
    expected = bias[0]  # plus the products of inputs and taps with output + padding == i*stride + k
    for i in np.ndindex(x.shape[2:]):
        k = output + padding - np.multiply(i, stride)
        if (k >= 0).all() and (k < weight.shape[2:]).all():
            expected += x[(0, slice(3), *i)] @ weight[(slice(3), 0, *k)]
    expected -= result[0, 0, 2, 3, 4]
    print("one output agrees with its definition to 1e-5:", abs(expected) < 1e-5)
else:
    operands = map(torch.from_numpy, (x, weight, bias))
    reference = torch.conv_transpose3d(*operands, stride, padding, groups=groups).numpy()
    print("agrees with torch to 1e-5:", abs(result - reference).max() < 1e-5)
