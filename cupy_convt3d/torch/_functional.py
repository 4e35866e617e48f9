"""The function in torch's own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cupy_convt3d._call import settings_of
from cupy_convt3d.torch import _calls

IntOrTriple = int | Sequence[int]


def conv_transpose3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    output_padding: IntOrTriple = 0,
    groups: int = 1,
    dilation: IntOrTriple = 1,
    *,
    precision: str | None = "ieee",
) -> torch.Tensor:
    """Compute a 3-D transposed convolution, as ``torch.nn.functional.conv_transpose3d`` does.

    Parameters
    ----------
    input : Tensor, shape (N, C_in, D, H, W) or (C_in, D, H, W)
        On the CPU or a CUDA device. dtype float16, bfloat16, float32, float64, complex64 or
        complex128. Any strides.
    weight : Tensor, shape (C_in, C_out/groups, KD, KH, KW)
        Of the dtype and device of ``input``, as is ``bias``.
    bias : Tensor, shape (C_out,), optional
    stride, padding, output_padding, groups, dilation
        As in torch; `cupy_convt3d.conv_transpose3d` has the rules.
    precision : {"ieee", "bf16x3", "tf32"} or None, default "ieee"
        The least accuracy of float32 products on CUDA devices, in this call and its derivatives;
        see `cupy_convt3d.conv_transpose3d`. torch's own settings of TF32 are not followed.

    Returns
    -------
    Tensor, shape (N, C_out, OD, OH, OW), or without N if ``input`` has none
        C-contiguous.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `cupy_convt3d.conv_transpose3d` does.

    Notes
    -----
    Derivatives of every order are recorded, in reverse and in forward mode, each by the same
    kernels: they are deterministic, and so ``torch.use_deterministic_algorithms`` changes nothing.
    ``torch.compile``, ``torch.export``, ``torch.func`` and ``torch.vmap`` see one operator. Under
    autocast the operands are converted as torch does it for its convolutions.

    Work is queued on torch's current stream, in memory that torch allocates, and can be captured in
    a CUDA graph after one call of the same signature.

    Examples
    --------
    >>> import torch
    >>> from cupy_convt3d.torch import conv_transpose3d
    >>> x = torch.ones(1, 1, 1, 1, 2, requires_grad=True)
    >>> weight = torch.tensor([1.0, 2.0, 4.0]).reshape(1, 1, 1, 1, 3)
    >>> y = conv_transpose3d(x, weight)
    >>> y.flatten()
    tensor([1., 3., 6., 4.], grad_fn=<ViewBackward0>)
    >>> y.sum().backward()
    >>> x.grad.flatten()
    tensor([7., 7.])
    """
    for name, value in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(value, torch.Tensor) and (value is not None or name != "bias"):
            raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
    settings = settings_of(
        stride, padding, output_padding, groups, dilation, None, "auto", True, precision
    )
    result: Any = _calls.forward(input, weight, bias, settings)
    return result
