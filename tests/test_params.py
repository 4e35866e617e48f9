"""The parameter struct against the compiler, and division by multiplication against division."""

from __future__ import annotations

import re

import numpy as np

from cupy_convt3d._loader import kernel_directory
from cupy_convt3d._params import (
    AXIS_PARAMS,
    BOX_COPY,
    FAST_DIVMOD,
    GATHER_PARAMS,
    GEMM_PARAMS,
    GRAD_WEIGHT_PARAMS,
    PARAMS,
    SUBPIXEL_PARAMS,
    fast_divmod,
    index_bits,
)
from cupy_convt3d._problem import make_problem


def fields_of_struct(header: str, name: str) -> list[str]:
    text = (kernel_directory() / header).read_text(encoding="utf-8")
    body = re.search(rf"struct {name} {{(.*?)\n}};", text, re.DOTALL)
    assert body is not None
    code = re.sub(r"//.*", "", body.group(1))
    return re.findall(r"(\w+)(?:\[\d+\])?;", code)


def test_fields_are_those_of_the_header_in_order() -> None:
    assert fields_of_struct("fast_divmod.cuh", "FastDivmod") == list(FAST_DIVMOD.names)
    assert fields_of_struct("convt3d_params.cuh", "AxisParams") == list(AXIS_PARAMS.names)
    assert fields_of_struct("convt3d_params.cuh", "BoxCopy") == list(BOX_COPY.names)
    assert fields_of_struct("convt3d_params.cuh", "GradWeightParams") == list(
        GRAD_WEIGHT_PARAMS.names
    )
    assert fields_of_struct("convt3d_params.cuh", "GemmParams") == list(GEMM_PARAMS.names)
    assert fields_of_struct("convt3d_params.cuh", "GatherParams") == list(GATHER_PARAMS.names)
    assert fields_of_struct("convt3d_params.cuh", "SubpixelParams") == list(SUBPIXEL_PARAMS.names)
    assert fields_of_struct("convt3d_params.cuh", "Params") == list(PARAMS.names)


def test_sizes() -> None:
    # sizeof is checked by a static_assert in every variant; a kernel takes 4 KiB of parameters at
    # most.
    assert FAST_DIVMOD.itemsize == 16
    assert AXIS_PARAMS.itemsize == 18 * 8 + 7 * 16
    parts = sum(
        part.itemsize for part in (GEMM_PARAMS, GATHER_PARAMS, GRAD_WEIGHT_PARAMS, SUBPIXEL_PARAMS)
    )
    assert PARAMS.itemsize == 3 * AXIS_PARAMS.itemsize + 16 * 8 + 16 + parts
    assert PARAMS.itemsize < 4096 - 5 * 8


def test_fast_divmod_is_division() -> None:
    rng = np.random.default_rng(1)
    near_powers = [2**e + d for e in range(1, 31) for d in (-1, 0, 1)]
    divisors = [*range(1, 300), *near_powers, *rng.integers(1, 2**31, 300).tolist(), 2**31 - 1]
    for divisor in divisors:
        _, multiplier, shift = fast_divmod(divisor)
        assert 0 < multiplier < 2**32
        dividends = [0, 1, divisor - 1, divisor, divisor + 1, 2**31 - 1, 2**30]
        dividends += [
            q * divisor + d for q in (2, 3, 1000, (2**31 - 1) // divisor) for d in (-1, 0)
        ]
        dividends += rng.integers(0, 2**31, 20).tolist()
        for dividend in dividends:
            if 0 <= dividend < 2**31:
                assert (2 * dividend * multiplier) >> (32 + shift) == dividend // divisor


def test_index_width_follows_the_largest_index() -> None:
    def bits(x: tuple[int, ...], weight: tuple[int, ...], **settings: int) -> int:
        return index_bits(make_problem(x, weight, **settings))

    assert bits((1, 1, 512, 512, 256), (1, 1, 1, 1, 1)) == 32
    # 2**31 outputs.
    assert bits((1, 1, 512, 512, 256), (1, 32, 1, 1, 1)) == 64
    # 2**31 inputs, cropped to few outputs.
    assert bits((1, 8, 512, 512, 1024), (8, 1, 1, 1, 1), padding=200) == 64
    # Coordinates beyond 2**31 in a small problem.
    assert bits((1, 1, 1, 1, 3), (1, 1, 1, 1, 3), dilation=2**30, padding=0) == 64
    assert index_bits(make_problem((1, 1, 2, 2, 2), (1, 1, 1, 1, 1)), 2**31) == 64
