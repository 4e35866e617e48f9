"""The problems that every kernel must get right, named by the edge they sit on, and their data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from cupy_convt3d._problem import Problem, make_problem
from tests.reference import scatter_reference

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")

#: Integers up to here are stored exactly.
EXACT_LIMIT = {
    "float16": 2**11,
    "bfloat16": 2**8,
    "float32": 2**24,
    "float64": 2**53,
    "complex64": 2**24,
    "complex128": 2**53,
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


@dataclass(frozen=True)
class Case:
    """The arguments of one call, without data."""

    id: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    bias: bool = False
    stride: Any = 1
    padding: Any = 0
    output_padding: Any = 0
    groups: int = 1
    dilation: Any = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "output_padding": self.output_padding,
            "groups": self.groups,
            "dilation": self.dilation,
        }

    @property
    def bias_shape(self) -> tuple[int, ...] | None:
        return (self.weight[1] * self.groups,) if self.bias else None

    def problem(self) -> Problem:
        return make_problem(self.x, self.weight, self.bias_shape, **self.settings)

    @property
    def depth(self) -> int:
        """Products of one output at most."""
        return self.weight[0] // self.groups * int(np.prod(self.weight[2:]))


def _case(name: str, x: str, weight: str, **settings: Any) -> Case:
    """Spell shapes as '2x3x4'."""
    x_shape, weight_shape = (tuple(int(e) for e in s.split("x")) for s in (x, weight))
    return Case(name, x_shape, weight_shape, **settings)


EDGES = [
    _case("plain", "2x3x3x4x5", "3x2x2x3x4", bias=True),
    _case("pointwise", "2x5x2x3x4", "5x4x1x1x1", bias=True),
    _case("stride-above-kernel", "1x2x2x3x4", "2x3x1x2x3", bias=True, stride=(3, 4, 5)),
    _case("stride-equals-kernel", "2x4x2x3x4", "4x5x2x3x2", bias=True, stride=(2, 3, 2)),
    _case("kernel-1x2x2-stride-1x2x2", "2x6x3x4x5", "6x4x1x2x2", bias=True, stride=(1, 2, 2)),
    _case("stride-divides-dilation", "1x2x3x4x5", "2x3x2x3x2", stride=2, dilation=(4, 2, 6)),
    _case(
        "dilation-divides-stride", "1x2x3x4x5", "2x3x3x2x3", stride=(4, 6, 6), dilation=(2, 3, 2)
    ),
    _case("gcd-above-1", "1x2x3x3x4", "2x2x3x3x2", bias=True, stride=(4, 6, 9), dilation=(6, 4, 6)),
    _case("coprime", "1x2x3x4x3", "2x3x3x4x5", stride=(2, 3, 5), dilation=(3, 2, 3)),
    _case("padding-above-kernel", "1x2x9x10x11", "2x3x2x3x2", bias=True, padding=(3, 4, 3)),
    _case("padding-crops-taps", "2x3x5x4x6", "3x2x3x5x4", stride=(2, 1, 3), padding=(4, 3, 5)),
    _case(
        "output-padding",
        "1x2x3x4x2",
        "2x3x3x2x3",
        bias=True,
        stride=(2, 3, 2),
        padding=(1, 0, 1),
        output_padding=(1, 2, 1),
    ),
    _case(
        "output-padding-from-dilation",
        "1x3x2x3x4",
        "3x2x2x3x2",
        bias=True,
        output_padding=(1, 2, 3),
        dilation=(2, 3, 4),
    ),
    # The taps along depth pass the only output by on both sides.
    _case("no-tap-reaches", "1x2x1x2x3", "2x3x2x1x2", bias=True, padding=(1, 0, 0), dilation=2),
    _case("one-element-axes", "2x3x1x1x1", "3x4x3x1x2", stride=(2, 3, 1), bias=True),
    _case("one-output", "1x3x1x1x1", "3x2x3x3x3", padding=1),
    _case("row-only", "1x2x1x1x37", "2x3x1x1x5", stride=(1, 1, 2)),
    _case("column-only", "1x2x41x1x1", "2x3x7x1x1", stride=(3, 1, 1)),
    _case("primes", "3x7x5x7x11", "7x5x3x2x5", bias=True, stride=(2, 1, 3), padding=(1, 1, 2)),
    _case("channels-below-a-tile", "1x1x3x4x5", "1x1x3x3x3", stride=2),
    _case("channels-above-a-tile", "1x19x2x3x4", "19x37x2x2x2", bias=True, stride=(1, 2, 1)),
    _case("two-channels", "1x5x3x4x4", "5x2x3x2x3", stride=(2, 2, 1)),
    _case("seven-channels", "1x4x3x4x4", "4x7x3x2x3", padding=1),
    _case("groups", "2x6x3x4x5", "6x3x3x2x3", bias=True, stride=(2, 1, 2), groups=3),
    _case("depthwise", "2x5x3x4x5", "5x1x3x3x3", bias=True, stride=2, padding=1, groups=5),
    _case("depthwise-multiplier", "1x4x3x4x3", "4x3x2x3x2", stride=(1, 2, 3), groups=4),
    _case("many-taps", "1x2x3x3x4", "2x2x7x6x9", padding=(2, 1, 3)),
    _case("many-channels", "1x300x1x2x2", "300x2x1x1x1", bias=True),
    _case("large-batch", "70x1x1x2x2", "1x2x1x2x1", bias=True, stride=2),
    _case("positions-above-a-block", "1x1x11x12x13", "1x2x2x1x3"),
    _case("wide-kernel", "1x2x2x3x3", "2x2x1x1x70", stride=(1, 1, 3), bias=True),
]


def is_small(entry: dict[str, Any]) -> bool:
    """Whether a case of cases.jsonl has a result that can be computed everywhere, in every way."""
    return "out" in entry and not entry.get("big") and not entry.get("perf")


def load_cases() -> list[dict[str, Any]]:
    """Return the cases that users of other libraries reported (cases.jsonl)."""
    path = Path(__file__).with_name("cases.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def as_triple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def case_of(entry: dict[str, Any]) -> Case:
    """Return an entry of cases.jsonl that has a result."""
    return Case(
        entry["id"],
        tuple(entry["x"]),
        tuple(entry["w"]),
        bias=bool(entry.get("bias", False)),
        stride=as_triple(entry.get("stride", 1)),
        padding=as_triple(entry.get("padding", 0)),
        output_padding=as_triple(entry.get("output_padding", 0)),
        groups=entry.get("groups", 1),
        dilation=as_triple(entry.get("dilation", 1)),
    )


@st.composite
def drawn_cases(draw: st.DrawFn) -> Case:
    """Draw any legal problem with small extents."""
    groups = draw(st.integers(1, 3))
    extents = st.tuples(*[st.integers(1, 5)] * 3)
    x = (draw(st.integers(1, 3)), groups * draw(st.integers(1, 4)), *draw(extents))
    weight = (x[1], draw(st.integers(1, 5)), *draw(extents))
    stride = draw(st.tuples(*[st.integers(1, 5)] * 3))
    dilation = draw(st.tuples(*[st.integers(1, 4)] * 3))
    output_padding = tuple(
        draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
    )
    padding = []
    for i, k, s, d, op in zip(x[2:], weight[2:], stride, dilation, output_padding, strict=True):
        full = (i - 1) * s + d * (k - 1) + op + 1
        padding.append(draw(st.integers(0, (full - 1) // 2)))
    return Case(
        "drawn",
        x,
        weight,
        draw(st.booleans()),
        stride,
        tuple(padding),
        output_padding,
        groups,
        dilation,
    )


Arrays = tuple[NDArray[Any], NDArray[Any], "NDArray[Any] | None"]


def _draw(case: Case, dtype: str, values: Callable[[tuple[int, ...]], NDArray[Any]]) -> Arrays:
    target = numpy_dtype(dtype)

    def draw(shape: tuple[int, ...]) -> NDArray[Any]:
        drawn = values(shape).astype(np.float64)
        if target.kind == "c":
            drawn = drawn + 1j * values(shape)
        return drawn.astype(target)

    return draw(case.x), draw(case.weight), draw(case.bias_shape) if case.bias_shape else None


def integer_data(case: Case, dtype: str, seed: int = 0) -> Arrays:
    """Return x, weight, bias of small integers, for which every order of summation is exact."""
    rng = np.random.default_rng(seed)
    return _draw(case, dtype, lambda shape: rng.integers(-1, 2, shape))


def normal_data(case: Case, dtype: str, seed: int = 0) -> Arrays:
    """Return x, weight, bias of standard normal values."""
    rng = np.random.default_rng(seed)
    return _draw(case, dtype, rng.standard_normal)


def exact_result(case: Case, arrays: Arrays) -> NDArray[Any]:
    """Return the result in float64 by torch on the CPU; complex ones from the definition.

    (torch multiplies complex numbers by a three-product scheme that loses accuracy.)
    """
    x, weight, bias = arrays
    if x.dtype.kind == "c":
        problem = case.problem()
        return scatter_reference(
            x,
            weight,
            bias,
            problem.output,
            problem.stride,
            problem.padding,
            problem.groups,
            problem.dilation,
        )
    tensors = [None if a is None else torch.from_numpy(a.astype(np.float64)) for a in arrays]
    result: NDArray[Any] = torch.nn.functional.conv_transpose3d(*tensors, **case.settings).numpy()
    return result


def magnitude(case: Case, arrays: Arrays) -> NDArray[Any]:
    """Return the sum of the absolute products of each output, which rounding errors scale with."""
    wide = [None if a is None else np.abs(a.astype(np.complex128)) for a in arrays]
    tensors = [None if a is None else torch.from_numpy(a) for a in wide]
    result: NDArray[Any] = torch.nn.functional.conv_transpose3d(*tensors, **case.settings).numpy()
    return result
