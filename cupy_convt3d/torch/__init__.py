"""3-D transposed convolution as an operator of torch, with derivatives of every order."""

from cupy_convt3d.torch._convert import convert
from cupy_convt3d.torch._functional import conv_transpose3d
from cupy_convt3d.torch._module import ConvTranspose3d

__all__ = ["ConvTranspose3d", "conv_transpose3d", "convert"]
