"""The module, for the place of torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cupy_convt3d._call import settings_of
from cupy_convt3d._precision import precision_of
from cupy_convt3d.torch import _calls

IntOrTriple = int | Sequence[int]


class ConvTranspose3d(torch.nn.ConvTranspose3d):  # type: ignore[misc]
    """A ``torch.nn.ConvTranspose3d`` whose forward and backward are those of `cupy_convt3d`.

    Parameters and their initial values, ``state_dict`` and everything else is torch's.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation
        As in torch.
    padding_mode : {"zeros"}, default "zeros"
    device, dtype
        As in torch.
    precision : {"ieee", "bf16x3", "tf32"} or None, default "ieee"
        As in `cupy_convt3d.torch.conv_transpose3d`. Not part of the ``state_dict``.

    Examples
    --------
    >>> import torch
    >>> from cupy_convt3d.torch import ConvTranspose3d
    >>> layer = ConvTranspose3d(4, 2, kernel_size=2, stride=2)
    >>> layer(torch.zeros(1, 4, 3, 4, 5)).shape
    torch.Size([1, 2, 6, 8, 10])
    """

    precision: str

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTriple,
        stride: IntOrTriple = 1,
        padding: IntOrTriple = 0,
        output_padding: IntOrTriple = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: IntOrTriple = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        precision: str | None = "ieee",
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        self.precision = precision_of(precision)

    def forward(self, input: Any, output_size: Sequence[int] | None = None) -> Any:
        """Return the transposed convolution of ``input``.

        Parameters
        ----------
        input : Tensor, shape (N, C_in, D, H, W) or (C_in, D, H, W)
        output_size : three ints, or as many as ``input`` has axes, optional
            The wanted extents of the result; takes the place of ``output_padding``.
        """
        settings = settings_of(
            self.stride,
            self.padding,
            self.output_padding if output_size is None else 0,
            self.groups,
            self.dilation,
            output_size,
            "auto",
            True,
            self.precision,
        )
        return _calls.forward(input, self.weight, self.bias, settings)

    def extra_repr(self) -> str:
        """Return what torch shows, and the precision where it is not the usual one."""
        text: str = super().extra_repr()
        return text if self.precision == "ieee" else f"{text}, precision={self.precision!r}"
