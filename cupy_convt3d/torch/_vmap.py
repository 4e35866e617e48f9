"""The operators under vmap: the mapped axis becomes part of the batch, or of the groups.

Where only the data of samples is mapped they are more samples. Where weights are, each of them has
a group of channels of its own. ``call`` computes the operator on the merged tensors.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from cupy_convt3d.torch._operators import FORWARD, GRAD_INPUT, GRAD_WEIGHT, LIBRARY


def forward_rule(
    call: Any, info: Any, in_dims: tuple[Any, ...], x: Any, weight: Any, bias: Any, *arguments: Any
) -> tuple[Any, int]:
    of_x, of_weight, of_bias = in_dims[:3]
    size = info.batch_size
    if of_weight is None and of_bias is None:
        batch = x.shape[1 if of_x == 0 else 0]
        y = call(_merged(x, of_x, 0, size), weight, bias, *arguments)
        return _split(y, 0, size, batch), 0
    y = call(
        _merged(x, of_x, 1, size),
        _merged(weight, of_weight, 0, size),
        None if bias is None else _merged(bias, of_bias, 0, size),
        *_more_groups(arguments, size),
    )
    return _split(y, 1, size, y.shape[1] // size), 1


def grad_input_rule(
    call: Any,
    info: Any,
    in_dims: tuple[Any, ...],
    grad_output: Any,
    weight: Any,
    shape: Any,
    *arguments: Any,
) -> tuple[Any, int]:
    of_grad_output, of_weight = in_dims[:2]
    size = info.batch_size
    batch, channels, *extents = shape
    if of_weight is None:
        grad_output = _merged(grad_output, of_grad_output, 0, size)
        result = call(grad_output, weight, (batch * size, channels, *extents), *arguments)
        return _split(result, 0, size, batch), 0
    result = call(
        _merged(grad_output, of_grad_output, 1, size),
        _merged(weight, of_weight, 0, size),
        (batch, channels * size, *extents),
        *_more_groups(arguments, size),
    )
    return _split(result, 1, size, channels), 1


def grad_weight_rule(
    call: Any,
    info: Any,
    in_dims: tuple[Any, ...],
    x: Any,
    grad_output: Any,
    shape: Any,
    *arguments: Any,
) -> tuple[Any, int]:
    of_x, of_grad_output = in_dims[:2]
    size = info.batch_size
    channels, *others = shape
    result = call(
        _merged(x, of_x, 1, size),
        _merged(grad_output, of_grad_output, 1, size),
        (channels * size, *others),
        *_more_groups(arguments, size),
    )
    return _split(result, 0, size, channels), 0


def _merged(tensor: Any, mapped: int | None, axis: int, size: int) -> Any:
    """Return the tensor with its mapped axis merged into ``axis``; repeated if it has none."""
    if mapped is None:
        repeated = [-1] * (tensor.ndim + 1)
        repeated[axis] = size
        tensor = tensor.unsqueeze(axis).expand(repeated)
    else:
        tensor = tensor.movedim(mapped, axis)
    return tensor.flatten(axis, axis + 1)


def _split(tensor: Any, axis: int, size: int, extent: int) -> Any:
    return tensor.unflatten(axis, (size, extent))


def _more_groups(arguments: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    stride, padding, output_padding, groups, *others = arguments
    return (stride, padding, output_padding, groups * size, *others)


for _operator, _rule in (
    (FORWARD, forward_rule),
    (GRAD_INPUT, grad_input_rule),
    (GRAD_WEIGHT, grad_weight_rule),
):
    torch.library.register_vmap(_operator, functools.partial(_rule, _operator), lib=LIBRARY)
