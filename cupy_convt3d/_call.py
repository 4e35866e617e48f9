"""From the arguments of a call to its checked problem and plan, once per signature."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from cupy_convt3d._activation import Activation, activation_of, check_activation
from cupy_convt3d._algorithm import ALGORITHMS, check_algorithm
from cupy_convt3d._dtypes import KernelDtype, kernel_dtype
from cupy_convt3d._precision import precision_of
from cupy_convt3d._problem import (
    Problem,
    Triple,
    index,
    make_problem,
    shape_tuple,
    smallest_x,
    triple,
)

Shape = tuple[int, ...]


class Settings(NamedTuple):
    """The arguments that are not arrays, in canonical form: equal settings mean the same call."""

    stride: Triple
    padding: Triple
    output_padding: Triple
    groups: int
    dilation: Triple
    output_size: Shape | None
    algorithm: str
    deterministic: bool
    precision: str
    activation: Activation
    config: Hashable


def settings_of(
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
    output_size: Any,
    algorithm: Any,
    deterministic: Any,
    precision: Any = "ieee",
    activation: Any = None,
    negative_slope: Any = 0.01,
    config: Any = None,
    *,
    algorithms: tuple[str, ...] = ALGORITHMS,
) -> Settings:
    """Return the canonical settings; raises TypeError or ValueError for wrong kinds of values."""
    check_algorithm(algorithm, algorithms)
    if not isinstance(deterministic, (bool, np.bool_)):
        raise TypeError(f"deterministic must be True or False, got {deterministic!r}")
    try:
        hash(config)
    except TypeError:
        raise TypeError(f"config must be a configuration of a kernel, got {config!r}") from None
    return Settings(
        triple(stride, "stride"),
        triple(padding, "padding"),
        triple(output_padding, "output_padding"),
        index(groups, "groups"),
        triple(dilation, "dilation"),
        None if output_size is None else shape_tuple(output_size, "output_size"),
        algorithm,
        bool(deterministic),
        precision_of(precision),
        activation_of(activation, negative_slope),
        config,
    )


def check_dtypes(x: Any, weight: Any, bias: Any, activation: Activation) -> KernelDtype:
    """Return the common dtype of the operands; raise TypeError if one differs or is unfit."""
    dtype = dtype_of(x.dtype, "x")
    for name, operand in (("weight", weight), ("bias", bias)):
        if operand is not None and operand.dtype != x.dtype:
            dtype_of(operand.dtype, name)
            raise TypeError(f"{name} must have the dtype of x, {dtype.name}, got {operand.dtype}")
    check_activation(activation, dtype)
    return dtype


def check_weights(weight: Any, bias: Any, settings: Settings) -> KernelDtype:
    """Return the dtype of the weights of a plan, after checking all that does not depend on x."""
    dtype = dtype_of(weight.dtype, "weight")
    if bias is not None and bias.dtype != weight.dtype:
        dtype_of(bias.dtype, "bias")
        raise TypeError(f"bias must have the dtype of weight, {dtype.name}, got {bias.dtype}")
    check_activation(settings.activation, dtype)
    weight_shape = tuple(weight.shape)
    x_shape = smallest_x(
        weight_shape,
        settings.stride,
        settings.padding,
        settings.output_padding,
        settings.dilation,
    )
    checked_problem(x_shape, weight_shape, None if bias is None else tuple(bias.shape), settings)
    return dtype


def check_layer_dtype(x_dtype: Any, dtype: KernelDtype) -> None:
    """Raise TypeError unless x has the dtype of a plan's weights."""
    if dtype_of(x_dtype, "x") != dtype:
        raise TypeError(f"x must have the dtype of weight, {dtype.name}, got {x_dtype}")


def layer_problem(x_shape: Shape, weight: Any, bias: Any, settings: Settings) -> Problem:
    """Return the problem of a call of a plan, whose weights are known to be right."""
    channels = weight.shape[0]
    if len(x_shape) in (4, 5) and x_shape[-4] != channels:
        raise ValueError(
            f"x must have C_in = {channels} channels like weight, got {x_shape[-4]} "
            f"(x has shape {x_shape}, weight {tuple(weight.shape)})"
        )
    bias_shape = None if bias is None else tuple(bias.shape)
    return checked_problem(x_shape, tuple(weight.shape), bias_shape, settings)


# NumPy and torch dtypes are hashable, and turning one into text costs microseconds.
dtype_of = functools.lru_cache(maxsize=256)(kernel_dtype)


@functools.lru_cache(maxsize=1024)
def checked_problem(
    x_shape: Shape, weight_shape: Shape, bias_shape: Shape | None, settings: Settings
) -> Problem:
    """Return the problem of a call, every rule checked."""
    return make_problem(
        x_shape,
        weight_shape,
        bias_shape,
        settings.stride,
        settings.padding,
        settings.output_padding,
        settings.groups,
        settings.dilation,
        settings.output_size,
    )
