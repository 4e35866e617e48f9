"""From CUDA tensors of torch to kernels: addresses, torch's stream, memory that torch allocates.

Tensors are on one device, dense, and hold the values they show (nothing lazy).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cupy_convt3d._call import Settings, Shape
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._launch import BoundPlan
from cupy_convt3d._run_cupy import COPY_ALIGNMENT, bound_plan


def forward_cuda(
    torch: Any,
    x: Any,
    weight: Any,
    bias: Any,
    out: Any,
    y_shape: Shape,
    dtype: KernelDtype,
    settings: Settings,
) -> Any:
    """Return the transposed convolution, in ``out`` if there is one."""
    with cupy_on_torchs_stream(torch, x.device):
        y = torch.empty(y_shape, dtype=x.dtype, device=x.device) if out is None else out
        if y.numel() == 0:
            return y
        x = dense(x, dtype.itemsize)
        bound = bound_plan(
            tuple(x.shape),
            tuple(weight.shape),
            None if bias is None else tuple(bias.shape),
            dtype,
            settings,
            x.device.index,
            _aligned(x),
        )
        weight = dense(weight, dtype.itemsize)
        bias = None if bias is None else dense(bias, dtype.itemsize)
        launch(torch, bound, {"x": x, "weight": weight, "bias": bias, "y": y}, x.device)
    return y


def grad_input_cuda(
    torch: Any,
    grad_output: Any,
    weight: Any,
    x_shape: Shape,
    dtype: KernelDtype,
    settings: Settings,
) -> Any:
    """Return the gradient of the input."""
    device = grad_output.device
    with cupy_on_torchs_stream(torch, device):
        grad_input = torch.empty(x_shape, dtype=grad_output.dtype, device=device)
        if grad_input.numel():
            tensors = {
                "grad_output": dense(grad_output, dtype.itemsize),
                "weight": dense(weight, dtype.itemsize),
            }
            bound = _bound_gradient(
                "grad_input", x_shape, tuple(weight.shape), dtype, settings, device.index, tensors
            )
            launch(torch, bound, {**tensors, "grad_input": grad_input}, device)
    return grad_input


def grad_weight_cuda(
    torch: Any,
    x: Any,
    grad_output: Any,
    weight_shape: Shape,
    dtype: KernelDtype,
    settings: Settings,
) -> Any:
    """Return the gradient of the weight; zeros for an empty batch."""
    with cupy_on_torchs_stream(torch, x.device):
        if x.numel() == 0:
            return torch.zeros(weight_shape, dtype=x.dtype, device=x.device)
        grad_weight = torch.empty(weight_shape, dtype=x.dtype, device=x.device)
        tensors = {
            "x": dense(x, dtype.itemsize),
            "grad_output": dense(grad_output, dtype.itemsize),
        }
        bound = _bound_gradient(
            "grad_weight", tuple(x.shape), weight_shape, dtype, settings, x.device.index, tensors
        )
        launch(torch, bound, {**tensors, "grad_weight": grad_weight}, x.device)
    return grad_weight


def launch(torch: Any, bound: BoundPlan, tensors: dict[Any, Any], device: Any) -> None:
    """Queue a plan on CuPy's current stream, which must be torch's.

    Copies and workspace stay referenced until everything is queued; torch reuses their memory only
    for later work on this stream.
    """
    tensors["workspace"] = torch.empty(bound.workspace_bytes, dtype=torch.uint8, device=device)
    tensors["packed"] = torch.empty(bound.packed_bytes, dtype=torch.uint8, device=device)
    addresses = {
        role: None if tensor is None else address(tensor) for role, tensor in tensors.items()
    }
    bound.pack(addresses)
    bound.run(addresses)


def address(tensor: Any) -> Any:
    """Return where a tensor starts, as a kernel takes it."""
    return np.uintp(tensor.data_ptr())


def dense(tensor: Any, itemsize: int) -> Any:
    """Return the tensor itself if kernels can index it, else a C-contiguous, aligned copy."""
    tensor = tensor.detach().contiguous()
    # A complex view can start between two elements; the kernels load whole ones.
    return tensor.clone() if tensor.data_ptr() % itemsize else tensor


@contextlib.contextmanager
def cupy_on_torchs_stream(torch: Any, device: Any) -> Iterator[Any]:
    """Make a device current, and torch's stream on it CuPy's; yields CuPy.

    Raises
    ------
    ImportError
        There is no CuPy.
    """
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "torch tensors on a CUDA device need CuPy: pip install 'cupy-convt3d[cuda12]' "
            "or 'cupy-convt3d[cuda13]', whichever CUDA torch was built for"
        ) from error
    handle = torch.cuda.current_stream(device).cuda_stream
    with cupy.cuda.Device(device.index), cupy_stream(cupy, handle, device.index):
        yield cupy


class _TorchStream:
    """A stream of torch, as the CUDA stream protocol describes one (torch before 2.10 does not)."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def cupy_stream(cupy: Any, handle: int, device: int) -> Any:
    """Return torch's stream as a CuPy stream; CuPy 14 deprecated the older way."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_TorchStream(handle))
    return cupy.cuda.ExternalStream(handle, device)


def _aligned(*tensors: Any) -> bool:
    return all(tensor.data_ptr() % COPY_ALIGNMENT == 0 for tensor in tensors)


def _bound_gradient(
    kind: str,
    x_shape: Shape,
    weight_shape: Shape,
    dtype: KernelDtype,
    settings: Settings,
    device: int,
    operands: dict[str, Any],
) -> BoundPlan:
    from cupy_convt3d._bound_gradient import bound_gradient

    aligned = _aligned(*operands.values())
    bound: BoundPlan = bound_gradient(kind, x_shape, weight_shape, dtype, settings, device, aligned)
    return bound
