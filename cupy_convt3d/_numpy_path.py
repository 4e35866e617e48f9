"""The operation on the CPU: one matrix product per block of output rows, and col2im along W alone.

Along depth and height the outputs fall into phases (`_phase`), and inside a phase into runs of
outputs that have the same taps inside the input. All rows of such a block share one list of (kd,
kh) taps, so with these and the input channels as the inner axis of a matrix product ::

    column[co, kw, row, i] = sum over kd, kh, ci of  weight[ci, co, kd, kh, kw] * x[ci, id, ih, i]

every product that a row needs is made once, none is made with padding, and what remains is to add
``kw`` shifted copies along W: ``y[co, row, i*stride + kw*dilation - padding] += column[co, kw, row,
i]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._numpy_activation import activate
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._problem import Problem

#: Workspace of a block in bytes, unless a single row needs more: small enough for its matrices to
#: stay in the caches between the product and the additions.
BLOCK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive outputs of one phase of an axis whose taps inside the input are the same.

    Output ``first_output + m*stride`` meets tap ``first_tap + j*tap_step`` at input
    ``first_input + m - j*input_step``, for ``m < outputs`` and ``j < taps``.
    """

    first_output: int
    outputs: int
    first_tap: int
    taps: int
    first_input: int


def conv_transpose3d_numpy(
    problem: Problem,
    x: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    out: NDArray[Any],
    activation: Activation = NO_ACTIVATION,
) -> None:
    """Write the transposed convolution of ``x`` and ``weight`` to ``out``.

    Parameters
    ----------
    problem : Problem
        The checked sizes.
    x : ndarray, shape ``problem.x_shape``, any strides
        Of any supported dtype, as are the others. 16-bit floats are summed in float32 and rounded
        once.
    weight : ndarray, shape ``problem.weight_shape``, any strides
    bias : ndarray, shape (C_out,), or None
    out : ndarray, shape ``problem.y_shape``, C-contiguous
        Overwritten entirely.
    activation : Activation
        Applied to the sums, in their dtype.

    Notes
    -----
    Workspace: the taps of one block, at most one copy of ``weight`` in the accumulator dtype, and
    ``BLOCK_BYTES``, or what one output row needs if that is more.
    """
    depth, height, width = axes(problem)
    groups, per_group = problem.groups, problem.out_channels_per_group
    dtype = np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype
    with np.errstate(all="ignore"):
        unreached = np.zeros(problem.out_channels, dtype=dtype)
        if bias is not None:
            unreached[...] = bias
        activate(unreached, activation)
        out[...] = unreached[:, None, None, None]
        # (group, kd, kh, ci, co, kw): the taps of a block are a strided slice of axes 1 and 2.
        kernel = weight.reshape(groups, -1, per_group, *problem.kernel).transpose(0, 3, 4, 1, 2, 5)
        for run_d in _runs(depth):
            for run_h in _runs(height):
                taps = kernel[:, _taps(depth, run_d), _taps(height, run_h)]
                matrix = taps.astype(dtype, order="C").reshape(groups, -1, per_group * width.kernel)
                for block in _blocks(problem, run_d, run_h, matrix, dtype.itemsize):
                    rows = _output_rows(problem, x, matrix, bias, block, dtype)
                    activate(rows, activation)
                    samples, sub_d, sub_h = block
                    target = out[samples, :, _outputs(depth, sub_d), _outputs(height, sub_h)]
                    target[...] = rows.swapaxes(0, 1)
                # Before the next taps are copied: one copy at a time.
                del taps, matrix


def _runs(axis: Axis) -> Iterator[Run]:
    """Yield the runs of an axis that have a tap; other outputs hold the bias alone."""
    # By first tap, because there can be many more phases than taps.
    for first_tap in range(min(axis.kernel, axis.tap_step)):
        index = (first_tap * axis.dilation - axis.padding) % axis.stride
        if index >= axis.phases:
            continue
        phase = axis.phase(index)
        outputs = len(range(index, axis.output, axis.stride))
        begin = 0
        while begin < outputs:
            low, high = _taps_inside(axis, phase.origin + begin, phase.taps)
            end = begin + 1
            while end < outputs and (low, high) == _taps_inside(
                axis, phase.origin + end, phase.taps
            ):
                end += 1
            if low < high:
                yield Run(
                    index + begin * axis.stride,
                    end - begin,
                    phase.first_tap + low * axis.tap_step,
                    high - low,
                    phase.origin + begin - low * axis.input_step,
                )
            begin = end


def _taps_inside(axis: Axis, source: int, taps: int) -> tuple[int, int]:
    """Return the range of ``j`` with ``0 <= source - j*input_step < axis.input``."""
    low = max(0, -((axis.input - 1 - source) // axis.input_step))
    high = min(taps, source // axis.input_step + 1)
    return low, max(low, high)


def _taps(axis: Axis, run: Run) -> slice:
    last = run.first_tap + (run.taps - 1) * axis.tap_step
    return slice(run.first_tap, last + 1, axis.tap_step)


def _outputs(axis: Axis, run: Run) -> slice:
    last = run.first_output + (run.outputs - 1) * axis.stride
    return slice(run.first_output, last + 1, axis.stride)


def _blocks(
    problem: Problem, run_d: Run, run_h: Run, matrix: NDArray[Any], itemsize: int
) -> Iterator[tuple[slice, Run, Run]]:
    """Cut the rows of two runs and all samples into blocks that keep to the workspace."""
    inner, columns = matrix.shape[1:]
    bytes_per_row = itemsize * problem.groups * (inner + columns) * problem.input[2]
    # Twice: the rows of the last block live until those of this one are computed.
    bytes_per_row += 2 * itemsize * problem.out_channels * problem.output[2]
    rows = max(1, BLOCK_BYTES // bytes_per_row)
    size_h = min(run_h.outputs, rows)
    size_d = min(run_d.outputs, rows // size_h)
    size_n = min(problem.batch, rows // (size_h * size_d))
    for n in range(0, problem.batch, max(1, size_n)):
        for d in range(0, run_d.outputs, size_d):
            for h in range(0, run_h.outputs, size_h):
                yield (
                    slice(n, min(n + size_n, problem.batch)),
                    _part(run_d, d, size_d, problem.stride[0]),
                    _part(run_h, h, size_h, problem.stride[1]),
                )


def _part(run: Run, begin: int, size: int, stride: int) -> Run:
    return Run(
        run.first_output + begin * stride,
        min(size, run.outputs - begin),
        run.first_tap,
        run.taps,
        run.first_input + begin,
    )


def _output_rows(
    problem: Problem,
    x: NDArray[Any],
    matrix: NDArray[Any],
    bias: NDArray[Any] | None,
    block: tuple[slice, Run, Run],
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Return the rows of a block: (co, sample, row along depth, row along height, OW)."""
    samples, run_d, run_h = block
    depth, height, width = axes(problem)
    x = x[samples]
    n, groups, per_group = x.shape[0], problem.groups, problem.out_channels_per_group
    # A view of x for each tap; the taps step backwards through the input, hence the negative
    # strides.
    step_n, step_c, step_d, step_h, step_w = x.strides
    source = as_strided(
        x[:, :, run_d.first_input :, run_h.first_input :],
        shape=(
            groups,
            run_d.taps,
            run_h.taps,
            problem.in_channels_per_group,
            n,
            run_d.outputs,
            run_h.outputs,
            width.input,
        ),
        strides=(
            step_c * problem.in_channels_per_group,
            -step_d * depth.input_step,
            -step_h * height.input_step,
            step_c,
            step_n,
            step_d,
            step_h,
            step_w,
        ),
        writeable=False,
    )
    operand = source.astype(dtype, order="C").reshape(groups, matrix.shape[1], -1)
    column = np.matmul(matrix.swapaxes(1, 2), operand).reshape(
        groups, per_group, width.kernel, n, run_d.outputs, run_h.outputs, width.input
    )
    rows = np.empty((groups, per_group, n, run_d.outputs, run_h.outputs, width.output), dtype=dtype)
    rows[...] = 0 if bias is None else bias.reshape(groups, per_group, 1, 1, 1, 1)
    # One strided addition for each tap, or for each input where these are fewer.
    terms = column.transpose(0, 1, 3, 4, 5, 2, 6)
    step, inner_step = width.dilation, width.stride
    if width.input < width.kernel:
        terms, step, inner_step = terms.swapaxes(-2, -1), width.stride, width.dilation
    for j in range(terms.shape[-2]):
        shift = j * step - width.padding
        first = max(0, -(shift // inner_step))
        last = min(terms.shape[-1] - 1, (width.output - 1 - shift) // inner_step)
        if first <= last:
            reached = slice(first * inner_step + shift, last * inner_step + shift + 1, inner_step)
            rows[..., reached] += terms[..., j, first : last + 1]
    return rows.reshape(-1, *rows.shape[2:])
