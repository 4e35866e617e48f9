"""The problems of the GPU benchmark, their data on the device, and how right a result is.

The problems are entries of ``tests/cases.jsonl``, so that their shapes are written down once.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cupy_convt3d import conv_transpose3d
from cupy_convt3d._problem import Problem, make_problem

CASES = Path(__file__).resolve().parent.parent / "tests" / "cases.jsonl"

#: In the order of importance.
PROBLEMS = (
    "kb1-58",
    "nnunet-222-64to32",
    "kb1-73",
    "kb1-77",
    "kb1-72",
    "kb1-61",
    "nnunet-222-128to64",
    "kb1-70",
    "kb1-68",
    "nnunet-122-64to32",
    "nnunet-222-256to128",
    "nnunet-222-320to256",
    "nnunet-222-320to320",
)

#: Small problems on the edges of the operation: holes, groups, dilation against stride, one voxel.
EDGES = (
    "asym-tvm6065",
    "dil-mxnet11203",
    "groups-depthwise",
    "groups-trt4188",
    "holes-bias",
    "k2s2-mlx4343",
    "op-5112",
    "op-coreai79",
    "opinfo-1",
    "opinfo-5",
    "osize-3dunet11-odd",
)

#: KernelBench's tolerance in float32, absolute and relative.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Workload:
    """One problem by its name in ``tests/cases.jsonl``."""

    id: str
    problem: Problem
    bias: bool

    @property
    def settings(self) -> dict[str, Any]:
        """The keywords of `conv_transpose3d`."""
        p = self.problem
        return {
            "stride": p.stride,
            "padding": p.padding,
            "output_padding": p.output_padding,
            "groups": p.groups,
            "dilation": p.dilation,
        }

    def describe(self) -> dict[str, Any]:
        """Return the shapes and settings, for the results."""
        return {
            "x": self.problem.x_shape,
            "weight": self.problem.weight_shape,
            "bias": self.bias,
            **self.settings,
            "y": self.problem.y_shape,
        }


@functools.lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return {entry["id"]: entry for entry in map(json.loads, lines)}


def load_workload(name: str, tiny: bool = False) -> Workload:
    """Return the problem of that name, or a small one with the same kernel and settings."""
    try:
        entry = _entries()[name]
    except KeyError:
        raise ValueError(f"problem must be an id in {CASES.name}, got {name!r}") from None
    x, weight, groups = entry["x"], entry["w"], entry.get("groups", 1)
    if tiny:
        in_channels = groups * min(x[-4] // groups, 3)
        x = [min(x[0], 2), in_channels, *(min(extent, 4) for extent in x[-3:])]
        weight = [in_channels, min(weight[1], 3), *weight[2:]]
    problem = make_problem(
        x,
        weight,
        None,
        entry.get("stride", 1),
        entry.get("padding", 0),
        entry.get("output_padding", 0),
        groups,
        entry.get("dilation", 1),
    )
    return Workload(name, problem, bool(entry.get("bias", False)))


def integer_operands(workload: Workload, dtype: Any) -> list[Any]:
    """Return x, weight, bias in NumPy, of integers whose products sum exactly in every order."""
    rng = np.random.default_rng(0)
    problem = workload.problem
    bias_shape = (problem.out_channels,) if workload.bias else None
    operands: list[Any] = []
    for shape in (problem.x_shape, problem.weight_shape, bias_shape):
        if shape is None:
            operands.append(None)
            continue
        values = rng.integers(-1, 2, shape).astype(np.float64)
        if dtype.kind == "c":
            values = values + 1j * rng.integers(-1, 2, shape)
        operands.append(values.astype(dtype))
    return operands


# The PCG hash of the index (Jarzynski and Olano, "Hash Functions for GPU Rendering", 2020): an
# array of a GB takes seconds to draw on the host.
_UNIFORM = """
unsigned int h = static_cast<unsigned int>(i) * 747796405u + seed;
h = ((h >> ((h >> 28) + 4)) ^ h) * 277803737u;
h = (h >> 22) ^ h;
y = low + (high - low) * ((h >> 8) * 5.9604644775390625e-8f);
"""


def uniform(shape: tuple[int, ...], low: float, high: float, seed: int) -> Any:
    """Return a CuPy array of float32 drawn on the device."""
    import cupy

    kernel = cupy.ElementwiseKernel(
        "uint32 seed, float32 low, float32 high", "float32 y", _UNIFORM, "convt3d_uniform"
    )
    y = cupy.empty(shape, dtype=cupy.float32)
    kernel(seed, low, high, y)
    return y


@dataclass(frozen=True)
class Operands:
    """Data of a workload as KernelBench draws it: x in [0, 1), weights as torch initialises."""

    x: Any
    weight: Any
    bias: Any

    def to_torch(self) -> Operands:
        """Return torch tensors of the same memory."""
        import torch

        return Operands(*(None if a is None else torch.from_dlpack(a) for a in self.arrays))

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """The positional operands of `conv_transpose3d`."""
        return self.x, self.weight, self.bias


# One at a time: the largest takes 3 GB with its result.
@functools.lru_cache(maxsize=1)
def device_operands(workload: Workload, dtype: str = "float32") -> Operands:
    """Return the data of a workload as CuPy arrays."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    problem = workload.problem
    # torch's kaiming_uniform_(a=sqrt(5)): weight.size(1) * taps counts as fan-in.
    limit = 1 / math.sqrt(problem.out_channels_per_group * math.prod(problem.kernel))
    bias = uniform((problem.out_channels,), -limit, limit, 3) if workload.bias else None
    return Operands(
        uniform(problem.x_shape, 0.0, 1.0, 1).astype(dtype, copy=False),
        uniform(problem.weight_shape, -limit, limit, 2).astype(dtype, copy=False),
        None if bias is None else bias.astype(dtype, copy=False),
    )


@functools.lru_cache(maxsize=1)
def gather_result(workload: Workload, dtype: str) -> Any:
    """Return the whole result by the gather kernel, the baseline of truth on the device."""
    operands = device_operands(workload, dtype)
    return conv_transpose3d(*operands.arrays, **workload.settings, algorithm="gather")


def ends(extent: int) -> list[int]:
    """Return the first and the last index."""
    return sorted({0, extent - 1})


@functools.cache
def exact_slice(workload: Workload) -> NDArray[np.float64]:
    """Return the first and last sample and output channel of each group, in float64 on the CPU."""
    problem = workload.problem
    x, weight, bias = device_operands(workload).arrays
    samples, channels = ends(problem.batch), ends(problem.out_channels_per_group)
    if bias is not None:
        bias = bias.get().reshape(problem.groups, -1)[:, channels].ravel().astype(np.float64)
    y: NDArray[np.float64] = conv_transpose3d(
        np.stack([x[n].get() for n in samples]).astype(np.float64),
        weight.get()[:, channels].astype(np.float64),
        bias,
        **workload.settings,
    )
    return y


def slice_accuracy(workload: Workload, y: Any) -> dict[str, Any]:
    """Return how far a CuPy result is from float64, on the outputs of `exact_slice`."""
    problem = workload.problem
    if y.shape != problem.y_shape:
        raise ValueError(f"y must have shape {problem.y_shape}, got {y.shape}")
    exact = exact_slice(workload)
    grouped = (problem.groups, problem.out_channels_per_group, *problem.output)
    channels = ends(problem.out_channels_per_group)
    rows = [
        np.stack([y[n].get().reshape(grouped)[:, c] for c in channels], axis=1)
        for n in ends(problem.batch)
    ]
    error = np.abs(np.stack(rows).reshape(exact.shape) - exact)
    # A comparison that is false for NaN.
    inside = error <= TOLERANCE + TOLERANCE * np.abs(exact)
    return {
        "max_error": float(error.max()),
        "share_outside": 1 - float(inside.mean()),
        "within_gate": bool(inside.all()),
    }


def whole_accuracy(workload: Workload, y: Any, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Return the share of all outputs that are farther from the gather's than the tolerance."""
    import cupy

    inside = 0
    # Sample by sample: the temporaries of a whole result would be several GB.
    for theirs, ours in zip(gather_result(workload, y.dtype.name), y, strict=True):
        wide = cupy.promote_types(y.dtype, cupy.float32)
        theirs, ours = theirs.astype(wide, copy=False), ours.astype(wide, copy=False)
        inside += int(
            cupy.count_nonzero(cupy.abs(ours - theirs) <= tolerance + tolerance * cupy.abs(theirs))
        )
    return {"share_outside_gather": 1 - inside / y.size}


def products(workload: Workload) -> int:
    """Return the products that reach an output: useful multiply-adds."""
    p = workload.problem
    reached = 1
    for i, k, o, s, pad, d in zip(
        p.input, p.kernel, p.output, p.stride, p.padding, p.dilation, strict=True
    ):
        reached *= sum(
            0 <= a * s + b * d - pad < o for a, b in itertools.product(range(i), range(k))
        )
    return p.batch * p.in_channels * p.out_channels_per_group * reached
