"""What only a CUDA device shows of gradients: streams, devices, graphs, DLPack, addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_convt3d import conv_transpose3d_grad_input, conv_transpose3d_grad_weight
from tests.gradients import exact_gradients, integer_operands
from tests.problems import Case
from tests.test_device import Exported

pytestmark = pytest.mark.cuda

CASE = Case("device", (2, 4, 3, 4, 5), (4, 6, 3, 2, 3), False, (2, 1, 2), (1, 0, 1))
GRADIENTS = pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("grad_input", "gather"),
        ("grad_input", "implicit_gemm"),
        ("grad_weight", "direct"),
        ("grad_weight", "implicit_gemm"),
    ],
)


def device_operands(seed: int = 0) -> list[Any]:
    import cupy

    return [cupy.asarray(array) for array in integer_operands(CASE, "float32", seed)]


def compute(kind: str, algorithm: str, operands: list[Any]) -> Any:
    x, weight, grad_output = operands
    keywords = {**CASE.settings, "algorithm": algorithm}
    if kind == "grad_input":
        return conv_transpose3d_grad_input(grad_output, weight, CASE.x, **keywords)
    return conv_transpose3d_grad_weight(x, grad_output, CASE.weight, **keywords)


def check(kind: str, result: Any, seed: int = 0) -> None:
    expected = exact_gradients(CASE, integer_operands(CASE, "float32", seed))
    np.testing.assert_array_equal(result.get(), expected[kind == "grad_weight"])


@GRADIENTS
def test_a_side_stream_gives_the_same(kind: str, algorithm: str) -> None:
    import cupy

    operands = device_operands()
    cupy.cuda.Stream.null.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        result = compute(kind, algorithm, operands)
    stream.synchronize()
    check(kind, result)


@GRADIENTS
def test_a_captured_graph_replays_with_new_data(kind: str, algorithm: str) -> None:
    import cupy

    operands = device_operands()
    cupy.cuda.Stream.null.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc), stream:
        # Compiles, and leaves memory in the stream's pool; the capture then fails on any
        # synchronisation, on work outside its stream, and on memory from the driver.
        compute(kind, algorithm, operands)
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        result = compute(kind, algorithm, operands)
        graph = stream.end_capture()
        # The graph keeps what it uses, whoever asks the pool for memory now.
        other = cupy.full(1 << 16, np.nan, dtype=np.float32)
        stream.synchronize()
    for seed in (1, 2):
        for operand, values in zip(operands, integer_operands(CASE, "float32", seed), strict=True):
            operand.set(values)
        result.fill(np.nan)
        cupy.cuda.Stream.null.synchronize()
        graph.launch(stream)
        stream.synchronize()
        check(kind, result, seed)
    assert np.isnan(other.get()).all()


@pytest.mark.two_devices
@GRADIENTS
def test_arrays_of_another_device_than_the_current_one(kind: str, algorithm: str) -> None:
    import cupy

    with cupy.cuda.Device(1):
        operands = device_operands()
    with cupy.cuda.Device(0):
        result = compute(kind, algorithm, operands)
        assert cupy.cuda.runtime.getDevice() == 0
    assert result.device.id == 1
    check(kind, result)


@pytest.mark.two_devices
def test_arrays_of_two_devices_are_refused() -> None:
    import cupy

    x, weight, grad_output = device_operands()
    with cupy.cuda.Device(1):
        far = cupy.asarray(grad_output.get())
    with pytest.raises(ValueError, match="weight must be on the device of grad_output, 1, got dev"):
        compute("grad_input", "auto", [x, weight, far])
    with pytest.raises(ValueError, match="grad_output must be on the device of x, 0, got device 1"):
        compute("grad_weight", "auto", [x, weight, far])


@GRADIENTS
def test_dlpack_objects_give_a_cupy_array(kind: str, algorithm: str) -> None:
    import cupy

    result = compute(kind, algorithm, list(map(Exported, device_operands())))
    assert type(result) is cupy.ndarray
    check(kind, result)


@GRADIENTS
def test_operands_that_are_not_aligned_to_16_bytes(kind: str, algorithm: str) -> None:
    import cupy

    shifted = []
    for array in device_operands():
        memory = cupy.empty(array.size + 1, dtype=array.dtype)
        view = memory[1:].reshape(array.shape)
        view[...] = array
        shifted.append(view)
    check(kind, compute(kind, algorithm, shifted))


@GRADIENTS
def test_the_same_bits_in_every_run(kind: str, algorithm: str) -> None:
    import cupy

    rng = np.random.default_rng(0)
    operands = [
        cupy.asarray(rng.standard_normal(a.shape).astype(np.float32)) for a in device_operands()
    ]
    first = compute(kind, algorithm, operands).get().tobytes()
    assert all(compute(kind, algorithm, operands).get().tobytes() == first for _ in range(3))
