"""What only a CUDA device shows: streams, several devices, graphs, DLPack, memory, addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_convt3d import conv_transpose3d
from cupy_convt3d._call import settings_of
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._run_cupy import bound_plan
from tests.problems import Case, exact_result, integer_data

pytestmark = pytest.mark.cuda

CASE = Case("device", (2, 4, 3, 4, 5), (4, 6, 3, 2, 3), True, (2, 1, 2), (1, 0, 1))
ALGORITHMS = pytest.mark.parametrize("algorithm", ["gather", "scatter", "implicit_gemm"])


def device_data(case: Case = CASE, dtype: str = "float32", seed: int = 0) -> list[Any]:
    import cupy

    return [cupy.asarray(array) for array in integer_data(case, dtype, seed)]


@ALGORITHMS
def test_a_side_stream_gives_the_same(algorithm: str) -> None:
    import cupy

    operands = device_data()
    cupy.cuda.Stream.null.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = conv_transpose3d(*operands, **CASE.settings, algorithm=algorithm)
    stream.synchronize()
    np.testing.assert_array_equal(y.get(), exact_result(CASE, integer_data(CASE, "float32")))


@ALGORITHMS
def test_nothing_synchronises_and_everything_goes_to_the_current_stream(
    algorithm: str,
) -> None:
    import cupy

    operands = device_data()
    cupy.cuda.Stream.null.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc), stream:
        # Compiles, and leaves memory for packed weights in the stream's pool; the capture then
        # fails on any synchronisation, on work outside its stream, and on memory from the driver.
        out = conv_transpose3d(*operands, **CASE.settings, algorithm=algorithm)
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        conv_transpose3d(*operands, **CASE.settings, algorithm=algorithm, out=out)
        graph = stream.end_capture()
        # The graph keeps what it uses, whoever asks the pool for memory now.
        other = cupy.full(1 << 16, np.nan, dtype=np.float32)
        out.fill(np.nan)
        stream.synchronize()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(out.get(), exact_result(CASE, integer_data(CASE, "float32")))
    assert np.isnan(other.get()).all()


@ALGORITHMS
def test_a_captured_graph_replays_with_new_data(algorithm: str) -> None:
    import cupy

    operands = device_data()
    cupy.cuda.Stream.null.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc), stream:
        out = conv_transpose3d(*operands, **CASE.settings, algorithm=algorithm)
        stream.begin_capture()
        conv_transpose3d(*operands, **CASE.settings, algorithm=algorithm, out=out)
        graph = stream.end_capture()
    for seed in (1, 2):
        new = integer_data(CASE, "float32", seed)
        for operand, values in zip(operands, new, strict=True):
            operand.set(values)
        cupy.cuda.Stream.null.synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(out.get(), exact_result(CASE, new))


@pytest.mark.two_devices
@ALGORITHMS
def test_arrays_of_another_device_than_the_current_one(algorithm: str) -> None:
    import cupy

    with cupy.cuda.Device(1):
        operands = device_data()
    with cupy.cuda.Device(0):
        y = conv_transpose3d(*operands, **CASE.settings, algorithm=algorithm)
        assert cupy.cuda.runtime.getDevice() == 0
    assert y.device.id == 1
    np.testing.assert_array_equal(y.get(), exact_result(CASE, integer_data(CASE, "float32")))


@pytest.mark.two_devices
def test_arrays_of_two_devices_are_refused() -> None:
    import cupy

    x, _, bias = device_data()
    with cupy.cuda.Device(1):
        far = cupy.asarray(integer_data(CASE, "float32")[1])
    with pytest.raises(ValueError, match="weight must be on the device of x, 0, got device 1"):
        conv_transpose3d(x, far, bias, **CASE.settings)


class Exported:
    """An array of some other library: all it offers is DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@ALGORITHMS
def test_dlpack_objects_give_a_cupy_array(algorithm: str) -> None:
    import cupy

    operands = device_data()
    y = conv_transpose3d(*map(Exported, operands), **CASE.settings, algorithm=algorithm)
    assert type(y) is cupy.ndarray
    np.testing.assert_array_equal(y.get(), exact_result(CASE, integer_data(CASE, "float32")))


def test_dlpack_objects_are_seen_without_a_copy() -> None:
    import cupy

    x, weight, bias = device_data()
    taken = cupy.from_dlpack(Exported(x))
    assert taken.data.ptr == x.data.ptr
    y = conv_transpose3d(x, weight, bias, **CASE.settings)
    # And back: the result goes to any library that takes DLPack.
    assert cupy.from_dlpack(Exported(y)).data.ptr == y.data.ptr


def test_dlpack_objects_take_no_out() -> None:
    x, weight, bias = map(Exported, device_data())
    with pytest.raises(TypeError, match="out must be None for arrays of other libraries"):
        conv_transpose3d(x, weight, bias, **CASE.settings, out=x)


def test_libraries_are_not_mixed() -> None:
    x, weight, _ = device_data()
    with pytest.raises(TypeError, match=r"x is a cupy\.ndarray, weight is a numpy\.ndarray"):
        conv_transpose3d(x, weight.get())


@ALGORITHMS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_raw_addresses_and_a_foreign_stream(algorithm: str, dtype: str) -> None:
    """How torch tensors reach the kernels: addresses as integers, on a stream that CuPy wraps."""
    import cupy

    from cupy_convt3d._torch_bridge import cupy_stream

    case = Case("addresses", (2, 4, 9, 9, 40), (4, 3, 2, 3, 3), True, (1, 1, 2))
    arrays = device_data(case, dtype)
    y = cupy.full(case.problem().y_shape, 7, dtype=arrays[0].dtype)
    settings = settings_of(case.stride, 0, 0, 1, 1, None, algorithm, True)
    owner = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Stream.null.synchronize()
    with cupy_stream(cupy, owner.ptr, 0) as stream:
        assert stream.ptr == owner.ptr
        bound = bound_plan(case.x, case.weight, case.bias_shape, DTYPES[dtype], settings, 0, True)
        workspace = cupy.empty(bound.workspace_bytes, dtype="u1")
        packed = cupy.empty(bound.packed_bytes, dtype="u1")
        roles = {
            "x": arrays[0],
            "weight": arrays[1],
            "bias": arrays[2],
            "y": y,
            "workspace": workspace,
            "packed": packed,
        }
        addresses = {role: np.uintp(array.data.ptr) for role, array in roles.items()}
        bound.pack(addresses)
        bound.run(addresses)
    owner.synchronize()
    expected = exact_result(case, integer_data(case, dtype))
    np.testing.assert_array_equal(y.get().astype(np.float64), expected)


def test_out_of_memory_is_cupys_error_and_leaves_nothing_broken() -> None:
    import cupy

    _, total = cupy.cuda.runtime.memGetInfo()
    extent = int(np.ceil((total / 4) ** (1 / 3))) + 64
    x = cupy.ones((1, 1, 1, 1, 1), dtype=np.float32)
    weight = cupy.ones((1, 1, 2, 2, 2), dtype=np.float32)
    pool = cupy.cuda.MemoryPool()
    with (
        cupy.cuda.using_allocator(pool.malloc),
        pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="Out of memory allocating"),
    ):
        conv_transpose3d(x, weight, dilation=extent)
    operands = device_data()
    y = conv_transpose3d(*operands, **CASE.settings)
    np.testing.assert_array_equal(y.get(), exact_result(CASE, integer_data(CASE, "float32")))


def test_out_that_is_misaligned_for_its_dtype_is_refused() -> None:
    import cupy

    floats = cupy.zeros(2 * 8 + 1, dtype=np.float32)
    out = floats[1:].view(np.complex64).reshape(1, 1, 2, 2, 2)
    x = cupy.ones((1, 1, 2, 2, 2), dtype=np.complex64)
    with pytest.raises(ValueError, match="out must be aligned to its item size of 8 bytes"):
        conv_transpose3d(x, x[..., :1, :1, :1], out=out)


def test_a_misaligned_operand_must_be_contiguous() -> None:
    import cupy

    bytes_ = cupy.zeros(2 * 16 + 1, dtype=np.uint8)
    x = cupy.ndarray((1, 1, 2, 2, 2), np.float16, bytes_.data + 1, strides=(32, 32, 16, 8, 4))
    weight = cupy.ones((1, 1, 1, 1, 1), dtype=np.float16)
    with pytest.raises(ValueError, match="x must be aligned to its item size of 2 bytes unless"):
        conv_transpose3d(x, weight)


def test_deterministic_runs_and_batch_splits_are_bit_identical() -> None:
    case = Case("bits", (3, 5, 4, 5, 6), (5, 4, 3, 3, 3), True, 2)
    rng = np.random.default_rng(3)
    import cupy

    x, weight, bias = (
        cupy.asarray(rng.standard_normal(s).astype(np.float32))
        for s in (case.x, case.weight, case.bias_shape)
    )
    whole = conv_transpose3d(x, weight, bias, **case.settings)
    again = conv_transpose3d(x, weight, bias, **case.settings)
    parts = [conv_transpose3d(x[n : n + 1], weight, bias, **case.settings) for n in range(3)]
    assert whole.get().tobytes() == again.get().tobytes()
    assert whole.get().tobytes() == cupy.concatenate(parts).get().tobytes()


def test_a_scatter_with_atomics_stays_within_the_bound_of_any_order() -> None:
    """Its last bits depend on the order of blocks; simulated devices shuffle it by their seed."""
    import cupy

    case = Case("order", (1, 8, 4, 20, 40), (8, 4, 3, 3, 3))
    rng = np.random.default_rng(4)
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.weight))
    y = conv_transpose3d(cupy.asarray(x), cupy.asarray(weight), algorithm="scatter").get()
    expected = exact_result(case, (x, weight, None))
    size = exact_result(case, (np.abs(x), np.abs(weight), None))
    assert np.all(np.abs(y - expected) <= (case.depth + 2) * 2.0**-24 * size)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("offset", [1, 2, 4, 7])
def test_x_that_starts_anywhere(dtype: str, offset: int) -> None:
    """Copies to shared memory are as wide as the start of x allows."""
    import cupy

    case = Case("start", (1, 4, 2, 3, 8), (4, 8, 2, 2, 2), True, 2)
    x, weight, bias = device_data(case, dtype)
    store = cupy.empty(x.size + 8, dtype=x.dtype)
    moved = store[offset : offset + x.size].reshape(x.shape)
    moved[...] = x
    assert moved.flags.c_contiguous
    for stride in (1, 2):
        settings = {**case.settings, "stride": stride, "algorithm": "implicit_gemm"}
        expected = conv_transpose3d(x, weight, bias, **settings)
        y = conv_transpose3d(moved, weight, bias, **settings)
        assert y.get().tobytes() == expected.get().tobytes()


def test_an_unaligned_out_is_written_whole() -> None:
    import cupy

    case = Case("out", (1, 4, 2, 3, 8), (4, 8, 2, 2, 2), True, 2)
    operands = device_data(case)
    expected = conv_transpose3d(*operands, **case.settings, algorithm="implicit_gemm")
    store = cupy.full(expected.size + 2, 7, dtype=np.float32)
    out = store[1:-1].reshape(expected.shape)
    conv_transpose3d(*operands, **case.settings, algorithm="implicit_gemm", out=out)
    np.testing.assert_array_equal(out.get(), expected.get())
    assert store[0] == store[-1] == 7


def test_tensor_cores_refuse_complex_numbers() -> None:
    operands = device_data(CASE, "complex64")
    with pytest.raises(ValueError, match="got 'implicit_gemm': tensor cores have no complex"):
        conv_transpose3d(*operands, **CASE.settings, algorithm="implicit_gemm")
