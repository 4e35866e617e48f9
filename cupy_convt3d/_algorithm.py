"""Which kernel a problem runs on: the choice behind ``algorithm="auto"``."""

from __future__ import annotations

from typing import Any

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._phase import axes
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._plan_scatter import plan_scatter
from cupy_convt3d._problem import Problem

ALGORITHMS = ("auto", "gather", "scatter")

#: Bytes of a sector, the unit in which a GPU writes memory.
SECTOR = 32


def check_algorithm(algorithm: object) -> None:
    """Raise ValueError unless ``algorithm`` is one of `ALGORITHMS`."""
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")


def make_plan(
    problem: Problem,
    dtype: KernelDtype,
    has_bias: bool,
    algorithm: str,
    deterministic: bool,
    *,
    precision: str = "ieee",
    activation: Activation = NO_ACTIVATION,
    config: Any = None,
) -> Plan:
    """Return the plan of the named algorithm, or of the one that should be faster.

    Both algorithms multiply in the accumulator type, which every ``precision`` allows. ``config``
    forces a configuration of a kernel; none of them has any to choose from.

    The gather writes every ``stride``-th element of a row at a time, so it touches each sector of y
    up to ``stride`` times. Where no two inputs meet (``stride >= dilation*(kernel - 1) + 1`` on
    every axis, as in 2x2x2 up-sampling with stride 2) the scatter needs no atomics and writes full
    rows: then it is chosen if the stride along W is above 1. With atomics it touches a sector about
    three times (fill, read, add); it is chosen above that, and only if the caller does not insist
    on determinism. Both rules count memory sectors (a model, not measured).
    """
    if config is not None:
        raise TypeError(f"config must be None, got {config!r}: no kernel has configurations")
    if algorithm == "gather":
        return plan_gather(problem, dtype, has_bias, activation=activation)
    if algorithm == "scatter":
        return plan_scatter(problem, dtype, has_bias, activation=activation)
    phase_axes = axes(problem)
    sectors_per_element = min(phase_axes[2].stride, SECTOR // dtype.itemsize)
    never_meet = all(axis.stride >= axis.reach for axis in phase_axes)
    if (never_meet and sectors_per_element > 1) or (not deterministic and sectors_per_element > 3):
        return plan_scatter(problem, dtype, has_bias, activation=activation)
    return plan_gather(problem, dtype, has_bias, activation=activation)
