"""Run a call whose operands are CuPy arrays: on CuPy's current stream, into CuPy's memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cupy_convt3d._algorithm import make_plan
from cupy_convt3d._call import Settings, Shape, check_dtypes, checked_problem
from cupy_convt3d._device import device_of
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._launch import BoundPlan
from cupy_convt3d._overlap import byte_range, check_no_overlap, check_out
from cupy_convt3d._plan import Role

#: Bytes of the widest copies from x to shared memory.
COPY_ALIGNMENT = 16


def run_cupy(x: Any, weight: Any, bias: Any, out: Any, settings: Settings) -> Any:
    """Return the transposed convolution of CuPy arrays; see `cupy_convt3d.conv_transpose3d`."""
    import cupy

    dtype = check_dtypes(x, weight, bias, settings.activation)
    bias_shape = None if bias is None else bias.shape
    problem = checked_problem(x.shape, weight.shape, bias_shape, settings)
    y_shape = problem.y_shape if x.ndim == 5 else problem.y_shape[1:]
    device = common_device({"x": x, "weight": weight, "bias": bias, "out": out})
    if out is not None:
        check_out(out, y_shape, x.dtype, out.flags.c_contiguous, out.data.ptr, dtype.itemsize)
        operands = {"x": x, "weight": weight, "bias": bias}
        check_no_overlap(
            byte_range_of(out),
            {name: byte_range_of(a) for name, a in operands.items() if a is not None},
        )
    if device != cupy.cuda.runtime.getDevice():
        with cupy.cuda.Device(device):
            return _run(cupy, x, weight, bias, out, y_shape, dtype, settings, device)
    return _run(cupy, x, weight, bias, out, y_shape, dtype, settings, device)


def _run(
    cupy: Any,
    x: Any,
    weight: Any,
    bias: Any,
    out: Any,
    y_shape: Shape,
    dtype: KernelDtype,
    settings: Settings,
    device: int,
) -> Any:
    y = cupy.empty(y_shape, dtype=x.dtype) if out is None else out
    if y.size == 0:
        return y
    bias_shape = None if bias is None else bias.shape
    x = dense(cupy, x, "x", dtype.itemsize)
    aligned = x.data.ptr % COPY_ALIGNMENT == 0
    bound = bound_plan(x.shape, weight.shape, bias_shape, dtype, settings, device, aligned)
    arrays: dict[Role, Any] = {
        "x": x,
        "weight": dense(cupy, weight, "weight", dtype.itemsize),
        "bias": None if bias is None else dense(cupy, bias, "bias", dtype.itemsize),
        "y": y,
        "workspace": None,
    }
    if bound.workspace_bytes or bound.packed_bytes:
        arrays["workspace"] = cupy.empty(bound.workspace_bytes, dtype="u1")
        arrays["packed"] = cupy.empty(bound.packed_bytes, dtype="u1")
        if cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr):
            # The graph will use them whenever it is launched.
            bound.captured.append((arrays["workspace"], arrays["packed"]))
        bound.pack(arrays)
    bound.run(arrays)
    return y


@functools.lru_cache(maxsize=1024)
def bound_plan(
    x_shape: Shape,
    weight_shape: Shape,
    bias_shape: Shape | None,
    dtype: KernelDtype,
    settings: Settings,
    device: int,
    x_aligned: bool,
) -> BoundPlan:
    """Return the compiled plan of a signature for ``device``, which must be the current one.

    ``x_aligned`` says that x starts at a multiple of `COPY_ALIGNMENT`.
    """
    problem = checked_problem(x_shape, weight_shape, bias_shape, settings)
    plan = make_plan(
        problem,
        dtype,
        bias_shape is not None,
        settings.algorithm,
        settings.deterministic,
        precision=settings.precision,
        activation=settings.activation,
        config=settings.config,
        device=device_of(device),
        x_aligned=x_aligned,
    )
    return BoundPlan(plan, device)


def dense(cupy: Any, array: Any, name: str, itemsize: int) -> Any:
    """Return the array itself if kernels can index it, else a C-contiguous, aligned copy."""
    if array.data.ptr % itemsize == 0:
        return array if array.flags.c_contiguous else cupy.ascontiguousarray(array)
    # A view of bytes, or of floats as complex numbers, can start anywhere; kernels, CuPy's own
    # included, load whole items.
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be aligned to its item size of {itemsize} bytes unless it is C-contiguous"
        )
    copy = cupy.empty(array.shape, dtype=array.dtype)
    copy.data.copy_from_device_async(array.data, array.nbytes)
    return copy


def common_device(arrays: Mapping[Any, Any]) -> int:
    """Return the device of all arrays (some may be None), or raise ValueError."""
    first, *others = ((name, a) for name, a in arrays.items() if a is not None)
    device: int = first[1].data.device_id
    for name, array in others:
        if array.data.device_id != device:
            raise ValueError(
                f"{name} must be on the device of {first[0]}, {device}, "
                f"got device {array.data.device_id}"
            )
    return device


def byte_range_of(array: Any) -> tuple[int, int]:
    return byte_range(array.data.ptr, array.shape, array.strides, array.itemsize)
