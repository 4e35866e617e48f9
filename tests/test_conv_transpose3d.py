"""The public function on every kind of array: values, layouts, out=, and errors before any work."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_convt3d import _torch_cpu, conv_transpose3d
from tests.libraries import CUPY, LIBRARIES, NUMPY, Library, from_torch, to_torch
from tests.problems import (
    DTYPES,
    EDGES,
    EXACT_LIMIT,
    Case,
    case_of,
    drawn_cases,
    exact_result,
    integer_data,
    is_small,
    load_cases,
    magnitude,
    normal_data,
)
from tests.reference import error_bound, scatter_reference

ALGORITHMS = pytest.mark.parametrize("algorithm", ["auto", "gather", "scatter", "implicit_gemm"])

#: Cases with a result, small enough to run everywhere.
REPORTED = [entry for entry in load_cases() if is_small(entry)]


def call(library: Library, case: Case, arrays: tuple[Any, ...], **keywords: Any) -> np.ndarray:
    """Return the result as NumPy data after checking that it is the caller's kind of array."""
    x, weight, bias = library.make_all(arrays)
    y = conv_transpose3d(x, weight, bias, **case.settings, **keywords)
    assert type(y) is type(x)
    assert y.dtype == x.dtype
    return library.read(y)


@LIBRARIES
@ALGORITHMS
@pytest.mark.parametrize("entry", REPORTED, ids=lambda entry: entry["id"])
def test_reported_cases(library: Library, algorithm: str, entry: dict[str, Any]) -> None:
    case = case_of(entry)
    keywords = {"output_size": entry["output_size"]} if "output_size" in entry else {}
    dtype = entry.get("dtype", "float32")
    arrays = integer_data(case, dtype)
    y = call(library, case, arrays, algorithm=algorithm, **keywords)
    assert y.shape == tuple(entry["out"])
    if y.size:
        assert magnitude(case, arrays).real.max() <= EXACT_LIMIT[dtype]
    # The cases that pass output_size need no output padding to reach it, or one that torch derives.
    if "output_size" in entry:
        layer = torch.nn.ConvTranspose3d(
            case.weight[0],
            case.weight[1],
            case.weight[2:],
            case.stride,
            case.padding,
            dilation=case.dilation,
            bias=False,
            dtype=torch.float64,
        )
        layer.weight.data = torch.from_numpy(arrays[1].astype(np.float64))
        x = torch.from_numpy(arrays[0].astype(np.float64))
        expected = layer(x, output_size=entry["output_size"][-3:]).detach().numpy()
    else:
        expected = exact_result(case, arrays)
    np.testing.assert_array_equal(y.astype(np.float64), expected)


def test_a_large_kernel_on_a_large_volume() -> None:
    """The reported case too large for torch's column buffer: its corner, which few inputs reach."""
    entry = next(entry for entry in load_cases() if entry.get("perf"))
    case = case_of(entry)
    x, weight, _ = integer_data(case, "float32")
    y = conv_transpose3d(x, weight, stride=2)
    assert y.shape == tuple(entry["out"])
    corner = torch.nn.functional.conv_transpose3d(
        torch.from_numpy(x[:, :, :4, :4, :6]), torch.from_numpy(weight), stride=2
    )
    np.testing.assert_array_equal(y[..., :8, :8, :12], corner[..., :8, :8, :12])


@LIBRARIES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_edges(library: Library, dtype: str, case: Case) -> None:
    arrays = normal_data(case, dtype)
    y = call(library, case, arrays)
    expected = exact_result(case, arrays)
    size = magnitude(case, arrays).real
    bound = error_bound(dtype, case.depth, size, expected)
    bound += error_bound("float64", case.depth, size, expected)
    wide = y.astype(np.complex128 if y.dtype.kind == "c" else np.float64)
    assert wide.shape == expected.shape
    assert np.all(np.abs(wide - expected) <= bound)


@LIBRARIES
@ALGORITHMS
@settings(deadline=None, max_examples=60, derandomize=True)
@given(case=drawn_cases(), dtype=st.sampled_from(["float32", "float64", "complex64", "float16"]))
def test_any_problem(library: Library, algorithm: str, case: Case, dtype: str) -> None:
    if algorithm == "implicit_gemm" and dtype == "complex64":
        dtype = "float32"  # tensor cores have no complex numbers
    arrays = integer_data(case, dtype)
    y = call(library, case, arrays, algorithm=algorithm)
    problem = case.problem()
    expected = scatter_reference(
        *arrays,
        problem.output,
        problem.stride,
        problem.padding,
        problem.groups,
        problem.dilation,
    )
    np.testing.assert_array_equal(y, expected)


@LIBRARIES
@ALGORITHMS
def test_outputs_that_nothing_reaches_hold_the_bias_exactly(
    library: Library, algorithm: str
) -> None:
    case = Case("holes", (1, 2, 2, 3, 2), (2, 3, 1, 1, 1), True, (3, 4, 5))
    x, weight, _ = normal_data(case, "float32")
    bias = np.array([0.1, -0.0, -7.3], dtype=np.float32)
    y = call(library, case, (x, weight, bias), algorithm=algorithm)
    holes = np.ones(y.shape[2:], dtype=bool)
    holes[::3, ::4, ::5] = False
    for co in range(3):
        expected = np.full(holes.sum(), bias[co])
        assert y[0, co][holes].tobytes() == expected.tobytes()


@LIBRARIES
@ALGORITHMS
def test_an_infinite_weight_reaches_only_its_own_products(library: Library, algorithm: str) -> None:
    case = Case("inf", (1, 1, 2, 4, 4), (1, 1, 2, 3, 3))
    x = normal_data(case, "float16")[0]
    weight = np.full(case.weight, np.inf, dtype=np.float16)
    y = call(library, case, (x, weight, None), algorithm=algorithm)[0, 0]
    # The corners have one product each.
    for corner in np.ndindex(2, 2, 2):
        at_y = tuple(-c for c in corner)
        assert y[at_y] == np.copysign(np.inf, x[(0, 0, *at_y)])
    assert not np.isfinite(y).any()


@LIBRARIES
@ALGORITHMS
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_non_finite_input_spreads_over_its_own_kernel_alone(
    library: Library, algorithm: str, value: float
) -> None:
    case = Case("spread", (1, 3, 4, 5, 6), (3, 2, 3, 2, 3), True, (2, 1, 2), 1, dilation=(1, 2, 1))
    x, weight, bias = normal_data(case, "float32")
    clean = call(library, case, (x, weight, bias), algorithm=algorithm)
    x[0, 1, 2, 2, 3] = value
    y = call(library, case, (x, weight, bias), algorithm=algorithm)
    reached = np.zeros(y.shape[2:], dtype=bool)
    reached[3:6, 1:4:2, 5:8] = True
    assert not np.isfinite(y[:, :, reached]).any()
    if algorithm == "gather" or library is NUMPY:
        np.testing.assert_array_equal(y[:, :, ~reached], clean[:, :, ~reached])
    assert np.isfinite(y[:, :, ~reached]).all()


@LIBRARIES
def test_float16_overflow_is_infinity(library: Library) -> None:
    case = Case("overflow", (1, 2, 1, 1, 2), (2, 1, 1, 1, 1))
    x = np.full(case.x, 300, dtype=np.float16)
    weight = np.full(case.weight, 300, dtype=np.float16)
    y = call(library, case, (x, weight, None))
    np.testing.assert_array_equal(y, np.full(y.shape, np.inf, dtype=np.float16))
    # A sum that only float32 holds comes back into range before it is rounded.
    weight[1] = -299
    y = call(library, case, (x, weight, None))
    np.testing.assert_array_equal(y, np.full(y.shape, 300, dtype=np.float16))


@LIBRARIES
@ALGORITHMS
def test_empty_batch(library: Library, algorithm: str) -> None:
    case = Case("empty", (0, 4, 2, 3, 4), (4, 5, 3, 3, 3), True)
    arrays = normal_data(case, "float32")
    assert call(library, case, arrays, algorithm=algorithm).shape == (0, 5, 4, 5, 6)


@LIBRARIES
def test_unbatched_equals_a_batch_of_one(library: Library) -> None:
    case = Case("unbatched", (4, 3, 4, 5), (4, 2, 2, 3, 2), True, 2)
    x, weight, bias = normal_data(case, "float32")
    y = call(library, case, (x, weight, bias))
    batched = call(library, case, (x[None], weight, bias))
    assert y.shape == batched.shape[1:]
    np.testing.assert_array_equal(y, batched[0])


@LIBRARIES
def test_positional_call_is_torchs(library: Library) -> None:
    case = Case("positional", (1, 4, 3, 3, 3), (4, 2, 2, 2, 2), groups=2)
    x, weight, _ = library.make_all(integer_data(case, "float32"))
    y = conv_transpose3d(x, weight, None, 1, 0, 0, 2, 1)
    expected = conv_transpose3d(x, weight, groups=2)
    np.testing.assert_array_equal(library.read(y), library.read(expected))


@LIBRARIES
@ALGORITHMS
def test_padding_is_a_crop(library: Library, algorithm: str) -> None:
    case = Case("crop", (1, 2, 4, 4, 4), (2, 3, 3, 3, 3), stride=2)
    arrays = normal_data(case, "float32")
    full = call(library, case, arrays, algorithm=algorithm)
    x, weight, _ = library.make_all(arrays)
    y = library.read(conv_transpose3d(x, weight, stride=2, padding=1, algorithm=algorithm))
    np.testing.assert_allclose(y, full[..., 1:-1, 1:-1, 1:-1], rtol=1e-6, atol=1e-6)


@LIBRARIES
@ALGORITHMS
def test_an_impulse_gives_the_kernel_unflipped(library: Library, algorithm: str) -> None:
    case = Case("impulse", (1, 2, 3, 3, 3), (2, 2, 4, 4, 4), stride=4)
    _, weight, _ = normal_data(case, "float32")
    x = np.zeros(case.x, dtype=np.float32)
    x[0, 1, 2, 0, 1] = 1
    y = call(library, case, (x, weight, None), algorithm=algorithm)
    # "ieee" on tensor cores keeps 23 of the 24 bits of a weight and truncates sums: each of the two
    # parts of a weight, and the end of its last bit, may cost one unit in the last place.
    limit = 2.0**-21 if library is CUPY and algorithm == "implicit_gemm" else 0
    np.testing.assert_allclose(y[0, :, 8:12, 0:4, 4:8], weight[1], rtol=limit, atol=0)
    assert np.count_nonzero(y) == weight[1].size


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return views with the values of x and other strides."""
    sliced = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype)
    sliced[..., 1::2] = x
    buffer = np.zeros(x.nbytes + 2 * x.itemsize, dtype=np.uint8)
    shifted = buffer[x.itemsize // 2 :][: x.nbytes].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    return {
        "sliced": sliced[..., 1::2],
        "negative": np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :],
        "channels-last": np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1),
        "fortran": np.asfortranarray(x),
        "shifted": shifted,
    }


@LIBRARIES
@ALGORITHMS
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
@pytest.mark.parametrize("layout", ["sliced", "negative", "channels-last", "fortran", "shifted"])
def test_any_strides(library: Library, algorithm: str, dtype: str, layout: str) -> None:
    if algorithm == "implicit_gemm" and dtype == "complex64":
        dtype = "float32"  # tensor cores have no complex numbers
    case = Case("strided", (2, 3, 3, 4, 5), (3, 2, 2, 3, 2), True, (2, 1, 2))
    x, weight, bias = integer_data(case, dtype)
    expected = call(library, case, (x, weight, bias), algorithm=algorithm)
    x_view, weight_view = layouts(x)[layout], layouts(weight)[layout]
    np.testing.assert_array_equal(x_view, x)
    before = x_view.tobytes(), weight_view.tobytes()
    views = [_same_strides(library, a) for a in (x_view, weight_view, bias)]
    y = conv_transpose3d(*views, **case.settings, algorithm=algorithm)
    np.testing.assert_array_equal(library.read(y), expected)
    assert (x_view.tobytes(), weight_view.tobytes()) == before


def _same_strides(library: Library, array: np.ndarray) -> Any:
    """Return the library's array with the strides, offset and values of a NumPy view."""
    if library is NUMPY:
        return array
    base = array
    while base.base is not None:
        base = base.base
    if library is CUPY:
        import cupy

        memory = cupy.asarray(base.ravel(order="K").view(np.uint8))
        offset = array.ctypes.data - base.ctypes.data
        return cupy.ndarray(
            array.shape, array.dtype, memptr=memory.data + offset, strides=array.strides
        )
    # torch has no negative strides and wants whole items: it gets the nearest it can hold.
    if min(array.strides) < 0 or (array.ctypes.data - base.ctypes.data) % array.itemsize:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array)


@LIBRARIES
@ALGORITHMS
def test_expanded_weight(library: Library, algorithm: str) -> None:
    case = Case("expanded", (1, 1, 1, 1, 3), (1, 1, 1, 1, 2))
    x = integer_data(case, "float64")[0]
    one = np.full(1, 3.0)
    if library is CUPY:
        import cupy

        weight = cupy.broadcast_to(cupy.asarray(one), case.weight)
    elif library is NUMPY:
        weight = np.broadcast_to(one, case.weight)
    else:
        weight = torch.from_numpy(one).expand(case.weight)
    y = conv_transpose3d(library.make(x), weight, algorithm=algorithm)
    np.testing.assert_array_equal(library.read(y).ravel(), np.convolve(x.ravel(), [3.0, 3.0]))


@LIBRARIES
@ALGORITHMS
@pytest.mark.parametrize("stride", [1, 3])
def test_out_is_filled_and_returned(library: Library, algorithm: str, stride: int) -> None:
    case = Case("out", (1, 2, 3, 3, 3), (2, 3, 2, 1, 2), True, stride)
    arrays = integer_data(case, "float32")
    expected = exact_result(case, arrays)
    x, weight, bias = library.make_all(arrays)
    out = library.make(np.full(expected.shape, np.nan, dtype=np.float32))
    y = conv_transpose3d(x, weight, bias, stride, algorithm=algorithm, out=out)
    assert y is out
    np.testing.assert_array_equal(library.read(out), expected)


@LIBRARIES
def test_unusable_out(library: Library) -> None:
    case = Case("out", (1, 2, 3, 3, 3), (2, 2, 1, 1, 1))
    x, weight, _ = library.make_all(integer_data(case, "float32"))

    def make(shape: tuple[int, ...], dtype: str = "float32") -> Any:
        return library.make(np.zeros(shape, dtype=dtype))

    with pytest.raises(ValueError, match=r"out must have the shape of the result, \(1, 2, 3, 3, 3"):
        conv_transpose3d(x, weight, out=make((1, 2, 3, 3, 4)))
    with pytest.raises(TypeError, match="out must have the dtype of x"):
        conv_transpose3d(x, weight, out=make((1, 2, 3, 3, 3), "float64"))
    with pytest.raises(ValueError, match="out must be C-contiguous"):
        conv_transpose3d(x, weight, out=make((1, 2, 3, 3, 6))[..., ::2])
    with pytest.raises(ValueError, match="out must not lie in the range of memory of x"):
        conv_transpose3d(x, weight, out=x)
    both = make((2, 2, 3, 3, 3))
    with pytest.raises(ValueError, match="out must not lie in the range of memory of x"):
        conv_transpose3d(both[:1], weight, out=both.reshape(-1)[1:55].reshape(1, 2, 3, 3, 3))
    y = conv_transpose3d(both[:1], weight, out=both[1:])
    assert library.read(y).shape == (1, 2, 3, 3, 3)


def test_read_only_out() -> None:
    out = np.zeros((1, 1, 1, 1, 1))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writeable"):
        conv_transpose3d(np.ones((1, 1, 1, 1, 1)), np.ones((1, 1, 1, 1, 1)), out=out)


@LIBRARIES
def test_inputs_are_not_changed(library: Library) -> None:
    for dtype in DTYPES:
        case = Case("inputs", (2, 3, 3, 2, 3), (3, 2, 2, 3, 2), True, 2)
        arrays = normal_data(case, dtype)
        held = library.make_all(arrays)
        conv_transpose3d(*held, **case.settings)
        for before, after in zip(arrays, held, strict=True):
            expected = before.astype(np.float32) if dtype == "bfloat16" else before
            np.testing.assert_array_equal(
                np.asarray(library.read(after)).astype(expected.dtype), expected
            )


@LIBRARIES
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "int32"])
def test_unsupported_dtypes(library: Library, dtype: str) -> None:
    x = library.make(np.ones((1, 1, 2, 2, 2), dtype=dtype))
    with pytest.raises(TypeError, match=r"x must have one of the dtypes float16, .*, got "):
        conv_transpose3d(x, x)


@LIBRARIES
def test_mixed_dtypes(library: Library) -> None:
    x = library.make(np.ones((1, 1, 2, 2, 2), dtype=np.float32))
    weight = library.make(np.ones((1, 1, 1, 1, 1), dtype=np.float64))
    bias = library.make(np.ones(1, dtype=np.float16))
    with pytest.raises(TypeError, match=r"weight must have the dtype of x, float32, got .*float64"):
        conv_transpose3d(x, weight)
    with pytest.raises(TypeError, match=r"bias must have the dtype of x, float32, got .*float16"):
        conv_transpose3d(x, x[..., :1, :1, :1], bias)


def test_foreign_byte_order_is_refused() -> None:
    x = np.ones((1, 1, 2, 2, 2), dtype=">f4")
    with pytest.raises(
        TypeError, match=r"x must be in the machine's byte order .*got >f4: convert it first"
    ):
        conv_transpose3d(x, x)


def test_mixed_libraries() -> None:
    x = np.ones((1, 1, 2, 2, 2), dtype=np.float32)
    with pytest.raises(
        TypeError,
        match=r"of one library: x is a numpy\.ndarray, weight is a torch\.Tensor",
    ):
        conv_transpose3d(x, torch.from_numpy(x))


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, "x", None])
def test_operands_that_are_no_arrays(value: object) -> None:
    x = np.ones((1, 1, 2, 2, 2), dtype=np.float32)
    with pytest.raises(TypeError, match="x must be a CuPy array, NumPy array, torch tensor"):
        conv_transpose3d(value, x)
    with pytest.raises(TypeError, match="weight must be a CuPy array, NumPy array, torch tensor"):
        conv_transpose3d(x, value)


def test_masked_arrays_are_refused() -> None:
    x = np.ma.masked_array(np.ones((1, 1, 2, 2, 2), dtype=np.float32), mask=False)
    with pytest.raises(TypeError, match="x must not be a masked array"):
        conv_transpose3d(x, x)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        (
            {"algorithm": "fastest"},
            ValueError,
            "algorithm must be one of auto, gather, scatter, implicit_gemm",
        ),
        ({"algorithm": None}, ValueError, "algorithm must be one of"),
        ({"deterministic": 1}, TypeError, "deterministic must be True or False, got 1"),
        ({"stride": True}, TypeError, "stride must be an integer"),
        ({"groups": 1.0}, TypeError, "groups must be an integer"),
    ],
)
@LIBRARIES
def test_wrong_settings(
    library: Library, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    x = library.make(np.ones((1, 1, 2, 2, 2), dtype=np.float32))
    # The legal call first: True and 1.0 equal 1 and must not find its plan.
    conv_transpose3d(x, x)
    with pytest.raises(error, match=message):
        conv_transpose3d(x, x, **keywords)


@pytest.mark.parametrize("keywords", [{"activation": "relu"}, {"out": True}])
def test_tensors_that_require_gradients_where_none_are_recorded(keywords: dict[str, Any]) -> None:
    x = torch.ones((1, 1, 2, 2, 2))
    weight = torch.ones((1, 1, 1, 1, 1), requires_grad=True)
    if "out" in keywords:
        keywords = {"out": torch.zeros((1, 1, 2, 2, 2))}
    with pytest.raises(ValueError, match="weight must not require gradients, which are not rec"):
        conv_transpose3d(x, weight, **keywords)
    with torch.no_grad():
        y = conv_transpose3d(x, weight, **keywords)
    assert not y.requires_grad
    torch.testing.assert_close(y, x)


def test_tensors_that_are_conjugated_lazily() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j]).reshape(1, 1, 1, 1, 2)
    one = torch.ones((1, 1, 1, 1, 1), dtype=torch.complex64)
    torch.testing.assert_close(conv_transpose3d(x.conj(), one), x.conj().resolve_conj())
    torch.testing.assert_close(
        conv_transpose3d(x.conj().imag.reshape(1, 1, 1, 1, 2), one.real), -x.imag
    )


def test_tensors_that_are_not_dense_or_elsewhere() -> None:
    x = torch.ones((1, 1, 2, 2, 2))
    with pytest.raises(TypeError, match="x must be a dense"):
        conv_transpose3d(x.to_sparse(), x)
    with pytest.raises(TypeError, match=r"x must be a dense \(strided\) tensor, got a nested one"):
        conv_transpose3d(torch.nested.nested_tensor([x[0]], layout=torch.jagged), x)
    y = conv_transpose3d(x.to("meta"), x.to("meta"))
    assert (y.device.type, y.shape) == ("meta", (1, 1, 3, 3, 3))
    with pytest.raises(ValueError, match="x must be on the CPU or a CUDA device, got meta"):
        conv_transpose3d(x.to("meta"), x, activation="relu")


def test_torch_parameters_and_results_are_torchs_own() -> None:
    layer = torch.nn.ConvTranspose3d(3, 4, (2, 3, 2), stride=(2, 1, 2), padding=(0, 1, 0))
    x = torch.randn(2, 3, 3, 4, 5)
    with torch.no_grad():
        y = conv_transpose3d(x, layer.weight, layer.bias, layer.stride, layer.padding)
        torch.testing.assert_close(y, layer(x))
    assert y.is_contiguous()


def test_bfloat16_tensors_need_no_ml_dtypes() -> None:
    case = Case("bf16", (5, 3, 3, 4, 5), (3, 4, 2, 3, 2), True, 2)
    x, weight, bias = (to_torch(a) for a in normal_data(case, "bfloat16"))
    y = conv_transpose3d(x, weight, bias, 2)
    exact = torch.nn.functional.conv_transpose3d(
        x.double(), weight.double(), bias.double(), stride=2
    )
    assert y.dtype == torch.bfloat16
    np.testing.assert_allclose(from_torch(y), exact.numpy(), rtol=2**-8, atol=1e-5)


def test_bfloat16_tensors_through_float32_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("bf16", (5, 3, 3, 4, 5), (3, 4, 2, 3, 2), True, 2)
    operands = [to_torch(a) for a in normal_data(case, "bfloat16")]
    expected = conv_transpose3d(*operands, 2)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr(_torch_cpu, "BFLOAT16_COPIES", 2000)
    torch.testing.assert_close(conv_transpose3d(*operands, 2), expected, rtol=2**-7, atol=1e-6)


def test_out_tells_autograd_that_it_changed() -> None:
    a = torch.ones((1, 2, 4, 4, 4), requires_grad=True)
    saved = torch.full((1, 2, 4, 4, 4), 3.0)
    loss = (a * saved).sum()
    conv_transpose3d(torch.ones((1, 2, 3, 3, 3)), torch.ones((2, 2, 2, 2, 2)), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_in_inference_mode() -> None:
    x = torch.ones((1, 1, 2, 2, 2))
    with torch.inference_mode():
        out = torch.zeros((1, 1, 3, 3, 3))
        assert conv_transpose3d(x, x, out=out) is out
    assert out.sum() == 64


def test_a_default_device_does_not_matter() -> None:
    x = torch.ones((1, 1, 2, 2, 2))
    torch.set_default_device("meta")
    try:
        y = conv_transpose3d(x, x)
    finally:
        torch.set_default_device(None)
    assert y.device == x.device
    assert y.sum() == 64


# torch's own forward mode compiles its formulas by a function that torch has deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_derivatives_where_none_are_recorded() -> None:
    x = torch.ones((1, 1, 2, 2, 2))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(ValueError, match="x must not require gradients"):
            conv_transpose3d(dual, x, activation="relu")


def test_traces_and_transforms_that_only_an_operator_can_take() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def relu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return conv_transpose3d(a, b, activation="relu")

    x = torch.ones((1, 1, 2, 2, 2))
    with pytest.raises(TypeError, match="being traced"):
        make_fx(lambda a: relu(a, x))(x)
    with pytest.raises(TypeError, match="must be a tensor with memory of its own"):
        torch.vmap(lambda a: relu(a, x))(x[None])
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    with pytest.raises(TypeError, match="x must be a tensor with memory of its own, got a FakeTen"):
        relu(fake, fake)
    zero = torch._efficientzerotensor(x.shape)
    with pytest.raises(TypeError, match="x must be a tensor with memory of its own"):
        relu(zero, x)
    torch.testing.assert_close(conv_transpose3d(zero, x), torch.zeros(1, 1, 3, 3, 3))


def test_out_that_is_a_lazy_view() -> None:
    x = torch.ones((1, 1, 2, 2, 2), dtype=torch.complex64)
    with pytest.raises(ValueError, match="out must not be a lazily conjugated or negated view"):
        conv_transpose3d(x, x[..., :1, :1, :1], out=torch.empty_like(x).conj())


def test_strings_have_no_byte_order() -> None:
    x = np.full((1, 1, 1, 1, 1), "abc")
    with pytest.raises(TypeError, match="x must have one of the dtypes"):
        conv_transpose3d(x, x)
