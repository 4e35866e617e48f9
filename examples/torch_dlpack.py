"""Torch tensors in, torch tensors out; CuPy arrays to torch and back without a copy.

CPU tensors take the NumPy path, which works in torch's memory. For CUDA tensors the kernels read
and write torch's memory, on torch's current stream. No gradients are recorded, so a layer's own
parameters are used inside torch.no_grad().

Run: python examples/torch_dlpack.py
"""

from __future__ import annotations

import copy

import torch

from cupy_convt3d import conv_transpose3d


def apply_layer(
    layer: torch.nn.ConvTranspose3d, x: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute what ``layer(x)`` does, from the layer's own parameters."""
    with torch.no_grad():
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


def agrees(layer: torch.nn.ConvTranspose3d, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Compare with torch's result on the CPU in float64."""
    with torch.no_grad():
        expected = copy.deepcopy(layer).cpu().double()(x.cpu().double())
    return torch.allclose(y.cpu().double(), expected, rtol=0, atol=1e-5)


def cpu_tensors(layer: torch.nn.ConvTranspose3d, x: torch.Tensor) -> None:
    y = apply_layer(layer, x)
    print(
        f"CPU: {type(y).__name__} {tuple(y.shape)}, agrees with torch to 1e-5: {agrees(layer, x, y)}"
    )

    out = torch.empty_like(y)
    y = apply_layer(layer, x, out)
    print(f"CPU: the result is in the memory given as out: {y.data_ptr() == out.data_ptr()}")


def cuda_tensors(layer: torch.nn.ConvTranspose3d, x: torch.Tensor) -> None:
    if not torch.cuda.is_available():
        print("CUDA: not run, torch finds no CUDA device")
        return
    layer, x = layer.cuda(), x.cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = apply_layer(layer, x)
        peak = torch.cuda.max_memory_allocated() - before
        # Queued behind the kernel, for it went to the same stream.
        print(
            f"CUDA: on {y.device}, a stream of its own, agrees with torch to 1e-5: {agrees(layer, x, y)}"
        )
    operands = min(x.nbytes, layer.weight.nbytes)
    print(f"CUDA: torch allocated the result and nothing else: {peak < y.nbytes + operands}")


def cupy_arrays(layer: torch.nn.ConvTranspose3d, x: torch.Tensor) -> None:
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError):  # CUDARuntimeError: no driver or no device
        print("CuPy: not run, CuPy is not installed or finds no CUDA device")
        return
    weight, bias = (cupy.asarray(p.detach().cpu().numpy()) for p in (layer.weight, layer.bias))
    array = conv_transpose3d(
        cupy.asarray(x.numpy()),
        weight,
        bias,
        layer.stride,
        layer.padding,
        layer.output_padding,
        layer.groups,
    )
    if not torch.cuda.is_available():
        y = torch.from_numpy(cupy.asnumpy(array))
        print("CuPy: no DLPack, torch finds no CUDA device; copied to a torch tensor on the CPU")
        print(f"CuPy: agrees with torch to 1e-5: {agrees(layer, x, y)}")
        return
    y = torch.from_dlpack(array)
    back = cupy.from_dlpack(y)
    same = array.data.ptr == y.data_ptr() == back.data.ptr
    print(f"CuPy: array to torch tensor and back by DLPack, same memory: {same}")
    print(f"CuPy: agrees with torch to 1e-5: {agrees(layer, x, y)}")


def main() -> None:
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose3d(
        6, 8, (3, 2, 4), stride=(2, 1, 2), padding=(1, 0, 1), output_padding=(1, 0, 0), groups=2
    )
    x = torch.randn(2, 6, 5, 6, 7)
    cpu_tensors(layer, x)
    cuda_tensors(layer, x)
    cupy_arrays(layer, x)


if __name__ == "__main__":
    main()
