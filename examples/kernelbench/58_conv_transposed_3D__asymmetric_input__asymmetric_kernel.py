"""KernelBench level 1, problem 58: a kernel of 3x5x7."""

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
        kernel_size: tuple[int, int, int],
        stride: tuple[int, int, int] = (1, 1, 1),
        padding: tuple[int, int, int] = (0, 0, 0),
        output_padding: tuple[int, int, int] = (0, 0, 0),
        groups: int = 1,
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
            output_padding=output_padding,
            groups=groups,
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
