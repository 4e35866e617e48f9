"""Torch tensors in, torch tensors out; CuPy arrays to torch and back without a copy.

CPU tensors take the NumPy path, which works in torch's memory. For CUDA tensors the kernels read
and write torch's memory, on torch's current stream. Gradients flow, but not through a result that
is put into a tensor given as out.

Run: python examples/torch_dlpack.py
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from cupy_convt3d import conv_transpose3d


def apply_layer(
    layer: torch.nn.ConvTranspose3d, x: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute what ``layer(x)`` does, from the layer's own parameters."""
    return conv_transpose3d(
        x,
        layer.weight,
        layer.bias,
        layer.stride,
        layer.padding,
        layer.output_padding,
        layer.groups,
        layer.dilation,
        out=out,
    )


def gradients(layer: torch.nn.ConvTranspose3d, y: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of the layer's parameters for the sum of squares of its result."""
    return list(torch.autograd.grad(y.square().sum(), list(layer.parameters())))


def agrees(layer: torch.nn.ConvTranspose3d, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Compare with torch's result on the CPU in float64."""
    with torch.no_grad():
        expected = copy.deepcopy(layer).cpu().double()(x.cpu().double())
    return torch.allclose(y.cpu().double(), expected, rtol=0, atol=1e-5)


def cpu_tensors(layer: torch.nn.ConvTranspose3d, x: torch.Tensor) -> None:
    y = apply_layer(layer, x)
    print(f"CPU: {y.dtype} {tuple(y.shape)}, a {type(y).__name__}")
    print(f"CPU: agrees with torch to 1e-5: {agrees(layer, x, y)}")

    pairs = zip(gradients(layer, y), gradients(layer, layer(x)), strict=True)
    same = all(torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4) for ours, theirs in pairs)
    print(f"CPU: gradients agree with torch's to 1e-4: {same}")

    out = torch.empty_like(y)
    with torch.no_grad():
        y = apply_layer(layer, x, out)
    print(f"CPU: the result is in the memory given as out: {y.data_ptr() == out.data_ptr()}")


def cuda_tensors(layer: torch.nn.ConvTranspose3d, x: torch.Tensor) -> None:
    layer, x = copy.deepcopy(layer).cuda(), x.cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            y = apply_layer(layer, x)
        allocated = torch.cuda.max_memory_allocated() - before
        # Torch's own work is queued behind the kernel, on the same stream: no need to wait.
        print(f"CUDA: {y.dtype} {tuple(y.shape)}, a {type(y).__name__} on {y.device}")
        print(f"CUDA: agrees with torch to 1e-5, on a stream of its own: {agrees(layer, x, y)}")
    no_copy = allocated < y.nbytes + min(x.nbytes, layer.weight.nbytes)
    print(f"CUDA: torch allocated memory for the result, none for copies: {no_copy}")


def cupy_arrays(layer: torch.nn.ConvTranspose3d, x: torch.Tensor, cupy: Any) -> None:
    array = conv_transpose3d(
        cupy.asarray(x.numpy()),
        cupy.asarray(layer.weight.detach().numpy()),
        cupy.asarray(layer.bias.detach().numpy()),
        layer.stride,
        layer.padding,
        layer.output_padding,
        layer.groups,
        layer.dilation,
    )
    if torch.cuda.is_available():
        y = torch.from_dlpack(array)
        back = cupy.from_dlpack(y)
        same = array.data.ptr == y.data_ptr() == back.data.ptr
        print(f"CuPy: array to torch tensor and back by DLPack, in the same memory: {same}")
    else:
        y = torch.from_numpy(cupy.asnumpy(array))
        print("CuPy: no DLPack, torch finds no CUDA device; copied to a CPU tensor")
    print(f"CuPy: agrees with torch to 1e-5: {agrees(layer, x, y)}")


def find_cupy() -> Any:
    """Return CuPy if it finds a CUDA device, else None."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError):  # CUDARuntimeError: no driver or no device
        return None
    return cupy


def main() -> None:
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose3d(
        6, 8, (3, 2, 4), stride=(2, 1, 2), padding=(1, 0, 1), output_padding=(1, 0, 0), groups=2
    )
    x = torch.randn(2, 6, 5, 6, 7)
    cpu_tensors(layer, x)
    cupy = find_cupy()
    if cupy is None:
        print("CUDA, CuPy: not run, no CuPy with a CUDA device found")
        return
    if torch.cuda.is_available():
        cuda_tensors(layer, x)
    else:
        print("CUDA: not run, torch finds no CUDA device")
    cupy_arrays(layer, x, cupy)


if __name__ == "__main__":
    main()
