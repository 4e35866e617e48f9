"""Run a call whose operands are torch tensors: on torch's device and stream, in torch's memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cupy_convt3d._activation import Activation
from cupy_convt3d._call import Settings, Shape, check_dtypes, checked_problem
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._numpy_path import conv_transpose3d_numpy
from cupy_convt3d._overlap import byte_range, check_no_overlap, check_out
from cupy_convt3d._plan import Role
from cupy_convt3d._problem import Problem
from cupy_convt3d._run_cupy import COPY_ALIGNMENT, bound_plan

#: Bytes of the float32 copies of bfloat16 samples that are alive at a time.
BFLOAT16_COPIES = 64 * 1024 * 1024


def run_torch(x: Any, weight: Any, bias: Any, out: Any, settings: Settings) -> Any:
    """Return the transposed convolution of torch tensors; see `cupy_convt3d.conv_transpose3d`."""
    import torch

    operands = {"x": x, "weight": weight, "bias": bias}
    tensors = {name: t for name, t in (*operands.items(), ("out", out)) if t is not None}
    check_tensors(torch, tensors)
    dtype = check_dtypes(x, weight, bias, settings.activation)
    bias_shape = None if bias is None else tuple(bias.shape)
    problem = checked_problem(tuple(x.shape), tuple(weight.shape), bias_shape, settings)
    y_shape = problem.y_shape if x.ndim == 5 else problem.y_shape[1:]
    if out is not None:
        check_out(out, y_shape, x.dtype, out.is_contiguous(), out.data_ptr(), dtype.itemsize)
        check_no_overlap(
            byte_range_of(out),
            {name: byte_range_of(t) for name, t in operands.items() if t is not None},
        )
    if x.is_cuda:
        return _run_cuda(torch, x, weight, bias, out, y_shape, dtype, settings)
    y = torch.empty(y_shape, dtype=x.dtype, device=x.device) if out is None else out
    _run_cpu(torch, problem, x, weight, bias, y, settings.activation)
    if out is not None:
        tell_autograd(torch, out)
    return y


def check_tensors(torch: Any, tensors: dict[str, Any]) -> None:
    """Raise unless the kernels can read the tensors, all on the device of the first."""
    reference = next(iter(tensors))
    device = tensors[reference].device
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense (strided) tensor, got {tensor.layout}")
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{name} must be on the CPU or a CUDA device, got {tensor.device}")
        if tensor.device != device:
            raise ValueError(
                f"{name} must be on the device of {reference}, {device}, got {tensor.device}"
            )
        _check_memory(torch, tensor, name)
        forward = torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
        if forward or (tensor.requires_grad and torch.is_grad_enabled()):
            raise ValueError(
                f"{name} must not require gradients, which are not recorded here: pass "
                f"{name}.detach(), or call inside torch.no_grad()"
            )
    out = tensors.get("out")
    if out is not None and (out.is_conj() or out.is_neg()):
        raise ValueError("out must not be a lazily conjugated or negated view")
    # A trace would keep the allocation of the result and nothing of the computation.
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if torch.jit.is_tracing() or (proxies is not None and proxies.get_proxy_mode() is not None):
        raise TypeError(
            f"{reference} must not be a tensor that is being traced: the trace would be wrong"
        )


def _check_memory(torch: Any, tensor: Any, name: str) -> None:
    """Refuse tensors without memory of their own: nested, fake, zero, and those of transforms."""
    fake = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if not tensor.is_nested and not fake:
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            address = 0
        if address or tensor.numel() == 0:
            return
    raise TypeError(
        f"{name} must be a tensor with memory of its own, got a {type(tensor).__name__} without: "
        "nested and fake tensors, torch.func transforms and torch.export are not supported"
    )


def tell_autograd(torch: Any, out: Any) -> None:
    """Count a change of ``out``, so that a graph that saved its old values refuses to use them."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def _run_cpu(
    torch: Any,
    problem: Problem,
    x: Any,
    weight: Any,
    bias: Any,
    y: Any,
    activation: Activation,
) -> None:
    x, weight, bias = (
        None if t is None else t.detach().resolve_conj().resolve_neg() for t in (x, weight, bias)
    )
    x = x.reshape(problem.x_shape)
    y = y.detach().view(problem.y_shape)
    if y.dtype != torch.bfloat16:
        bias_array = None if bias is None else bias.numpy()
        conv_transpose3d_numpy(
            problem, x.numpy(), weight.numpy(), bias_array, y.numpy(), activation
        )
        return
    try:
        import ml_dtypes
    except ImportError:
        _run_bfloat16_through_float32(torch, problem, x, weight, bias, y, activation)
        return

    def view(tensor: Any) -> Any:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)

    bias_view = None if bias is None else view(bias)
    conv_transpose3d_numpy(problem, view(x), view(weight), bias_view, view(y), activation)


def _run_bfloat16_through_float32(
    torch: Any,
    problem: Problem,
    x: Any,
    weight: Any,
    bias: Any,
    y: Any,
    activation: Activation,
) -> None:
    """Run bfloat16 tensors without ml_dtypes, by float32 copies of a few samples at a time."""
    weight = weight.float().numpy()
    bias = None if bias is None else bias.float().numpy()
    bytes_per_sample = 4 * (x[0].numel() + y[0].numel()) if problem.batch else 1
    samples = max(1, BFLOAT16_COPIES // bytes_per_sample)
    for begin in range(0, problem.batch, samples):
        x_part = x[begin : begin + samples].float().numpy()
        part = replace(problem, batch=x_part.shape[0])
        y_part = np.empty(part.y_shape, dtype=np.float32)
        conv_transpose3d_numpy(part, x_part, weight, bias, y_part, activation)
        y[begin : begin + samples].copy_(torch.from_numpy(y_part))


def _run_cuda(
    torch: Any,
    x: Any,
    weight: Any,
    bias: Any,
    out: Any,
    y_shape: Shape,
    dtype: KernelDtype,
    settings: Settings,
) -> Any:
    bias_shape = None if bias is None else tuple(bias.shape)
    with cupy_on_torchs_stream(torch, x.device):
        y = torch.empty(y_shape, dtype=x.dtype, device=x.device) if out is None else out
        if y.numel() == 0:
            return y
        x = dense(x, dtype.itemsize)
        bound = bound_plan(
            tuple(x.shape),
            tuple(weight.shape),
            bias_shape,
            dtype,
            settings,
            x.device.index,
            x.data_ptr() % COPY_ALIGNMENT == 0,
        )
        # Copies and workspace stay referenced until everything is queued; torch reuses their memory
        # only for later work on this stream.
        tensors: dict[Role, Any] = {
            "x": x,
            "weight": dense(weight, dtype.itemsize),
            "bias": None if bias is None else dense(bias, dtype.itemsize),
            "y": y,
            "workspace": torch.empty(bound.workspace_bytes, dtype=torch.uint8, device=x.device),
            "packed": torch.empty(bound.packed_bytes, dtype=torch.uint8, device=x.device),
        }
        addresses: dict[Role, Any] = {
            role: t if t is None else np.uintp(t.data_ptr()) for role, t in tensors.items()
        }
        bound.pack(addresses)
        bound.run(addresses)
    if out is not None:
        tell_autograd(torch, out)
    return y


def dense(tensor: Any, itemsize: int) -> Any:
    """Return the tensor itself if kernels can index it, else a C-contiguous, aligned copy."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
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
    with cupy.cuda.Device(device.index), _cupy_stream(cupy, handle, device.index):
        yield cupy


class _TorchStream:
    """A stream of torch, as the CUDA stream protocol describes one (torch before 2.10 does not)."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _cupy_stream(cupy: Any, handle: int, device: int) -> Any:
    """Return torch's stream as a CuPy stream; CuPy 14 deprecated the older way."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_TorchStream(handle))
    return cupy.cuda.ExternalStream(handle, device)


def byte_range_of(tensor: Any) -> tuple[int, int]:
    itemsize = tensor.element_size()
    strides = tuple(stride * itemsize for stride in tensor.stride())
    return byte_range(tensor.data_ptr(), tuple(tensor.shape), strides, itemsize)
