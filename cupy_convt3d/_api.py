"""The public functions: find out what the operands are, check the settings, hand over."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from cupy_convt3d._call import settings_of
from cupy_convt3d._libraries import common_library
from cupy_convt3d._problem import make_problem
from cupy_convt3d._run_cupy import run_cupy
from cupy_convt3d._run_dlpack import run_dlpack
from cupy_convt3d._run_numpy import run_numpy
from cupy_convt3d._run_torch import run_torch

Array = TypeVar("Array")
IntOrTriple = int | Sequence[int]


def conv_transpose3d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    output_padding: IntOrTriple = 0,
    groups: int = 1,
    dilation: IntOrTriple = 1,
    *,
    output_size: Sequence[int] | None = None,
    algorithm: str = "auto",
    deterministic: bool = True,
    precision: str | None = "ieee",
    activation: str | None = None,
    negative_slope: float = 0.01,
    config: Hashable = None,
    out: Array | None = None,
) -> Array:
    """Compute a 3-D transposed convolution.

    Semantics, argument names and positional order are those of
    ``torch.nn.functional.conv_transpose3d``::

        y[n, co, o] = bias[co] + sum over ci, k of  x[n, ci, i] * weight[ci, co, k]
                      with  o + padding == i*stride + k*dilation  on each axis

    and, if there is one, the activation of that.

    Parameters
    ----------
    x : array, shape (N, C_in, D, H, W) or (C_in, D, H, W)
        A CuPy array, a NumPy array, a torch tensor, or any object with ``__dlpack__`` on a CUDA
        device. dtype float16, bfloat16, float32, float64, complex64 or complex128. Any strides.
    weight : array, shape (C_in, C_out/groups, KD, KH, KW)
        Of the library, dtype and device of ``x``, as are ``bias`` and ``out``.
    bias : array, shape (C_out,), optional
    stride : int or three ints (depth, height, width), default 1
        Outputs from one input to the next, at least 1.
    padding : int or three ints, default 0
        Outputs cropped on both sides: a larger padding makes a smaller result.
    output_padding : int or three ints, default 0
        Outputs added at the end of each axis; smaller than stride or dilation.
    groups : int, default 1
        Channels are split into this many independent convolutions; divides C_in.
    dilation : int or three ints, default 1
        Outputs from one tap of the kernel to the next, at least 1.
    output_size : three ints, or as many as ``x`` has axes, optional
        The wanted extents of the result; takes the place of ``output_padding``. As in torch, batch
        and channels may stand before them and do not count.
    algorithm : {"auto", "gather", "scatter", "implicit_gemm"}, default "auto"
        The CUDA kernel; "auto" takes the one that a model of the device finds fastest. On the CPU
        there is one path, which each of the names selects. "scatter" is accepted with
        ``deterministic=True`` also where it needs atomics.
    deterministic : bool, default True
        Whether ``"auto"`` must choose a kernel that gives the same bits in every run.
    precision : {"ieee", "bf16x3", "tf32"} or None, default "ieee"
        The least accuracy of float32 products on CUDA devices that the caller accepts: as good as
        float32 multiply-adds (tensor cores take three products of TF32 parts), three products of
        bfloat16 parts, or TF32. None follows the environment variable ``CUPY_TF32`` as CuPy's
        matmul does: "tf32" if it is a positive number, else "ieee". Other dtypes and the CPU are
        not affected.
    activation : {"relu", "leaky_relu", "gelu", "silu"} or None, default None
        Applied to each output, bias included, in the dtype of the sums: one rounding for both. gelu
        is the exact one, by the error function. Not for complex dtypes.
    negative_slope : float, default 0.01
        Of "leaky_relu"; the others do not use it.
    config : hashable, default None
        Forces a configuration of a kernel, for tests and benchmarks. No stable interface.
    out : array, optional
        Where to put the result: C-contiguous, of the result's shape and dtype, outside the ranges
        of memory of the operands; on CUDA devices aligned to its item size.

    Returns
    -------
    y : array, shape (N, C_out, OD, OH, OW), or without N if ``x`` has none
        Of the library, dtype and device of ``x`` (a CuPy array for other DLPack objects),
        C-contiguous. ``O = (I - 1)*stride - 2*padding + dilation*(K - 1) + output_padding + 1`` on
        each axis. ``out`` itself if it was given.

    Raises
    ------
    TypeError
        An operand of an unsupported kind or dtype, operands of several libraries or dtypes, a
        setting that is not an integer (a real number, for ``negative_slope``), an activation of
        complex numbers.
    ValueError
        A shape or value that breaks a rule, operands on several devices, an unusable ``out``, an
        algorithm that cannot run on the device (tensor cores have no complex numbers), a torch
        tensor that requires gradients in a call with ``activation``, ``config`` or ``out``.
    ImportError
        A torch tensor on a CUDA device without CuPy.

    Notes
    -----
    16-bit floats are summed in float32 and rounded once. On CUDA devices subnormals of float32,
    complex64 and bfloat16 count as 0 (tensor cores may keep those of ``x`` and ``weight``), and
    complex products are four real ones; on the CPU BLAS decides, also what a product of complex
    infinities is.

    Outputs that no input reaches hold the bias exactly (its activation), and padding is never
    multiplied: an infinite weight reaches only the outputs that have a product with it.

    Relative errors of a product on tensor cores are at most 2**-21 for "ieee", 2**-15 for "bf16x3"
    and 2**-10 for "tf32", for factors of at least 2**-105: parts of smaller ones below 2**-126
    count as 0. Their sums are truncated to float32, for "ieee" only those of 8 channels, which are
    then added with rounding to nearest. Sums that come out as NaN are computed again without tensor
    cores, so that NaNs and infinities are where they would be.

    With torch tensors the call is an operator of torch, as `cupy_convt3d.torch.conv_transpose3d`
    is: derivatives are recorded, and autocast, compiling and transforms work. Not so with
    ``activation``, ``config`` or ``out``, which an operator does not have.

    "gather" and "implicit_gemm" are deterministic; so is "scatter" where no two inputs meet in an
    output (``stride >= dilation*(kernel - 1) + 1``) or one block covers the whole input. Elsewhere
    "scatter" adds with atomics, and last bits differ from run to run.

    Work is queued on CuPy's current stream, for torch tensors on torch's, and nothing waits for it.
    An operand that is not C-contiguous, or not aligned to its item size, is copied once. Memory
    beyond that and the result: none on CUDA devices, except a float32 array of y's shape for a
    scatter of 16-bit floats with atomics, and a packed copy of the weights for tensor cores (twice
    their size if split, padded to whole tiles), made in each call. On the CPU: a copy of the
    weights in the dtype of the sums and 32 MiB, or what one row of the output needs if that is
    more. bfloat16 tensors without ml_dtypes take float32 copies of the weights and of 64 MiB of
    samples, or of one sample.

    References
    ----------
    PyTorch, ``torch.nn.ConvTranspose3d``: the definition and the names.

    V. Dumoulin and F. Visin, "A guide to convolution arithmetic for deep learning",
    arXiv:1603.07285.

    Examples
    --------
    >>> import numpy as np
    >>> from cupy_convt3d import conv_transpose3d
    >>> x = np.ones((1, 1, 1, 1, 2), dtype=np.float32)
    >>> weight = np.array([1, 2, 4], dtype=np.float32).reshape(1, 1, 1, 1, 3)
    >>> conv_transpose3d(x, weight).ravel()
    array([1., 3., 6., 4.], dtype=float32)
    """
    library = common_library({"x": x, "weight": weight, "bias": bias, "out": out})
    settings = settings_of(
        stride,
        padding,
        output_padding,
        groups,
        dilation,
        output_size,
        algorithm,
        deterministic,
        precision,
        activation,
        negative_slope,
        config,
    )
    run = {"cupy": run_cupy, "numpy": run_numpy, "torch": run_torch, "dlpack": run_dlpack}[library]
    result: Array = run(x, weight, bias, out, settings)
    return result


def output_shape(
    x_shape: Sequence[int],
    weight_shape: Sequence[int],
    *,
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    output_padding: IntOrTriple = 0,
    groups: int = 1,
    dilation: IntOrTriple = 1,
) -> tuple[int, ...]:
    """Return the shape of the result of `conv_transpose3d`.

    Parameters
    ----------
    x_shape : sequence of int, (N, C_in, D, H, W) or (C_in, D, H, W)
    weight_shape : sequence of int, (C_in, C_out/groups, KD, KH, KW)
    stride, padding, output_padding, groups, dilation
        As in `conv_transpose3d`.

    Returns
    -------
    tuple of int
        (N, C_out, OD, OH, OW), without N if ``x_shape`` has none.

    Raises
    ------
    TypeError, ValueError
        As `conv_transpose3d` does.

    Examples
    --------
    >>> from cupy_convt3d import output_shape
    >>> output_shape((16, 32, 16, 32, 64), (32, 16, 3, 5, 7))
    (16, 16, 18, 36, 70)
    """
    problem = make_problem(
        x_shape,
        weight_shape,
        None,
        stride,
        padding,
        output_padding,
        groups,
        dilation,
    )
    return problem.y_shape if len(x_shape) == 5 else problem.y_shape[1:]
