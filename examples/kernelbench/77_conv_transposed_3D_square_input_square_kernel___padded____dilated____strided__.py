"""KernelBench level 1, problem 77: stride 2, padding, dilation 2."""

import torch
from torch import nn

from cupy_convt3d.torch import conv_transpose3d

PRECISION = "ieee"  # "bf16x3" stays within KernelBench's tolerance as well


class ModelNew(nn.Module):
    """The problem's layer, computed by cupy_convt3d."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        # Draws the parameters as the reference does, and keeps the settings.
        self.conv_transpose3d = nn.ConvTranspose3d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            bias=bias,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the transposed convolution."""
        layer = self.conv_transpose3d
        return conv_transpose3d(
            x,
            layer.weight,
            layer.bias,
            layer.stride,
            layer.padding,
            layer.output_padding,
            layer.groups,
            layer.dilation,
            precision=PRECISION,
        )
