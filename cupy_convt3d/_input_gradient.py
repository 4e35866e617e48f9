"""The gradient of the input as a problem of its own: a correlation that the kernels can gather.

With ``grad_output`` in the place of x ::

    grad_input[n, ci, i] = sum over co, k of  grad_output[n, co, i*stride + k*dilation - padding]
                                              * conj(weight[ci, co, k])

Counting taps from the last one, ``j = kernel - 1 - k``, the coordinate is ``origin + i*input_stride
- j*dilation`` with ``origin = (kernel - 1)*dilation - padding`` and ``input_stride = stride``: one
phase, all of whose taps move the input coordinate down, as those of the operation itself do.
"""

from __future__ import annotations

from cupy_convt3d._problem import Problem


def input_gradient(problem: Problem) -> Problem:
    """Return the correlation that computes the gradient of a problem's input."""
    depth, height, width = (
        (k - 1) * d - p
        for k, d, p in zip(problem.kernel, problem.dilation, problem.padding, strict=True)
    )
    return Problem(
        batch=problem.batch,
        in_channels=problem.out_channels,
        out_channels=problem.in_channels,
        input=problem.output,
        kernel=problem.kernel,
        output=problem.input,
        stride=(1, 1, 1),
        padding=(0, 0, 0),
        output_padding=(0, 0, 0),
        dilation=problem.dilation,
        groups=problem.groups,
        origin=(depth, height, width),
        input_stride=problem.stride,
        is_gradient=True,
    )
