"""The public gradients on every kind of array: values, layouts, and errors before any work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_convt3d import (
    conv_transpose3d_grad_bias,
    conv_transpose3d_grad_input,
    conv_transpose3d_grad_weight,
)
from tests.gradients import (
    exact_gradients,
    gradient_depths,
    gradient_magnitudes,
    integer_operands,
    normal_operands,
)
from tests.libraries import LIBRARIES, NUMPY, Library
from tests.problems import (
    DTYPES,
    EDGES,
    EXACT_LIMIT,
    Case,
    case_of,
    drawn_cases,
    is_small,
    load_cases,
    numpy_dtype,
)
from tests.reference import error_bound, gradient_reference

#: Reported cases with a result that needs no output size to be known.
REPORTED = [entry for entry in load_cases() if is_small(entry) and "output_size" not in entry]


def gradients(
    library: Library, case: Case, operands: tuple[Any, ...], **keywords: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return both gradients as NumPy data after checking that they are the caller's kind."""
    x, weight, grad_output = library.make_all(operands)
    grad_x = conv_transpose3d_grad_input(grad_output, weight, case.x, **case.settings, **keywords)
    grad_weight = conv_transpose3d_grad_weight(
        x, grad_output, case.weight, **case.settings, **keywords
    )
    for gradient, operand in ((grad_x, x), (grad_weight, weight)):
        assert type(gradient) is type(operand)
        assert gradient.dtype == operand.dtype
        assert gradient.shape == operand.shape
    return library.read(grad_x), library.read(grad_weight)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


@LIBRARIES
@pytest.mark.parametrize("entry", REPORTED, ids=lambda entry: entry["id"])
def test_reported_cases(library: Library, entry: dict[str, Any]) -> None:
    case = case_of(entry)
    operands = integer_operands(case, "float32")
    found = gradients(library, case, operands)
    for gradient, expected in zip(found, exact_gradients(case, operands), strict=True):
        np.testing.assert_array_equal(gradient, expected)


@LIBRARIES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_edges(library: Library, dtype: str, case: Case) -> None:
    operands = normal_operands(case, dtype)
    for gradient, expected, size, depth in zip(
        gradients(library, case, operands),
        exact_gradients(case, operands),
        gradient_magnitudes(case, operands),
        gradient_depths(case),
        strict=True,
    ):
        bound = error_bound(dtype, depth, size, expected)
        bound += error_bound("float64", depth, size, expected)
        assert np.all(np.abs(wide(gradient) - expected) <= bound)


@LIBRARIES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_edges_exactly(library: Library, dtype: str, case: Case) -> None:
    operands = integer_operands(case, dtype)
    for gradient, expected in zip(
        gradients(library, case, operands), exact_gradients(case, operands), strict=True
    ):
        assert np.abs(expected).max() <= EXACT_LIMIT[dtype]
        np.testing.assert_array_equal(wide(gradient), expected)


@LIBRARIES
@settings(deadline=None, max_examples=100, derandomize=True)
@given(case=drawn_cases(), dtype=st.sampled_from(["float32", "float64", "complex64", "float16"]))
def test_any_problem(library: Library, case: Case, dtype: str) -> None:
    operands = integer_operands(case, dtype)
    problem = case.problem()
    expected = gradient_reference(
        *operands, problem.stride, problem.padding, problem.groups, problem.dilation
    )
    for gradient, of_definition in zip(gradients(library, case, operands), expected, strict=True):
        np.testing.assert_array_equal(gradient, of_definition)


def test_complex_gradients_follow_torchs_convention() -> None:
    case = Case("complex", (2, 4, 3, 4, 2), (4, 3, 2, 3, 2), stride=(1, 2, 2), groups=2)
    operands = normal_operands(case, "complex128")
    x, weight = (torch.from_numpy(a).requires_grad_() for a in operands[:2])
    y = torch.nn.functional.conv_transpose3d(x, weight, **case.settings)
    y.backward(torch.from_numpy(operands[2]))
    for gradient, tensor in zip(gradients(NUMPY, case, operands), (x, weight), strict=True):
        # torch's complex products cancel by a factor of a few; sums have at most 48 terms.
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-12, atol=1e-12)


@LIBRARIES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_gradient_of_the_bias(library: Library, dtype: str, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    shape = (*batch, 4, 5, 6, 7)
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    grad_output = values.astype(numpy_dtype(dtype))
    result = conv_transpose3d_grad_bias(library.make(grad_output))
    assert library.read(result).shape == (4,)
    axes = tuple(axis for axis in range(len(shape)) if axis != len(shape) - 4)
    expected = wide(grad_output).sum(axis=axes)
    size = np.abs(wide(grad_output)).sum(axis=axes)
    terms = grad_output.size // 4
    bound = error_bound(dtype, terms, size, expected) + error_bound(
        "float64", terms, size, expected
    )
    assert np.all(np.abs(wide(library.read(result)) - expected) <= bound)


@LIBRARIES
def test_sums_of_16_bit_floats_are_float32(library: Library) -> None:
    """A sum that only float32 holds comes back into range before it is rounded."""
    grad_output = np.array([60000, 60000, -60000, 3], dtype=np.float16).reshape(1, 1, 1, 1, 4)
    ones = np.ones((1, 1, 1, 1, 4), dtype=np.float16)
    held, one = library.make(grad_output), library.make(ones)
    grad_weight = conv_transpose3d_grad_weight(one, held, (1, 1, 1, 1, 1))
    grad_x = conv_transpose3d_grad_input(held, one, (1, 1, 1, 1, 1))
    grad_bias = conv_transpose3d_grad_bias(held)
    for gradient in (grad_weight, grad_x, grad_bias):
        assert library.read(gradient).ravel() == np.float16(60003)


def test_the_gradient_of_the_bias_is_right_in_any_layout() -> None:
    """A sum in float32, one after the other, stops at 2**24 where channels are innermost."""
    ones = np.moveaxis(np.ones((1, 256, 256, 272, 2), dtype=np.float32), -1, 1)
    np.testing.assert_array_equal(conv_transpose3d_grad_bias(ones), [256 * 256 * 272] * 2)
    small = np.full((1, 64, 64, 64, 3), 0.001, dtype=np.float16)
    expected = np.float16(64**3 * np.float64(np.float16(0.001)))
    found = conv_transpose3d_grad_bias(np.moveaxis(small, -1, 1))
    np.testing.assert_array_equal(found, [expected] * 3)


@LIBRARIES
def test_empty_batch(library: Library) -> None:
    case = Case("empty", (0, 4, 2, 3, 4), (4, 5, 3, 3, 3))
    grad_x, grad_weight = gradients(library, case, normal_operands(case, "float32"))
    assert grad_x.shape == case.x
    np.testing.assert_array_equal(grad_weight, np.zeros(case.weight))
    grad_output = library.make(np.empty((0, 5, 4, 5, 6), dtype=np.float32))
    np.testing.assert_array_equal(
        library.read(conv_transpose3d_grad_bias(grad_output)), np.zeros(5)
    )


@LIBRARIES
def test_unbatched_equals_a_batch_of_one(library: Library) -> None:
    case = Case("unbatched", (4, 3, 4, 5), (4, 2, 2, 3, 2), stride=2)
    batched = Case("batched", (1, *case.x), case.weight, stride=2)
    x, weight, grad_output = normal_operands(case, "float32")
    found = gradients(library, case, (x, weight, grad_output))
    expected = gradients(library, batched, (x[None], weight, grad_output[None]))
    np.testing.assert_array_equal(found[0], expected[0][0])
    np.testing.assert_array_equal(found[1], expected[1])


@LIBRARIES
def test_positional_call_is_that_of_the_function(library: Library) -> None:
    case = Case("positional", (1, 4, 3, 3, 3), (4, 2, 2, 2, 2), groups=2)
    x, weight, grad_output = library.make_all(integer_operands(case, "float32"))
    expected = gradients(library, case, integer_operands(case, "float32"))
    settings_ = (1, 0, 0, 2, 1)
    grad_x = conv_transpose3d_grad_input(grad_output, weight, case.x, *settings_)
    grad_weight = conv_transpose3d_grad_weight(x, grad_output, case.weight, *settings_)
    np.testing.assert_array_equal(library.read(grad_x), expected[0])
    np.testing.assert_array_equal(library.read(grad_weight), expected[1])


@LIBRARIES
def test_outputs_that_output_padding_adds_have_no_gradient_to_give(library: Library) -> None:
    """With output_padding >= stride a correlation would give more inputs than there are."""
    case = Case("crop", (1, 2, 3, 2, 3), (2, 3, 2, 2, 2), output_padding=1, dilation=2)
    operands = integer_operands(case, "float32")
    operands[2][:, :, -1] = np.nan
    grad_x, grad_weight = gradients(library, case, operands)
    finite = np.nan_to_num(operands[2])
    expected = exact_gradients(case, (operands[0], operands[1], finite))
    np.testing.assert_array_equal(grad_x, expected[0])
    np.testing.assert_array_equal(grad_weight, expected[1])


@LIBRARIES
def test_an_infinite_value_reaches_only_its_own_products(library: Library) -> None:
    case = Case("inf", (1, 1, 3, 4, 5), (1, 1, 3, 3, 3), padding=1)
    x, weight, grad_output = (np.ones_like(a) for a in normal_operands(case, "float32"))
    # This tap reaches from every input but those of the first planes.
    weight[0, 0, 0, 0, 0] = np.inf
    x[0, 0, 0, 0, 0] = np.inf
    grad_x, grad_weight = gradients(library, case, (x, weight, grad_output))
    reached = np.ones(grad_x.shape[2:], dtype=bool)
    reached[0], reached[:, 0], reached[:, :, 0] = False, False, False
    np.testing.assert_array_equal(np.isinf(grad_x[0, 0]), reached)
    assert not np.isnan(grad_x).any()
    # The first input meets the later taps alone.
    reached = np.zeros((3, 3, 3), dtype=bool)
    reached[1:, 1:, 1:] = True
    np.testing.assert_array_equal(np.isinf(grad_weight[0, 0]), reached)
    assert not np.isnan(grad_weight).any()


@LIBRARIES
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_any_strides(library: Library, dtype: str) -> None:
    case = Case("strided", (2, 3, 3, 4, 5), (3, 2, 2, 3, 2), stride=(2, 1, 2))
    operands = integer_operands(case, dtype)
    expected = gradients(library, case, operands)
    for axes in ((4, 3, 2, 1, 0), (0, 2, 3, 4, 1)):
        views = []
        for array in library.make_all(operands):
            # The values of the array in memory of another order.
            moved = library.make(np.ascontiguousarray(np.transpose(library.read(array), axes)))
            back = tuple(int(a) for a in np.argsort(axes))
            views.append(moved.permute(back) if library.name == "torch" else moved.transpose(back))
        x, weight, grad_output = views
        grad_x = conv_transpose3d_grad_input(grad_output, weight, case.x, **case.settings)
        grad_weight = conv_transpose3d_grad_weight(x, grad_output, case.weight, **case.settings)
        np.testing.assert_array_equal(library.read(grad_x), expected[0])
        np.testing.assert_array_equal(library.read(grad_weight), expected[1])


@LIBRARIES
@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_are_not_changed(library: Library, dtype: str) -> None:
    case = Case("inputs", (2, 3, 3, 2, 3), (3, 2, 2, 3, 2), stride=2)
    operands = normal_operands(case, dtype)
    x, weight, grad_output = held = library.make_all(operands)
    conv_transpose3d_grad_input(grad_output, weight, case.x, **case.settings)
    conv_transpose3d_grad_weight(x, grad_output, case.weight, **case.settings)
    conv_transpose3d_grad_bias(grad_output)
    for before, after in zip(operands, held, strict=True):
        np.testing.assert_array_equal(wide(library.read(after)), wide(before))


@LIBRARIES
@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"stride": 0}, ValueError, "stride must be at least 1 on each axis"),
        ({"stride": (1, 2)}, ValueError, "stride must be an int or have 3 entries"),
        ({"groups": 3}, ValueError, "groups must divide C_in"),
        ({"padding": -1}, ValueError, "padding must not be negative"),
        ({"output_padding": 2}, ValueError, "output_padding must be smaller than stride or dil"),
        ({"padding": 1}, ValueError, r"grad_output must have the shape of the result, \(1, 6, 2,"),
        ({"deterministic": 1}, TypeError, "deterministic must be True or False, got 1"),
        ({"precision": "fp32"}, ValueError, "precision must be None or one of ieee"),
        (
            {"algorithm": "scatter"},
            ValueError,
            "algorithm must be one of auto, .*_gemm, got",
        ),
    ],
)
def test_wrong_settings(
    library: Library, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    case = Case("wrong", (1, 4, 3, 3, 3), (4, 6, 2, 2, 2))
    x, weight, grad_output = library.make_all(integer_operands(case, "float32"))
    with pytest.raises(error, match=message):
        conv_transpose3d_grad_input(grad_output, weight, case.x, **keywords)
    with pytest.raises(error, match=message):
        conv_transpose3d_grad_weight(x, grad_output, case.weight, **keywords)


@LIBRARIES
def test_wrong_shapes(library: Library) -> None:
    case = Case("wrong", (1, 4, 3, 3, 3), (4, 6, 2, 2, 2))
    x, weight, grad_output = library.make_all(integer_operands(case, "float32"))
    for shape, message in (
        ((4, 3, 3), "input_shape must have 5 entries"),
        ((1, 5, 3, 3, 3), "weight must have C_in = 5 entries on axis 0, got 4"),
        ((4, 3, 3, 3), r"grad_output must have the shape of the result, \(6, 4, 4, 4\), got"),
        ((1, 4, 3, 3, -3), "input_shape must not have negative extents"),
    ):
        with pytest.raises(ValueError, match=message):
            conv_transpose3d_grad_input(grad_output, weight, shape)
    for shape, message in (
        ((4, 6, 2, 2), "weight_shape must have 5 entries"),
        ((5, 6, 2, 2, 2), "weight must have C_in = 4 entries on axis 0, got 5"),
        ((4, 6, 2, 2, 3), r"grad_output must have the shape of the result, \(1, 6, 4, 4, 5\), got"),
    ):
        with pytest.raises(ValueError, match=message):
            conv_transpose3d_grad_weight(x, grad_output, shape)
    with pytest.raises(TypeError, match="input_shape must be a sequence of ints, got an array, of"):
        conv_transpose3d_grad_input(grad_output, weight, x)
    with pytest.raises(TypeError, match="input_shape must be a sequence of ints, got 3"):
        conv_transpose3d_grad_input(grad_output, weight, 3)
    with pytest.raises(TypeError, match=r"weight_shape\[4\] must be an integer, got 2.0"):
        conv_transpose3d_grad_weight(x, grad_output, (4, 6, 2, 2, 2.0))
    with pytest.raises(ValueError, match=r"grad_output must have 5 axes .*, got 3 with shape"):
        conv_transpose3d_grad_bias(grad_output[0, 0])


@LIBRARIES
def test_wrong_operands(library: Library) -> None:
    one = library.make(np.ones((1, 1, 1, 1, 1), dtype=np.float32))
    wide_one = library.make(np.ones((1, 1, 1, 1, 1), dtype=np.float64))
    whole = library.make(np.ones((1, 1, 1, 1, 1), dtype=np.int32))
    shape = (1, 1, 1, 1, 1)
    with pytest.raises(TypeError, match="weight must have the dtype of grad_output, float32, got"):
        conv_transpose3d_grad_input(one, wide_one, shape)
    with pytest.raises(TypeError, match="grad_output must have the dtype of x, float32, got"):
        conv_transpose3d_grad_weight(one, wide_one, shape)
    with pytest.raises(TypeError, match="grad_output must have one of the dtypes float16"):
        conv_transpose3d_grad_input(whole, whole, shape)
    with pytest.raises(TypeError, match="x must have one of the dtypes float16"):
        conv_transpose3d_grad_weight(whole, whole, shape)
    with pytest.raises(TypeError, match="grad_output must have one of the dtypes float16"):
        conv_transpose3d_grad_bias(whole)
    for value in (None, [1.0]):
        with pytest.raises(TypeError, match="grad_output must be a CuPy array, NumPy array, torch"):
            conv_transpose3d_grad_input(value, one, shape)
        with pytest.raises(TypeError, match="grad_output must be a CuPy array, NumPy array, torch"):
            conv_transpose3d_grad_weight(one, value, shape)
        with pytest.raises(TypeError, match="grad_output must be a CuPy array, NumPy array, torch"):
            conv_transpose3d_grad_bias(value)


def test_mixed_libraries() -> None:
    x = np.ones((1, 1, 1, 1, 1), dtype=np.float32)
    with pytest.raises(TypeError, match=r"grad_output is a numpy\.ndarray, weight is a torch\.Ten"):
        conv_transpose3d_grad_input(x, torch.from_numpy(x), x.shape)
