"""Run a call whose operands are torch tensors: through the operators, or without gradients."""

from __future__ import annotations

import sys
from typing import Any

from cupy_convt3d._activation import NO_ACTIVATION
from cupy_convt3d._call import Settings, check_dtypes, checked_problem
from cupy_convt3d._overlap import byte_range, check_no_overlap, check_out
from cupy_convt3d._torch_bridge import forward_cuda
from cupy_convt3d._torch_cpu import forward_cpu


def run_torch(x: Any, weight: Any, bias: Any, out: Any, settings: Settings) -> Any:
    """Return the transposed convolution of torch tensors; see `cupy_convt3d.conv_transpose3d`.

    An operator of torch has no place for ``out``, an activation or a configuration of a kernel:
    calls with one of them record no gradients, and refuse tensors that need them.
    """
    if out is None and settings.activation == NO_ACTIVATION and settings.config is None:
        from cupy_convt3d.torch import _calls

        return _calls.forward(x, weight, bias, settings)
    return run_torch_without_gradients(x, weight, bias, out, settings)


def run_grad_input_torch(
    grad_output: Any, weight: Any, input_shape: Any, settings: Settings
) -> Any:
    """Return the gradient of the input; see `cupy_convt3d.conv_transpose3d_grad_input`."""
    _refuse_config(settings)
    from cupy_convt3d.torch import _calls

    return _calls.grad_input(grad_output, weight, input_shape, settings)


def run_grad_weight_torch(x: Any, grad_output: Any, weight_shape: Any, settings: Settings) -> Any:
    """Return the gradient of the weight; see `cupy_convt3d.conv_transpose3d_grad_weight`."""
    _refuse_config(settings)
    from cupy_convt3d.torch import _calls

    return _calls.grad_weight(x, grad_output, weight_shape, settings)


def run_grad_bias_torch(grad_output: Any) -> Any:
    """Return the gradient of the bias; see `cupy_convt3d.conv_transpose3d_grad_bias`."""
    from cupy_convt3d.torch import _calls

    return _calls.grad_bias(grad_output)


def _refuse_config(settings: Settings) -> None:
    if settings.config is not None:
        raise TypeError(
            f"config must be None for gradients of torch tensors, got {settings.config!r}"
        )


def run_torch_without_gradients(
    x: Any, weight: Any, bias: Any, out: Any, settings: Settings
) -> Any:
    """Return the transposed convolution, in ``out`` if it is given, and record nothing."""
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
    x, weight, bias = (
        None if t is None else t.detach().resolve_conj().resolve_neg() for t in (x, weight, bias)
    )
    if x.is_cuda:
        y = forward_cuda(torch, x, weight, bias, out, y_shape, dtype, settings)
    else:
        y = torch.empty(y_shape, dtype=x.dtype, device=x.device) if out is None else out
        forward_cpu(torch, problem, x, weight, bias, y, settings.activation)
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
        "nested and fake tensors, torch.func transforms and torch.export are not supported here"
    )


def tell_autograd(torch: Any, out: Any) -> None:
    """Count a change of ``out``, so that a graph that saved its old values refuses to use them."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def byte_range_of(tensor: Any) -> tuple[int, int]:
    itemsize = tensor.element_size()
    strides = tuple(stride * itemsize for stride in tensor.stride())
    return byte_range(tensor.data_ptr(), tuple(tensor.shape), strides, itemsize)
