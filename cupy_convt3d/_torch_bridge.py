"""From CUDA tensors of torch to kernels: addresses, torch's stream, memory that torch allocates.

Tensors are on one device, dense, and hold the values they show (nothing lazy).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cupy_convt3d._bound_gradient import bound_gradient
from cupy_convt3d._call import Settings, Shape
from cupy_convt3d._choice_gradient import Gradient
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._launch import BoundPlan
from cupy_convt3d._plan import Role
from cupy_convt3d._problem import Problem
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
        tensors: dict[Role, Any] = {"x": x, "weight": weight, "bias": bias, "y": y}
        launch(bound, tensors, allocator(torch, x.device))
    return y


def gradient_cuda(
    torch: Any,
    kind: Gradient,
    operands: dict[Role, Any],
    problem: Problem,
    dtype: KernelDtype,
    settings: Settings,
) -> Any:
    """Return a gradient; zeros for an empty batch."""
    first = next(iter(operands.values()))
    shape = problem.x_shape if kind == "grad_input" else problem.weight_shape
    with cupy_on_torchs_stream(torch, first.device):
        if problem.batch == 0:
            return torch.zeros(shape, dtype=first.dtype, device=first.device)
        gradient = torch.empty(shape, dtype=first.dtype, device=first.device)
        tensors = {role: dense(tensor, dtype.itemsize) for role, tensor in operands.items()}
        bound = bound_gradient(
            kind,
            problem.x_shape,
            problem.weight_shape,
            dtype,
            settings,
            first.device.index,
            _aligned(*tensors.values()),
        )
        # A transposed convolution has a bias where this kernel computes it.
        tensors["bias"] = None
        tensors[kind] = gradient
        launch(bound, tensors, allocator(torch, first.device))
    return gradient


def launch(bound: BoundPlan, tensors: dict[Role, Any], allocate: Callable[[int], Any]) -> None:
    """Queue a plan on CuPy's current stream, which must be torch's.

    ``allocate`` returns a tensor of so many bytes. Copies and workspace stay referenced until
    everything is queued; torch reuses their memory only for later work on this stream.
    """
    tensors["workspace"] = allocate(bound.workspace_bytes)
    tensors["packed"] = allocate(bound.packed_bytes)
    addresses: dict[Role, Any] = {
        role: None if tensor is None else address(tensor) for role, tensor in tensors.items()
    }
    bound.pack(addresses)
    bound.run(addresses)


def allocator(torch: Any, device: Any) -> Callable[[int], Any]:
    """Return a function that returns a tensor of so many bytes."""
    return lambda size: torch.empty(size, dtype=torch.uint8, device=device)


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
