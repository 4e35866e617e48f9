"""What is special to the NumPy path: its workspace, its blocks, and its runs of outputs."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from cupy_convt3d import _numpy_path, conv_transpose3d
from cupy_convt3d._numpy_path import _runs
from tests.problems import EDGES, Case, exact_result, integer_data
from tests.test_phase import AXES, products


def test_runs_are_the_products_of_the_definition() -> None:
    for axis in AXES:
        found = [
            (
                run.first_output + m * axis.stride,
                run.first_tap + j * axis.tap_step,
                run.first_input + m - j * axis.input_step,
            )
            for run in _runs(axis)
            for m, j in itertools.product(range(run.outputs), range(run.taps))
        ]
        # Every one of them exists: padding is never multiplied.
        assert sorted(found) == sorted(products(axis)), axis


@pytest.mark.parametrize("block_bytes", [1, 300, 2000, 20000])
def test_blocks_of_any_size_give_the_same(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_numpy_path, "BLOCK_BYTES", block_bytes)
    for case in EDGES:
        arrays = integer_data(case, "float32")
        y = conv_transpose3d(*arrays, **case.settings)
        np.testing.assert_array_equal(y, exact_result(case, arrays))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_workspace_is_bounded(dtype: str) -> None:
    case = Case("large", (4, 16, 32, 64, 64), (16, 16, 3, 3, 3))
    x = np.zeros(case.x, dtype=dtype)
    weight = np.zeros(case.weight, dtype=dtype)
    y = np.empty((4, 16, 34, 66, 66), dtype=dtype)
    tracemalloc.start()
    conv_transpose3d(x, weight, out=y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The bound of the docstring, and NumPy's own small buffers.
    assert peak <= weight.size * 4 + _numpy_path.BLOCK_BYTES + 2**20


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("extents", "taps"), [((2, 3, 4), 2 * 3), ((6, 7, 4), 5 * 5)])
def test_workspace_of_a_large_weight_is_bounded(
    extents: tuple[int, int, int], taps: int, dtype: str
) -> None:
    """One copy of the taps that are inside the input together, of the 5x5 on depth and height."""
    x = np.zeros((1, 128, *extents), dtype=dtype)
    weight = np.zeros((128, 128, 5, 5, 5), dtype=dtype)
    y = np.empty((1, 128, *(extent + 4 for extent in extents)), dtype=dtype)
    tracemalloc.start()
    conv_transpose3d(x, weight, out=y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Of x and the rows, a block needs less than 2 MiB here.
    assert peak <= taps * weight.size // 25 * 4 + 2 * 2**20


WIDE = [
    Case("more-taps-than-inputs", (2, 3, 2, 3, 3), (3, 2, 2, 2, 11), bias=True),
    Case("strided", (1, 2, 2, 2, 4), (2, 3, 1, 2, 9), stride=(1, 1, 3), padding=(0, 0, 7)),
    Case("dilated", (1, 4, 1, 2, 2), (4, 2, 1, 1, 5), dilation=(1, 1, 3), padding=(0, 0, 5)),
    Case("one-input", (1, 1, 1, 1, 1), (1, 2, 1, 1, 7), bias=True, padding=(0, 0, 2)),
    Case(
        "gcd-above-1", (1, 2, 1, 2, 3), (2, 4, 2, 1, 8), stride=(1, 1, 4), dilation=(1, 1, 6),
        output_padding=(0, 0, 5), groups=2,
    ),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
@pytest.mark.parametrize("case", WIDE, ids=lambda case: case.id)
def test_rows_with_fewer_inputs_than_taps(case: Case, dtype: str) -> None:
    arrays = integer_data(case, dtype)
    y = conv_transpose3d(*arrays, **case.settings)
    np.testing.assert_array_equal(y, exact_result(case, arrays))


def test_a_stride_far_above_the_kernel_costs_no_time_per_phase() -> None:
    x = np.ones((1, 1, 2, 2, 2), dtype=np.float32)
    y = conv_transpose3d(x, x[..., :1, :1, :1], stride=(10**6, 1, 1))
    assert y.shape == (1, 1, 10**6 + 1, 2, 2)
    assert y.sum() == 8
    assert y[0, 0, [0, -1]].min() == 1
