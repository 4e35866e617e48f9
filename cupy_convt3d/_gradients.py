"""The public functions of the gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

from cupy_convt3d._call import settings_of
from cupy_convt3d._gradient_call import (
    GRAD_INPUT_ALGORITHMS,
    GRAD_WEIGHT_ALGORITHMS,
    grad_bias_dtype,
)
from cupy_convt3d._gradients_cupy import run_grad_input_cupy, run_grad_weight_cupy
from cupy_convt3d._gradients_numpy import run_grad_input_numpy, run_grad_weight_numpy
from cupy_convt3d._libraries import common_library
from cupy_convt3d._run_dlpack import from_dlpack
from cupy_convt3d._run_torch import (
    run_grad_bias_torch,
    run_grad_input_torch,
    run_grad_weight_torch,
)

Array = TypeVar("Array")
IntOrTriple = int | Sequence[int]


def conv_transpose3d_grad_input(
    grad_output: Array,
    weight: Array,
    input_shape: Sequence[int],
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    output_padding: IntOrTriple = 0,
    groups: int = 1,
    dilation: IntOrTriple = 1,
    *,
    deterministic: bool = True,
    precision: str | None = "ieee",
    algorithm: str = "auto",
    config: Hashable = None,
) -> Array:
    """Compute the gradient of a 3-D transposed convolution with respect to its input.

    With ``y = conv_transpose3d(x, weight, ...)`` and ``grad_output`` the gradient of some number
    with respect to ``y``, the gradient with respect to ``x`` is a strided correlation::

        grad_input[n, ci, i] = sum over co, k of  grad_output[n, co, o] * conj(weight[ci, co, k])
                               with  o == i*stride + k*dilation - padding  on each axis

    over the ``o`` that exist.

    Parameters
    ----------
    grad_output : array, shape (N, C_out, OD, OH, OW) or (C_out, OD, OH, OW)
        A CuPy array, a NumPy array, a torch tensor, or any object with ``__dlpack__`` on a CUDA
        device, of the shape of ``y``. dtype float16, bfloat16, float32, float64, complex64 or
        complex128. Any strides.
    weight : array, shape (C_in, C_out/groups, KD, KH, KW)
        Of the library, dtype and device of ``grad_output``.
    input_shape : sequence of int
        The shape of ``x``; with or without a batch as ``grad_output`` is. The shape of ``y`` leaves
        it open where ``output_padding`` is not below the stride.
    stride, padding, output_padding, groups, dilation, precision
        As in `conv_transpose3d`.
    deterministic : bool, default True
        Whether the same call must give the same bits in every run, as every kernel here does.
    algorithm : {"auto", "gather", "implicit_gemm"}, default "auto"
        The CUDA kernel. On the CPU there is one path, which each of the names selects.
    config : hashable, default None
        Forces a configuration of a kernel, for tests and benchmarks. No stable interface.

    Returns
    -------
    grad_input : array, shape ``input_shape``
        Of the library, dtype and device of ``grad_output`` (a CuPy array for other DLPack objects),
        C-contiguous.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `conv_transpose3d` does; ValueError also for a ``grad_output`` that has not the shape
        of ``y``.

    Notes
    -----
    16-bit floats are summed in float32 and rounded once; streams, accuracy and operands that are
    not contiguous are as in `conv_transpose3d`. Inputs that no output is made from have the
    gradient 0, and padding is never multiplied: an infinite weight reaches only the gradients that
    have a product with it.

    Memory beyond the result on the CPU: a copy of the weights in the dtype of the sums and 32 MiB,
    or what one row of the input needs if that is more; for bfloat16 tensors without ml_dtypes also
    float32 copies of the operands and of the result.

    Examples
    --------
    >>> import numpy as np
    >>> from cupy_convt3d import conv_transpose3d_grad_input
    >>> grad_output = np.ones((1, 1, 1, 1, 4), dtype=np.float32)
    >>> weight = np.array([1, 2, 4], dtype=np.float32).reshape(1, 1, 1, 1, 3)
    >>> conv_transpose3d_grad_input(grad_output, weight, (1, 1, 1, 1, 2)).ravel()
    array([7., 7.], dtype=float32)
    """
    library = common_library({"grad_output": grad_output, "weight": weight})
    settings = settings_of(
        stride,
        padding,
        output_padding,
        groups,
        dilation,
        None,
        algorithm,
        deterministic,
        precision,
        config=config,
        algorithms=GRAD_INPUT_ALGORITHMS,
    )
    operands: tuple[Any, Any] = (grad_output, weight)
    result: Array
    if library == "numpy":
        result = run_grad_input_numpy(*operands, input_shape, settings)
        return result
    if library == "torch":
        result = run_grad_input_torch(*operands, input_shape, settings)
        return result
    if library == "dlpack":
        operands = (from_dlpack(grad_output), from_dlpack(weight))
    result = run_grad_input_cupy(*operands, input_shape, settings)
    return result


def conv_transpose3d_grad_weight(
    x: Array,
    grad_output: Array,
    weight_shape: Sequence[int],
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    output_padding: IntOrTriple = 0,
    groups: int = 1,
    dilation: IntOrTriple = 1,
    *,
    deterministic: bool = True,
    precision: str | None = "ieee",
    algorithm: str = "auto",
    config: Hashable = None,
) -> Array:
    """Compute the gradient of a 3-D transposed convolution with respect to its weight.

    With ``y = conv_transpose3d(x, weight, ...)`` and ``grad_output`` the gradient of some number
    with respect to ``y``, the gradient with respect to ``weight`` is a sum over the batch and all
    inputs::

        grad_weight[ci, co, k] = sum over n, i of  conj(x[n, ci, i]) * grad_output[n, co, o]
                                 with  o == i*stride + k*dilation - padding  on each axis

    over the ``o`` that exist.

    Parameters
    ----------
    x : array, shape (N, C_in, D, H, W) or (C_in, D, H, W)
        A CuPy array, a NumPy array, a torch tensor, or any object with ``__dlpack__`` on a CUDA
        device. dtype float16, bfloat16, float32, float64, complex64 or complex128. Any strides.
    grad_output : array, shape (N, C_out, OD, OH, OW) or (C_out, OD, OH, OW)
        Of the shape of ``y``, and of the library, dtype and device of ``x``.
    weight_shape : sequence of int, (C_in, C_out/groups, KD, KH, KW)
        The shape of ``weight``.
    stride, padding, output_padding, groups, dilation, precision
        As in `conv_transpose3d`.
    deterministic : bool, default True
        Whether the same call must give the same bits in every run, as every kernel here does.
    algorithm : {"auto", "direct", "implicit_gemm"}, default "auto"
        The CUDA kernel. On the CPU there is one path, which each of the names selects.
    config : hashable, default None
        Forces a configuration of a kernel, for tests and benchmarks. No stable interface.

    Returns
    -------
    grad_weight : array, shape ``weight_shape``
        Of the library, dtype and device of ``x`` (a CuPy array for other DLPack objects),
        C-contiguous. Zeros for an empty batch.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `conv_transpose3d` does; ValueError also for a ``grad_output`` that has not the shape
        of ``y``.

    Notes
    -----
    16-bit floats are summed in float32 and rounded once; streams, accuracy and operands that are
    not contiguous are as in `conv_transpose3d`. Padding is never multiplied: an infinite input
    reaches only the gradients that have a product with it.

    Memory beyond the result on the CPU: twice the size of the weights in the dtype of the sums and
    32 MiB, or what one row of the input needs if that is more; for bfloat16 tensors without
    ml_dtypes also float32 copies of the operands and of the result.

    Examples
    --------
    >>> import numpy as np
    >>> from cupy_convt3d import conv_transpose3d_grad_weight
    >>> x = np.array([1, 10], dtype=np.float32).reshape(1, 1, 1, 1, 2)
    >>> grad_output = np.array([1, 2, 3, 4], dtype=np.float32).reshape(1, 1, 1, 1, 4)
    >>> conv_transpose3d_grad_weight(x, grad_output, (1, 1, 1, 1, 3)).ravel()
    array([21., 32., 43.], dtype=float32)
    """
    library = common_library({"x": x, "grad_output": grad_output})
    settings = settings_of(
        stride,
        padding,
        output_padding,
        groups,
        dilation,
        None,
        algorithm,
        deterministic,
        precision,
        config=config,
        algorithms=GRAD_WEIGHT_ALGORITHMS,
    )
    operands: tuple[Any, Any] = (x, grad_output)
    result: Array
    if library == "numpy":
        result = run_grad_weight_numpy(*operands, weight_shape, settings)
        return result
    if library == "torch":
        result = run_grad_weight_torch(*operands, weight_shape, settings)
        return result
    if library == "dlpack":
        operands = (from_dlpack(x), from_dlpack(grad_output))
    result = run_grad_weight_cupy(*operands, weight_shape, settings)
    return result


def conv_transpose3d_grad_bias(grad_output: Array) -> Array:
    """Compute the gradient of a 3-D transposed convolution with respect to its bias.

    Parameters
    ----------
    grad_output : array, shape (N, C_out, OD, OH, OW) or (C_out, OD, OH, OW)
        A CuPy array, a NumPy array, a torch tensor, or any object with ``__dlpack__`` on a CUDA
        device. dtype float16, bfloat16, float32, float64, complex64 or complex128. Any strides.

    Returns
    -------
    grad_bias : array, shape (C_out,)
        The sum over N, OD, OH and OW; of the library, dtype and device of ``grad_output`` (a CuPy
        array for other DLPack objects).

    Raises
    ------
    TypeError, ValueError
        As `conv_transpose3d` does.

    Notes
    -----
    NumPy and CuPy arrays are summed in float64 or complex128 and rounded once, tensors by torch, of
    16-bit floats in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from cupy_convt3d import conv_transpose3d_grad_bias
    >>> conv_transpose3d_grad_bias(np.ones((2, 3, 4, 5, 6), dtype=np.float32))
    array([240., 240., 240.], dtype=float32)
    """
    library = common_library({"grad_output": grad_output})
    result: Array
    if library == "torch":
        result = run_grad_bias_torch(grad_output)
        return result
    array: Any = from_dlpack(grad_output) if library == "dlpack" else grad_output
    # Sums of millions: what the order of a library costs in the wider type is nothing in the other.
    dtype = "complex128" if grad_bias_dtype(array).name.startswith("complex") else "float64"
    axes = (0, 2, 3, 4) if array.ndim == 5 else (1, 2, 3)
    result = array.sum(axis=axes, dtype=dtype).astype(array.dtype, copy=False)
    return result
