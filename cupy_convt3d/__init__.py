"""3-D transposed convolution for CuPy arrays, torch tensors and NumPy arrays."""

from cupy_convt3d._api import conv_transpose3d, output_shape
from cupy_convt3d._gradients import (
    conv_transpose3d_grad_bias,
    conv_transpose3d_grad_input,
    conv_transpose3d_grad_weight,
)
from cupy_convt3d._layer import ConvTranspose3dPlan

__all__ = [
    "ConvTranspose3dPlan",
    "__version__",
    "conv_transpose3d",
    "conv_transpose3d_grad_bias",
    "conv_transpose3d_grad_input",
    "conv_transpose3d_grad_weight",
    "output_shape",
]

__version__ = "0.1.0"
