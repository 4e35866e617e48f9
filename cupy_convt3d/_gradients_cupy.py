"""Gradients whose operands are CuPy arrays: on CuPy's current stream, in CuPy's memory."""

from __future__ import annotations

from typing import Any

from cupy_convt3d._bound_gradient import bound_gradient
from cupy_convt3d._call import Settings
from cupy_convt3d._choice_gradient import Gradient
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._gradient_call import grad_input_call, grad_weight_call
from cupy_convt3d._plan import Role
from cupy_convt3d._problem import Problem
from cupy_convt3d._run_cupy import COPY_ALIGNMENT, common_device, dense


def run_grad_input_cupy(grad_output: Any, weight: Any, input_shape: Any, settings: Settings) -> Any:
    """Return the gradient of the input; see `cupy_convt3d.conv_transpose3d_grad_input`."""
    problem, dtype, shape = grad_input_call(grad_output, weight, input_shape, settings)
    operands: dict[Role, Any] = {"grad_output": grad_output, "weight": weight}
    return _run("grad_input", operands, shape, problem, dtype, settings)


def run_grad_weight_cupy(x: Any, grad_output: Any, weight_shape: Any, settings: Settings) -> Any:
    """Return the gradient of the weight; see `cupy_convt3d.conv_transpose3d_grad_weight`."""
    problem, dtype = grad_weight_call(x, grad_output, weight_shape, settings)
    operands: dict[Role, Any] = {"x": x, "grad_output": grad_output}
    shape = problem.weight_shape
    return _run("grad_weight", operands, shape, problem, dtype, settings)


def _run(
    kind: Gradient,
    operands: dict[Role, Any],
    shape: tuple[int, ...],
    problem: Problem,
    dtype: KernelDtype,
    settings: Settings,
) -> Any:
    import cupy

    device = common_device(operands)
    # Making the current device current once more costs microseconds.
    if device != cupy.cuda.runtime.getDevice():
        with cupy.cuda.Device(device):
            return _run_on_current(cupy, kind, operands, shape, problem, dtype, settings, device)
    return _run_on_current(cupy, kind, operands, shape, problem, dtype, settings, device)


def _run_on_current(
    cupy: Any,
    kind: Gradient,
    operands: dict[Role, Any],
    shape: tuple[int, ...],
    problem: Problem,
    dtype: KernelDtype,
    settings: Settings,
    device: int,
) -> Any:
    first = next(iter(operands.values()))
    if problem.batch == 0:
        return cupy.zeros(shape, dtype=first.dtype)
    result = cupy.empty(shape, dtype=first.dtype)
    # A transposed convolution has a bias where this kernel computes it.
    arrays: dict[Role, Any] = {kind: result, "bias": None, "workspace": None, "packed": None}
    aligned = True
    for role, operand in operands.items():
        array = dense(cupy, operand, role, dtype.itemsize)
        aligned = aligned and array.data.ptr % COPY_ALIGNMENT == 0
        arrays[role] = array
    bound = bound_gradient(
        kind, problem.x_shape, problem.weight_shape, dtype, settings, device, aligned
    )
    if bound.workspace_bytes:
        arrays["workspace"] = cupy.empty(bound.workspace_bytes, dtype="u1")
    if bound.packed_bytes:
        arrays["packed"] = cupy.empty(bound.packed_bytes, dtype="u1")
    if cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr):
        # The graph will use them whenever it is launched.
        bound.captured.append((arrays["workspace"], arrays["packed"]))
    bound.pack(arrays)
    bound.run(arrays)
    return result
