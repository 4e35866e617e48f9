"""The gradients on the CPU: matrix products over blocks of input rows, one for each tap along W.

Both gradients meet the same terms, ``grad_output[n, co, i*stride + k*dilation - padding]`` of an
input ``i`` and a tap ``k``. Along depth and height the inputs fall into runs that have the same
taps inside the output, so the terms of a block of rows and one tap along W are one matrix ::

    terms[(kd, kh, co), (n, id, ih, iw)]

without padding. It is multiplied by ``weight`` from the left for the gradient of the input, and its
transpose by ``x`` for the gradient of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._problem import Problem

#: Workspace of a block in bytes, unless a single row needs more: small enough for its matrices to
#: stay in the caches.
BLOCK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive inputs of an axis whose taps inside the output are the same."""

    first_input: int
    inputs: int
    first_tap: int
    taps: int

    @property
    def at_inputs(self) -> slice:
        return slice(self.first_input, self.first_input + self.inputs)

    @property
    def at_taps(self) -> slice:
        return slice(self.first_tap, self.first_tap + self.taps)

    def part(self, begin: int, size: int) -> Run:
        """Return at most ``size`` inputs of the run, the first of them its ``begin``-th."""
        inputs = min(size, self.inputs - begin)
        return Run(self.first_input + begin, inputs, self.first_tap, self.taps)


def grad_input_numpy(
    problem: Problem, grad_output: NDArray[Any], weight: NDArray[Any], out: NDArray[Any]
) -> None:
    """Write the gradient of the input to ``out``.

    Parameters
    ----------
    problem : Problem
        The checked sizes of the transposed convolution.
    grad_output : ndarray, shape ``problem.y_shape``, any strides
        Of any supported dtype, as are the others. 16-bit floats are summed in float32 and rounded
        once.
    weight : ndarray, shape ``problem.weight_shape``, any strides
    out : ndarray, shape ``problem.x_shape``
        Overwritten entirely.

    Notes
    -----
    Workspace: the taps of one block, at most one copy of ``weight`` in the accumulator dtype, and
    ``BLOCK_BYTES``, or what one input row needs if that is more.
    """
    groups, per_group = problem.groups, problem.in_channels_per_group
    dtype = _accumulator(out)
    depth, height, width = axes(problem)
    with np.errstate(all="ignore"):
        out[...] = 0
        # (group, kw, ci, kd, kh, co)
        kernel = weight.reshape(groups, per_group, -1, *problem.kernel).transpose(0, 5, 1, 3, 4, 2)
        for run_d in _runs(depth):
            for run_h in _runs(height):
                taps = kernel[:, :, :, run_d.at_taps, run_h.at_taps]
                matrix = taps.astype(dtype, order="C").reshape(*taps.shape[:3], -1)
                if matrix.dtype.kind == "c":
                    np.conjugate(matrix, out=matrix)
                for samples, sub_d, sub_h in _blocks(problem, run_d, run_h, dtype.itemsize):
                    target = out[samples, :, sub_d.at_inputs, sub_h.at_inputs].swapaxes(0, 1)
                    rows = np.zeros((groups, per_group, *target.shape[1:]), dtype=dtype)
                    for tap, inputs in _taps_along_width(width):
                        terms = _terms(problem, grad_output[samples], sub_d, sub_h, tap, inputs)
                        terms = terms.astype(dtype, order="C").reshape(groups, matrix.shape[-1], -1)
                        reached = rows[..., inputs]
                        reached += np.matmul(matrix[:, tap], terms).reshape(reached.shape)
                    target[...] = rows.reshape(target.shape)
                # Before the next taps are copied: one copy at a time.
                del taps, matrix


def grad_weight_numpy(
    problem: Problem, x: NDArray[Any], grad_output: NDArray[Any], out: NDArray[Any]
) -> None:
    """Write the gradient of the weight to ``out``.

    Parameters
    ----------
    problem : Problem
        The checked sizes of the transposed convolution.
    x : ndarray, shape ``problem.x_shape``, any strides
        Of any supported dtype, as are the others. 16-bit floats are summed in float32 and rounded
        once.
    grad_output : ndarray, shape ``problem.y_shape``, any strides
    out : ndarray, shape ``problem.weight_shape``
        Overwritten entirely.

    Notes
    -----
    Workspace: two arrays of the size of ``weight`` in the accumulator dtype, and ``BLOCK_BYTES``,
    or what one input row needs if that is more.
    """
    groups, per_group = problem.groups, problem.in_channels_per_group
    dtype = _accumulator(out)
    depth, height, width = axes(problem)
    with np.errstate(all="ignore"):
        # (group, kw, ci, kd, kh, co)
        sums = np.zeros(
            (groups, problem.kernel[2], per_group, *problem.kernel[:2], out.shape[1]), dtype=dtype
        )
        for run_d in _runs(depth):
            for run_h in _runs(height):
                for samples, sub_d, sub_h in _blocks(problem, run_d, run_h, dtype.itemsize):
                    block = x[samples, :, sub_d.at_inputs, sub_h.at_inputs].swapaxes(0, 1)
                    for tap, inputs in _taps_along_width(width):
                        terms = _terms(problem, grad_output[samples], sub_d, sub_h, tap, inputs)
                        rows = block[..., inputs].astype(dtype, order="C")
                        if rows.dtype.kind == "c":
                            np.conjugate(rows, out=rows)
                        rows = rows.reshape(groups, per_group, -1)
                        terms = terms.astype(dtype, order="C").reshape(groups, -1, rows.shape[-1])
                        target = sums[:, tap, :, run_d.at_taps, run_h.at_taps]
                        target += np.matmul(rows, terms.swapaxes(1, 2)).reshape(target.shape)
        by_tap = out.reshape(groups, per_group, -1, *problem.kernel)
        by_tap[...] = sums.transpose(0, 2, 5, 3, 4, 1)


def _accumulator(out: NDArray[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if out.dtype.itemsize == 2 else out.dtype


def _runs(axis: Axis) -> Iterator[Run]:
    """Yield the runs of an axis that have a tap; the gradient of other inputs is 0."""
    begin = 0
    while begin < axis.input:
        low, high = _taps_inside(axis, begin)
        end = begin + 1
        while end < axis.input and _taps_inside(axis, end) == (low, high):
            end += 1
        if low < high:
            yield Run(begin, end - begin, low, high - low)
        begin = end


def _taps_inside(axis: Axis, source: int) -> tuple[int, int]:
    """Return the range of ``k`` with ``0 <= source*stride + k*dilation - padding < output``."""
    first_output = source * axis.stride - axis.padding
    low = max(0, -(first_output // axis.dilation))
    high = min(axis.kernel, (axis.output - 1 - first_output) // axis.dilation + 1)
    return low, max(low, high)


def _taps_along_width(axis: Axis) -> Iterator[tuple[int, slice]]:
    """Yield each tap that has an input, with these: none is outside the output."""
    for tap in range(axis.kernel):
        shift = tap * axis.dilation - axis.padding
        first = max(0, -(shift // axis.stride))
        last = min(axis.input - 1, (axis.output - 1 - shift) // axis.stride)
        if first <= last:
            yield tap, slice(first, last + 1)


def _blocks(
    problem: Problem, run_d: Run, run_h: Run, itemsize: int
) -> Iterator[tuple[slice, Run, Run]]:
    """Cut the rows of two runs and all samples into blocks that keep to the workspace."""
    taps = run_d.taps * run_h.taps
    # The terms, and twice the inputs: their sums, and the product that is added to them.
    elements = problem.out_channels * taps + 2 * problem.in_channels
    rows = max(1, BLOCK_BYTES // (itemsize * elements * problem.input[2]))
    size_h = min(run_h.inputs, rows)
    size_d = min(run_d.inputs, rows // size_h)
    size_n = max(1, min(problem.batch, rows // (size_h * size_d)))
    for n in range(0, problem.batch, size_n):
        for d in range(0, run_d.inputs, size_d):
            for h in range(0, run_h.inputs, size_h):
                samples = slice(n, min(n + size_n, problem.batch))
                yield samples, run_d.part(d, size_d), run_h.part(h, size_h)


def _terms(
    problem: Problem, grad_output: NDArray[Any], run_d: Run, run_h: Run, tap: int, inputs: slice
) -> NDArray[Any]:
    """Return the view (group, kd, kh, co, sample, id, ih, iw) of the terms of a tap along W."""
    axis_d, axis_h, axis_w = axes(problem)
    step_n, step_c, step_d, step_h, step_w = grad_output.strides
    at_d, at_h, at_w = (
        axis.stride * source + axis.dilation * first_tap - axis.padding
        for axis, source, first_tap in (
            (axis_d, run_d.first_input, run_d.first_tap),
            (axis_h, run_h.first_input, run_h.first_tap),
            (axis_w, inputs.start, tap),
        )
    )
    per_group = problem.out_channels_per_group
    return as_strided(
        grad_output[:, :, at_d:, at_h:, at_w:],
        shape=(
            problem.groups,
            run_d.taps,
            run_h.taps,
            per_group,
            grad_output.shape[0],
            run_d.inputs,
            run_h.inputs,
            inputs.stop - inputs.start,
        ),
        strides=(
            step_c * per_group,
            step_d * axis_d.dilation,
            step_h * axis_h.dilation,
            step_c,
            step_n,
            step_d * axis_d.stride,
            step_h * axis_h.stride,
            step_w * axis_w.stride,
        ),
        writeable=False,
    )
