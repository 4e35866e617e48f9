"""What is special to the gradients on the CPU: their workspace, their blocks, and their runs."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from cupy_convt3d import (
    _numpy_gradients,
    conv_transpose3d_grad_input,
    conv_transpose3d_grad_weight,
)
from cupy_convt3d._numpy_gradients import _runs, _taps_along_width
from tests.gradients import exact_gradients, integer_operands, output_shape_of
from tests.problems import EDGES, Case
from tests.test_phase import AXES, products


def test_runs_are_the_products_of_the_definition() -> None:
    for axis in AXES:
        expected = sorted((tap, source) for _, tap, source in products(axis))
        found = [
            (run.first_tap + k, run.first_input + m)
            for run in _runs(axis)
            for k, m in itertools.product(range(run.taps), range(run.inputs))
        ]
        # Every one of them exists: padding is never multiplied.
        assert sorted(found) == expected, axis


def test_taps_along_width_are_the_products_of_the_definition() -> None:
    for axis in AXES:
        expected = sorted((tap, source) for _, tap, source in products(axis))
        found = [
            (tap, source)
            for tap, inputs in _taps_along_width(axis)
            for source in range(inputs.start, inputs.stop)
        ]
        assert sorted(found) == expected, axis


@pytest.mark.parametrize("block_bytes", [1, 300, 2000, 20000])
def test_blocks_of_any_size_give_the_same(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_numpy_gradients, "BLOCK_BYTES", block_bytes)
    for case in EDGES:
        x, weight, grad_output = operands = integer_operands(case, "float32")
        expected = exact_gradients(case, operands)
        grad_x = conv_transpose3d_grad_input(grad_output, weight, case.x, **case.settings)
        grad_weight = conv_transpose3d_grad_weight(x, grad_output, case.weight, **case.settings)
        np.testing.assert_array_equal(grad_x, expected[0])
        np.testing.assert_array_equal(grad_weight, expected[1])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_workspace_is_bounded(dtype: str) -> None:
    case = Case("large", (4, 16, 32, 64, 64), (16, 16, 3, 3, 3), stride=(1, 2, 1), padding=1)
    x = np.zeros(case.x, dtype=dtype)
    weight = np.zeros(case.weight, dtype=dtype)
    grad_output = np.zeros(output_shape_of(case), dtype=dtype)
    for compute in (
        lambda: conv_transpose3d_grad_input(grad_output, weight, case.x, **case.settings),
        lambda: conv_transpose3d_grad_weight(x, grad_output, case.weight, **case.settings),
    ):
        tracemalloc.start()
        result = compute()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # The bound of the docstrings, and NumPy's own small buffers.
        bound = result.nbytes + 2 * weight.size * 4 + _numpy_gradients.BLOCK_BYTES + 2**20
        assert peak <= bound
