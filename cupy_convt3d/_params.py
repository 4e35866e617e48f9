"""The parameter struct of the kernels, mirrored from ``kernels_cu/convt3d_params.cuh``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._problem import Problem, coordinate_range

FAST_DIVMOD = np.dtype(
    [("divisor", np.int64), ("multiplier", np.uint32), ("shift", np.uint32)], align=True
)

AXIS_PARAMS = np.dtype(
    [
        ("input", np.int64),
        ("kernel", np.int64),
        ("output", np.int64),
        ("stride", np.int64),
        ("padding", np.int64),
        ("dilation", np.int64),
        ("gcd", np.int64),
        ("tap_step", np.int64),
        ("input_step", np.int64),
        ("inverse", np.int64),
        ("phases", np.int64),
        ("origin", np.int64),
        ("input_stride", np.int64),
        ("stride_divmod", FAST_DIVMOD),
        ("gcd_divmod", FAST_DIVMOD),
        ("tap_step_divmod", FAST_DIVMOD),
        ("input_step_divmod", FAST_DIVMOD),
        ("positions", FAST_DIVMOD),
        ("tile", np.int64),
        ("tiles", np.int64),
        ("tap_slice", np.int64),
        ("tap_slices", np.int64),
        ("reach", np.int64),
        ("tile_divmod", FAST_DIVMOD),
        ("box", FAST_DIVMOD),
    ],
    align=True,
)

BOX_COPY = np.dtype(
    [
        ("extent", np.int64, (3,)),
        ("channels", np.int64),
        ("rows_h", FAST_DIVMOD),
        ("row_copies", FAST_DIVMOD),
        ("copies", FAST_DIVMOD),
        ("source_step", np.int64),
        ("target_step", np.int32),
        ("copy_elements", np.int32),
        ("copy_channels", np.int32),
        ("row", np.int32),
        ("channel_pitch", np.int32),
        ("plane_step", np.int32),
    ],
    align=True,
)

GEMM_PARAMS = np.dtype(
    [
        ("co_tile", FAST_DIVMOD),
        ("m_tiles", np.int32),
        ("warps_m", FAST_DIVMOD),
        ("row_tiles", FAST_DIVMOD),
        ("tile_h", FAST_DIVMOD),
        ("segment", FAST_DIVMOD),
        ("stage_steps", np.int32),
        ("stage_taps_h", FAST_DIVMOD),
        ("stages_c", np.int32),
        ("stages", np.int32),
        ("stage_bytes", np.int32),
        ("stage_weights", np.int32),
        ("x", BOX_COPY),
        ("pass_rows", FAST_DIVMOD),
        ("row_places", FAST_DIVMOD),
        ("sector_mask", np.int32),
        ("log2_interleave", np.int32),
        ("product_pitch", np.int32),
        ("sum_channels", FAST_DIVMOD),
        ("output_taps", np.int32),
        ("row_outputs", np.int32),
        ("sums", np.int32),
        ("block_tile", np.int32),
        ("part_m_tiles", np.int32),
        ("taps_h", FAST_DIVMOD),
        ("co_tiles", FAST_DIVMOD),
        ("segments", FAST_DIVMOD),
        ("phases", FAST_DIVMOD, (2,)),
        ("boxes", FAST_DIVMOD, (2,)),
        ("groups", FAST_DIVMOD),
    ],
    align=True,
)

GRAD_WEIGHT_PARAMS = np.dtype(
    [
        ("grad_output", BOX_COPY),
        ("splits", np.int64),
        ("kernel_d", FAST_DIVMOD),
        ("h_slices", FAST_DIVMOD),
        ("w_slices", FAST_DIVMOD),
        ("ci_tiles", FAST_DIVMOD),
        ("taps_w", FAST_DIVMOD),
        ("co_groups", FAST_DIVMOD),
        ("items", FAST_DIVMOD),
        ("ci_tile", np.int32),
        ("warps_n", np.int32),
        ("warps_k", np.int32),
    ],
    align=True,
)

GATHER_PARAMS = np.dtype(
    [
        ("columns", np.int64),
        ("row", FAST_DIVMOD),
        ("batch", FAST_DIVMOD),
        ("row_spacing", FAST_DIVMOD),
        ("input_spacing", np.int64),
        ("width_phases", FAST_DIVMOD),
        ("unit_taps", np.int64),
        ("stage_units", np.int64),
        ("x_step", np.int64, (2,)),
        ("y_step", np.int64, (2,)),
        ("weight_step", np.int64, (2,)),
        ("x_volume", np.int64),
        ("y_volume", np.int64),
    ],
    align=True,
)

SUBPIXEL_PARAMS = np.dtype(
    [
        ("first_offset", np.int64, (3,)),
        ("first_tap", np.int32, (3,)),
        ("offsets", np.int32, (3,)),
        ("step_offsets", np.int32),
        ("step_channels", np.int32),
        ("co_blocks", np.int32),
        ("row_warps", FAST_DIVMOD),
        ("phases", FAST_DIVMOD),
        ("phases_h", FAST_DIVMOD),
    ],
    align=True,
)

PARAMS = np.dtype(
    [
        ("axis", AXIS_PARAMS, (3,)),
        ("batch", np.int64),
        ("groups", np.int64),
        ("in_channels", np.int64),
        ("out_channels", np.int64),
        ("co_tiles", np.int64),
        ("tiles", np.int64),
        ("has_bias", np.int64),
        ("kernel_volume", np.int64),
        ("weight_in_step", np.int64),
        ("weight_out_step", np.int64),
        ("is_gradient", np.int64),
        ("stage_channels", np.int64),
        ("stage_taps", FAST_DIVMOD),
        ("owns_output", np.int64),
        ("plane", np.int64),
        ("plane_chunk", np.int64),
        ("negative_slope", np.float64),
        ("gemm", GEMM_PARAMS),
        ("gather", GATHER_PARAMS),
        ("grad_weight", GRAD_WEIGHT_PARAMS),
        ("subpixel", SUBPIXEL_PARAMS),
    ],
    align=True,
)

#: Indices, and everything computed on the way to one, stay below this in the 32-bit variants.
INDEX32_LIMIT = 2**31 - 1


def fast_divmod(divisor: int) -> tuple[int, int, int]:
    """Return the fields of a ``FastDivmod`` (``kernels_cu/fast_divmod.cuh``).

    With ``l = ceil(log2 d)`` the multiplier is ``ceil(2**(31 + l) / d)``; it fits 32 bits and ``(2n
    * multiplier) >> (32 + l) == n // d`` for ``0 <= n < 2**31``. A divisor of 2**31 or more only
    occurs with 64-bit indices, which divide.
    """
    if divisor > INDEX32_LIMIT:
        return divisor, 0, 0
    shift = (divisor - 1).bit_length()
    return divisor, -(-(1 << (31 + shift)) // divisor), shift


def common_params(
    problem: Problem, has_bias: bool, activation: Activation = NO_ACTIVATION
) -> np.void:
    """Return a ``Params`` with the fields that follow from the operation; the others are 0."""
    params: np.void = np.zeros(1, dtype=PARAMS)[0]
    for target, axis in zip(params["axis"], axes(problem), strict=True):
        _fill_axis(target, axis)
    params["batch"] = problem.batch
    params["groups"] = problem.groups
    params["in_channels"] = problem.in_channels_per_group
    params["out_channels"] = problem.out_channels_per_group
    params["has_bias"] = has_bias
    taps = math.prod(problem.kernel)
    params["kernel_volume"] = taps
    params["weight_in_step"] = taps * (1 if problem.is_gradient else problem.out_channels_per_group)
    params["weight_out_step"] = taps * (problem.in_channels_per_group if problem.is_gradient else 1)
    params["is_gradient"] = problem.is_gradient
    params["negative_slope"] = activation.negative_slope
    return params


def _fill_axis(target: Any, axis: Axis) -> None:
    for field in (
        "input",
        "kernel",
        "output",
        "stride",
        "padding",
        "dilation",
        "gcd",
        "tap_step",
        "input_step",
        "inverse",
        "phases",
        "origin",
        "input_stride",
    ):
        target[field] = getattr(axis, field)
    target["positions"] = fast_divmod(axis.positions)
    for field in ("stride", "gcd", "tap_step", "input_step"):
        target[f"{field}_divmod"] = fast_divmod(getattr(axis, field))
    # Fields that only the scatter fills must still be valid divisors.
    for field in ("tile_divmod", "box"):
        target[field] = fast_divmod(1)


def index_bits(problem: Problem, *counts: int) -> int:
    """Return 32 if every index of the problem fits 31 bits, else 64.

    ``counts`` are further quantities that a kernel holds in an index. Input coordinates may lie
    outside the input before they are tested, by as much as ``coordinate_range`` says.
    """
    depth, height, width = coordinate_range(problem)
    _, input_h, input_w = problem.input
    stray = 2 * ((depth * input_h + height) * input_w + width)
    largest = max(
        math.prod(problem.x_shape) + stray,
        math.prod(problem.weight_shape),
        math.prod(problem.y_shape) + stray,
        # Products on the way to the first tap of a phase.
        *(axis.stride * axis.tap_step for axis in axes(problem)),
        *counts,
    )
    return 32 if largest <= INDEX32_LIMIT else 64
