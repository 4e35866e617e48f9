"""A plan whose weights are torch tensors, on the CPU or on a CUDA device."""

from __future__ import annotations

from typing import Any

from cupy_convt3d._call import Settings, Shape, check_layer_dtype, check_weights, layer_problem
from cupy_convt3d._device_weights import DeviceWeights
from cupy_convt3d._libraries import check_library
from cupy_convt3d._overlap import check_no_overlap, check_out
from cupy_convt3d._run_cupy import COPY_ALIGNMENT
from cupy_convt3d._run_torch import (
    byte_range_of,
    check_tensors,
    run_torch_without_gradients,
    tell_autograd,
)
from cupy_convt3d._torch_bridge import address, cupy_on_torchs_stream, dense


class TorchLayer:
    """Calls with copies of torch weights, on torch's current stream and in torch's memory."""

    def __init__(self, weight: Any, bias: Any, settings: Settings) -> None:
        import torch

        self._torch = torch
        tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        check_tensors(torch, tensors)
        self._dtype = check_weights(weight, bias, settings)
        self._settings = settings
        self._on_device: DeviceWeights | None = None
        if not weight.is_cuda:
            self._weight, self._bias = self._copies(weight, bias)
            return
        with cupy_on_torchs_stream(torch, weight.device) as cupy:
            self._weight, self._bias = self._copies(weight, bias)
            self._on_device = DeviceWeights(
                cupy,
                self._weight,
                self._bias,
                self._dtype,
                settings,
                weight.device.index,
                allocate=lambda size: torch.empty(size, dtype=torch.uint8, device=weight.device),
                pointer=address,
            )

    def __call__(self, x: Any, out: Any) -> Any:
        check_library("torch", x, out)
        check_layer_dtype(x.dtype, self._dtype)
        if x.device != self._weight.device:
            raise ValueError(
                f"x must be on the device of weight, {self._weight.device}, got {x.device}"
            )
        problem = layer_problem(tuple(x.shape), self._weight, self._bias, self._settings)
        if self._on_device is None:
            return run_torch_without_gradients(x, self._weight, self._bias, out, self._settings)
        check_tensors(self._torch, {"x": x} if out is None else {"x": x, "out": out})
        y_shape = problem.y_shape if x.ndim == 5 else problem.y_shape[1:]
        if out is not None:
            itemsize = self._dtype.itemsize
            check_out(out, y_shape, x.dtype, out.is_contiguous(), out.data_ptr(), itemsize)
            check_no_overlap(byte_range_of(out), {"x": byte_range_of(x)})
        return self._run_cuda(x, out, y_shape, self._on_device)

    def _run_cuda(self, x: Any, out: Any, y_shape: Shape, weights: DeviceWeights) -> Any:
        torch = self._torch
        with cupy_on_torchs_stream(torch, x.device) as cupy:
            y = torch.empty(y_shape, dtype=x.dtype, device=x.device) if out is None else out
            if y.numel() == 0:
                return y
            x_dense = dense(x.resolve_conj().resolve_neg(), self._dtype.itemsize)
            aligned = x_dense.data_ptr() % COPY_ALIGNMENT == 0
            prepared = weights.prepared(tuple(x.shape), aligned)
            if prepared.written.precede(cupy.cuda.get_current_stream()):
                # torch must not reuse their memory, once the plan is gone, before this call is
                # done.
                for tensor in (weights.weight, weights.bias, prepared.packed):
                    if tensor is not None:
                        tensor.record_stream(torch.cuda.current_stream(x.device))
            workspace = torch.empty(
                prepared.bound.workspace_bytes, dtype=torch.uint8, device=x.device
            )
            prepared.bound.run(
                {
                    "x": address(x_dense),
                    "weight": address(weights.weight),
                    "bias": None if weights.bias is None else address(weights.bias),
                    "y": address(y),
                    "workspace": address(workspace),
                    "packed": None if prepared.packed is None else address(prepared.packed),
                }
            )
        if out is not None:
            tell_autograd(torch, out)
        return y

    def _copies(self, weight: Any, bias: Any) -> tuple[Any, Any]:
        contiguous = self._torch.contiguous_format
        weight, bias = (
            None
            if tensor is None
            else tensor.detach().resolve_conj().resolve_neg().clone(memory_format=contiguous)
            for tensor in (weight, bias)
        )
        return weight, bias
