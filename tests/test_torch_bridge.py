"""How CUDA tensors reach the kernels: addresses, a foreign stream, and memory from outside.

A build of torch for the CPU has no such tensors, so that the memory is CuPy's here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_convt3d._bound_gradient import bound_gradient
from cupy_convt3d._call import settings_of
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._gradient_call import GRAD_INPUT_ALGORITHMS, GRAD_WEIGHT_ALGORITHMS
from cupy_convt3d._run_cupy import bound_plan
from cupy_convt3d._torch_bridge import cupy_stream, launch
from tests.gradients import exact_gradients, integer_operands
from tests.problems import Case, exact_result, integer_data

pytestmark = pytest.mark.cuda

CASE = Case("bridge", (2, 4, 4, 5, 9), (4, 3, 2, 3, 3), True, (1, 2, 1), padding=(0, 1, 1))
KINDS = {
    "y": ("auto", "gather", "implicit_gemm"),
    "grad_input": GRAD_INPUT_ALGORITHMS,
    "grad_weight": GRAD_WEIGHT_ALGORITHMS,
}


class Memory:
    """What the bridge asks of a tensor: where it starts."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def data_ptr(self) -> int:
        return int(self.array.data.ptr)


def allocate(size: int) -> Memory:
    import cupy

    return Memory(cupy.empty(size, dtype="u1"))


def prepared(kind: str, algorithm: str, dtype: str) -> tuple[Any, dict[Any, Any], np.ndarray]:
    """Return the compiled plan, the memory of its operands and result, and what is expected."""
    import cupy

    settings = settings_of(
        CASE.stride, CASE.padding, 0, 1, 1, None, algorithm, True, algorithms=KINDS[kind]
    )
    x, weight, grad_output = integer_operands(CASE, dtype)
    if kind == "y":
        bias = integer_data(CASE, dtype)[2]
        operands = {"x": x, "weight": weight, "bias": bias}
        expected = exact_result(CASE, (x, weight, bias))
        bound = bound_plan(CASE.x, CASE.weight, CASE.bias_shape, DTYPES[dtype], settings, 0, True)
    else:
        operands = {"grad_output": grad_output, "weight": weight}
        if kind == "grad_weight":
            operands = {"x": x, "grad_output": grad_output}
        expected = exact_gradients(CASE, (x, weight, grad_output))[kind == "grad_weight"]
        bound = bound_gradient(kind, CASE.x, CASE.weight, DTYPES[dtype], settings, 0, True)
    memory: dict[Any, Any] = {role: Memory(cupy.asarray(a)) for role, a in operands.items()}
    memory.setdefault("bias", None)
    memory[kind] = Memory(cupy.full(expected.shape, 7, dtype=x.dtype))
    return bound, memory, expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "algorithm"), [(kind, name) for kind, names in KINDS.items() for name in names]
)
def test_addresses_on_a_foreign_stream(kind: str, algorithm: str, dtype: str) -> None:
    import cupy

    bound, memory, expected = prepared(kind, algorithm, dtype)
    owner = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Stream.null.synchronize()
    with cupy_stream(cupy, owner.ptr, 0) as stream:
        assert stream.ptr == owner.ptr
        launch(bound, memory, allocate)
    owner.synchronize()
    np.testing.assert_array_equal(memory[kind].array.get().astype(np.float64), expected)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_captured_graph_uses_the_memory_it_was_given(kind: str) -> None:
    """As torch captures: all memory is there, nothing compiles, and nothing synchronises."""
    import cupy

    bound, memory, expected = prepared(kind, "auto", "float32")
    given = {size: allocate(size) for size in (bound.workspace_bytes, bound.packed_bytes)}
    owner = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Stream.null.synchronize()
    owner.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
    with cupy_stream(cupy, owner.ptr, 0):
        launch(bound, memory, given.__getitem__)
    graph = owner.end_capture()
    assert (memory[kind].array.get() == 7).all()
    graph.launch(owner)
    owner.synchronize()
    np.testing.assert_array_equal(memory[kind].array.get(), expected)
