"""One transposed convolution as integers: every input rule and the output size.

Nothing here knows about arrays or devices, so each rule is tested without either.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Triple = tuple[int, int, int]

#: Strides, paddings and dilations are below this, so that their products fit 64 bits.
STEP_LIMIT = 2**31

#: Largest extent, element count or byte count accepted: everything the kernels compute from the
#: sizes of a problem stays below twice this bound, inside a signed 64-bit integer.
SIZE_LIMIT = 2**62 - 1


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes of one batched transposed convolution, already checked.

    ``weight`` has shape ``(in_channels, out_channels // groups, *kernel)``.
    """

    batch: int
    in_channels: int
    out_channels: int
    input: Triple
    kernel: Triple
    output: Triple
    stride: Triple
    padding: Triple
    output_padding: Triple
    dilation: Triple
    groups: int
    #: Of gradients alone (``_input_gradient.py``).
    origin: Triple = (0, 0, 0)
    input_stride: Triple = (1, 1, 1)
    is_gradient: bool = False

    @property
    def in_channels_per_group(self) -> int:
        return self.in_channels // self.groups

    @property
    def out_channels_per_group(self) -> int:
        return self.out_channels // self.groups

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, self.in_channels, *self.input)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        if self.is_gradient:
            return (self.out_channels, self.in_channels_per_group, *self.kernel)
        return (self.in_channels, self.out_channels_per_group, *self.kernel)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.batch, self.out_channels, *self.output)


def index(value: Any, name: str) -> int:
    """Return ``value`` as a Python int, or raise TypeError (bool and float are refused)."""
    if type(value) is int:
        return value
    kind = type(value).__name__
    if kind in ("bool", "bool_"):
        raise TypeError(f"{name} must be an integer, got the bool {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r} of type {kind}") from None


def triple(value: Any, name: str) -> Triple:
    """Return ``value`` as three Python ints: an int stands for all three spatial axes."""
    # The two usual spellings first: this runs four times in every call.
    if type(value) is int:
        return value, value, value
    if type(value) is tuple and len(value) == 3 and all(type(v) is int for v in value):
        return value
    if isinstance(value, (str, bytes, bytearray)):
        hint = ""
        if name == "padding":
            hint = "; padding='same' is not defined here: pass numbers, or output_size"
        raise TypeError(f"{name} must be an int or a sequence of 3 ints, got {value!r}{hint}")
    if isinstance(value, Sequence):
        if len(value) != 3:
            raise ValueError(
                f"{name} must be an int or have 3 entries (depth, height, width), "
                f"got {tuple(value)} with {len(value)}"
            )
        first, second, third = (index(v, f"{name}[{i}]") for i, v in enumerate(value))
        return first, second, third
    if getattr(value, "ndim", 0) != 0 or isinstance(value, (set, dict)) or value is None:
        raise TypeError(
            f"{name} must be an int or a sequence of 3 ints, got {value!r} "
            f"of type {type(value).__name__}"
        )
    one = index(value, name)
    return one, one, one


def shape_tuple(shape: Any, name: str) -> tuple[int, ...]:
    """Return a shape as a tuple of non-negative Python ints."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        got = f"an array, of shape {tuple(shape.shape)}" if hasattr(shape, "shape") else repr(shape)
        raise TypeError(f"{name} must be a sequence of ints, got {got}")
    extents = tuple(index(v, f"{name}[{i}]") for i, v in enumerate(shape))
    if any(extent < 0 for extent in extents):
        raise ValueError(f"{name} must not have negative extents, got {extents}")
    return extents


def make_problem(
    x_shape: Any,
    weight_shape: Any,
    bias_shape: Any | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
    output_size: Any | None = None,
) -> Problem:
    """Check every rule of the operation and return the batched problem.

    Parameters
    ----------
    x_shape : sequence of int, (N, C_in, D, H, W) or (C_in, D, H, W)
    weight_shape : sequence of int, (C_in, C_out/groups, KD, KH, KW)
    bias_shape : sequence of int or None, (C_out,)
    stride, padding, output_padding, dilation : int or three ints, in elements
    groups : int
    output_size : three ints, or as many as ``x_shape`` has, or None
        The wanted spatial extents; replaces ``output_padding``.

    Raises
    ------
    TypeError
        An argument that is not an integer or a sequence of integers.
    ValueError
        A rule broken; the message names the argument, what it was and what was expected.
    """
    x_extents = shape_tuple(x_shape, "x.shape")
    weight_extents = shape_tuple(weight_shape, "weight.shape")
    strides = triple(stride, "stride")
    paddings = triple(padding, "padding")
    output_paddings = triple(output_padding, "output_padding")
    group_count = index(groups, "groups")
    dilations = triple(dilation, "dilation")

    if len(x_extents) not in (4, 5):
        raise ValueError(
            "x must have 5 axes (N, C_in, D, H, W) or 4 (C_in, D, H, W), "
            f"got {len(x_extents)} with shape {x_extents}"
            + ("; a single volume is x[None, None]" if len(x_extents) == 3 else "")
        )
    if len(weight_extents) != 5:
        raise ValueError(
            "weight must have 5 axes (C_in, C_out/groups, KD, KH, KW), "
            f"got {len(weight_extents)} with shape {weight_extents}"
        )
    batch, in_channels, *spatial = x_extents if len(x_extents) == 5 else (1, *x_extents)
    input_extents: Triple = (spatial[0], spatial[1], spatial[2])
    kernel: Triple = (weight_extents[2], weight_extents[3], weight_extents[4])

    for name, values in (
        ("stride", strides),
        ("padding", paddings),
        ("output_padding", output_paddings),
        ("dilation", dilations),
    ):
        if max(values) >= STEP_LIMIT:
            raise ValueError(f"{name} must be below {STEP_LIMIT} on each axis, got {values}")
    _require_positive(strides, "stride")
    _require_positive(dilations, "dilation")
    _require_not_negative(paddings, "padding")
    _require_not_negative(output_paddings, "output_padding")
    if group_count < 1:
        raise ValueError(f"groups must be at least 1, got {group_count}")
    if in_channels < 1 or min(input_extents) < 1:
        raise ValueError(
            "x must have at least one channel and one element on each spatial axis, "
            f"got shape {x_extents}"
        )
    if min(weight_extents) < 1:
        raise ValueError(
            f"weight must have at least one element on each axis, got shape {weight_extents}"
        )
    if weight_extents[0] != in_channels:
        raise ValueError(
            f"weight must have C_in = {in_channels} entries on axis 0, got {weight_extents[0]} "
            f"(x has shape {x_extents}, weight {weight_extents})"
        )
    if in_channels % group_count:
        raise ValueError(f"groups must divide C_in, got groups={group_count} (C_in={in_channels})")
    out_channels = weight_extents[1] * group_count
    if bias_shape is not None:
        bias_extents = shape_tuple(bias_shape, "bias.shape")
        if bias_extents != (out_channels,):
            raise ValueError(
                f"bias must have shape ({out_channels},), got {bias_extents} "
                f"(C_out = weight.shape[1] * groups = {weight_extents[1]} * {group_count})"
            )

    smallest = tuple(
        (i - 1) * s - 2 * p + d * (k - 1) + 1
        for i, s, p, d, k in zip(input_extents, strides, paddings, dilations, kernel, strict=True)
    )
    if output_size is not None:
        if output_paddings != (0, 0, 0):
            raise ValueError(
                "output_padding must be left at 0 when output_size is given, "
                f"got output_padding={output_paddings} with output_size={output_size}"
            )
        output_paddings = _output_padding_for(
            output_size, smallest, strides, dilations, len(x_extents)
        )
    if any(
        op >= s and op >= d for op, s, d in zip(output_paddings, strides, dilations, strict=True)
    ):
        raise ValueError(
            "output_padding must be smaller than stride or dilation on each axis, "
            f"got output_padding={output_paddings} (stride={strides}, dilation={dilations})"
        )
    output: Triple = (
        smallest[0] + output_paddings[0],
        smallest[1] + output_paddings[1],
        smallest[2] + output_paddings[2],
    )
    if min(output) < 1:
        raise ValueError(
            "x must be large enough for an output of at least 1 element on each spatial axis, "
            f"got an output of {output} (input={input_extents}, kernel={kernel}, stride={strides}, "
            f"padding={paddings}, output_padding={output_paddings}, dilation={dilations})"
        )
    problem = Problem(
        batch,
        in_channels,
        out_channels,
        input_extents,
        kernel,
        output,
        strides,
        paddings,
        output_paddings,
        dilations,
        group_count,
    )
    _require_representable(problem)
    return problem


def smallest_x(
    weight_shape: tuple[int, ...],
    stride: Triple,
    padding: Triple,
    output_padding: Triple,
    dilation: Triple,
) -> tuple[int, ...]:
    """Return the shape of a smallest x that the weights accept, if they accept any.

    With it `make_problem` finds whatever is wrong with the weights and the settings.
    """
    if len(weight_shape) != 5:
        return (1, 1, 1, 1, 1)
    # A stride of 0 is an error that is found later.
    extents = (
        1 + max(0, -((d * (k - 1) + op - 2 * p) // max(s, 1)))
        for k, s, p, op, d in zip(
            weight_shape[2:], stride, padding, output_padding, dilation, strict=True
        )
    )
    return (1, max(weight_shape[0], 1), *extents)


def _require_positive(values: Triple, name: str) -> None:
    if min(values) < 1:
        raise ValueError(f"{name} must be at least 1 on each axis, got {values}")


def _require_not_negative(values: Triple, name: str) -> None:
    if min(values) < 0:
        raise ValueError(f"{name} must not be negative on any axis, got {values}")


def _output_padding_for(
    output_size: Any,
    smallest: tuple[int, ...],
    strides: Triple,
    dilations: Triple,
    x_ndim: int,
) -> Triple:
    """Turn a wanted output size into the output padding that gives it."""
    wanted = shape_tuple(output_size, "output_size")
    if len(wanted) not in (3, x_ndim):
        raise ValueError(f"output_size must have 3 entries, or {x_ndim} like x, got {wanted}")
    wanted = wanted[-3:]
    # The rule for output_padding: smaller than stride or than dilation.
    largest = tuple(
        low + max(s, d) - 1 for low, s, d in zip(smallest, strides, dilations, strict=True)
    )
    if any(not low <= o <= high for low, o, high in zip(smallest, wanted, largest, strict=True)):
        raise ValueError(
            f"output_size must be between {smallest} and {largest} on each axis, got {wanted} "
            f"(stride={strides}, dilation={dilations})"
        )
    return wanted[0] - smallest[0], wanted[1] - smallest[1], wanted[2] - smallest[2]


def _require_representable(problem: Problem) -> None:
    """Refuse sizes that no array or 64-bit index can hold."""
    itemsize = 16  # of complex128, the widest dtype
    for name, shape in (
        ("x", problem.x_shape),
        ("weight", problem.weight_shape),
        ("the result", problem.y_shape),
    ):
        if math.prod(shape) * itemsize > SIZE_LIMIT:
            raise ValueError(
                f"{name} must have at most {SIZE_LIMIT // itemsize} elements, got shape {shape}"
            )
    for axis, extent in enumerate(coordinate_range(problem)):
        if extent > SIZE_LIMIT:
            name = ("depth", "height", "width")[axis]
            raise ValueError(
                "stride, padding, output_padding and dilation must keep output coordinates below "
                f"{SIZE_LIMIT}, got up to {extent} on the {name} axis"
            )


def coordinate_range(problem: Problem) -> Triple:
    """Per axis, an upper bound of every coordinate that a kernel computes."""
    first, second, third = (
        o * step + 2 * abs(origin) + 2 * p + s + d * k
        for o, step, origin, p, s, d, k in zip(
            problem.output,
            problem.input_stride,
            problem.origin,
            problem.padding,
            problem.stride,
            problem.dilation,
            problem.kernel,
            strict=True,
        )
    )
    return first, second, third
