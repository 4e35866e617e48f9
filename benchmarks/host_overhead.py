"""Measure what a call costs the host, from the second call of a signature on.

Run with ``python benchmarks/host_overhead.py``. Needs CuPy and a CUDA device. The problem is tiny
and nothing synchronises inside a timed batch, so the time is that of Python: validation, the
look-up of the plan, the allocation of the result, and the queueing of the launch. One line is a
CuPy kernel launch alone, for comparison.

The lines of torch are on CUDA tensors where torch has CUDA. Otherwise they are on CPU tensors with
the arithmetic left out: what the way to the kernels costs, without them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import cupy
import numpy as np

from cupy_convt3d import (
    ConvTranspose3dPlan,
    conv_transpose3d,
    conv_transpose3d_grad_input,
    conv_transpose3d_grad_weight,
)

BATCHES = 30
CALLS = 200


def microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the best time of a call over batches of calls."""
    for _ in range(CALLS):
        call()
    times = []
    for _ in range(BATCHES):
        cupy.cuda.Stream.null.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(times), min(times)


def torch_calls() -> dict[str, Callable[[], object]]:
    """Return calls of the operator on a problem of the same size; none without torch."""
    try:
        import torch
    except ImportError:
        return {}
    from cupy_convt3d.torch import ConvTranspose3d, _operators
    from cupy_convt3d.torch import conv_transpose3d as torch_function

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        _operators.forward_cpu = lambda *_arguments: None
    layer = ConvTranspose3d(2, 3, 2, stride=2, device=device)
    frozen = ConvTranspose3d(2, 3, 2, stride=2, device=device).requires_grad_(False)
    x = torch.ones(1, 2, 2, 3, 4, device=device)
    return {
        f"torch, {device}: conv_transpose3d": lambda: torch_function(
            x, frozen.weight, frozen.bias, stride=2
        ),
        f"torch, {device}: ConvTranspose3d": lambda: frozen(x),
        f"torch, {device}: ConvTranspose3d, recorded": lambda: layer(x),
    }


def main() -> None:
    x = cupy.asarray(np.ones((1, 2, 2, 3, 4), dtype=np.float32))
    weight = cupy.asarray(np.ones((2, 3, 2, 2, 2), dtype=np.float32))
    bias = cupy.asarray(np.ones(3, dtype=np.float32))
    out = conv_transpose3d(x, weight, bias, stride=2)
    plan = ConvTranspose3dPlan(weight, bias, stride=2)
    side = cupy.cuda.Stream(non_blocking=True)

    def plan_on_another_stream() -> None:
        with side:
            plan(x)

    empty = cupy.RawKernel('extern "C" __global__ void empty(const float* x) {}', "empty")
    calls: dict[str, Callable[[], object]] = {
        "conv_transpose3d": lambda: conv_transpose3d(x, weight, bias, stride=2),
        "conv_transpose3d, algorithm='gather'": lambda: conv_transpose3d(
            x, weight, bias, stride=(2, 2, 2), algorithm="gather"
        ),
        "conv_transpose3d, out=": lambda: conv_transpose3d(x, weight, bias, stride=2, out=out),
        "conv_transpose3d, activation='relu'": lambda: conv_transpose3d(
            x, weight, bias, stride=2, activation="relu"
        ),
        "ConvTranspose3dPlan": lambda: plan(x),
        "ConvTranspose3dPlan, out=": lambda: plan(x, out=out),
        "ConvTranspose3dPlan, another stream": plan_on_another_stream,
        "conv_transpose3d_grad_input": lambda: conv_transpose3d_grad_input(
            out, weight, x.shape, stride=2
        ),
        "conv_transpose3d_grad_weight": lambda: conv_transpose3d_grad_weight(
            x, out, weight.shape, stride=2
        ),
        "an empty cupy.RawKernel": lambda: empty((1,), (32,), (x,)),
        **torch_calls(),
    }
    print(f"{'host time per call, microseconds':40s} {'median':>7s} {'best':>7s}")
    for name, call in calls.items():
        median, best = microseconds(call)
        print(f"{name:40s} {median:7.1f} {best:7.1f}")


if __name__ == "__main__":
    main()
