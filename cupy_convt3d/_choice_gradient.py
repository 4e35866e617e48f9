"""Which kernel computes a gradient, and with which tiles: candidates x cost (``_choice.py``)."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Literal

from cupy_convt3d import _cost
from cupy_convt3d._choice import TENSOR_CORES, TILES_64, no_candidate, rates_of
from cupy_convt3d._cost_gradient import grad_input_seconds, grad_weight_seconds
from cupy_convt3d._device import H100, Device
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._input_gradient import input_gradient
from cupy_convt3d._plan import Plan, Role
from cupy_convt3d._plan_gather import TILES as GATHER_TILES
from cupy_convt3d._plan_gather import GatherConfig, plan_gather
from cupy_convt3d._plan_grad_input import GradInputConfig, fit_grad_input, plan_grad_input
from cupy_convt3d._plan_grad_weight import (
    GradWeightConfig,
    fit_grad_weight,
    fit_grad_weight_direct,
    plan_grad_weight,
)
from cupy_convt3d._plan_implicit_gemm import needs_64_bits
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import maths_of

Gradient = Literal["grad_input", "grad_weight"]
Config = GatherConfig | GradInputConfig | GradWeightConfig

#: Tiles of 16 x 8 sums of a warp, along m and n, by bytes of a sum.
GRAD_INPUT_TILES = {4: ((1, 4), (1, 8), (2, 4), (2, 8), (4, 4)), 8: ((1, 4), (2, 4))}
GRAD_WEIGHT_TILES = {4: ((1, 4), (1, 9), (2, 4), (2, 9), (4, 4)), 8: ((1, 4), (2, 4))}

#: Warps of a block of the gradient of the input, along m and n.
GRAD_INPUT_WARPS = ((1, 8), (1, 4), (2, 4), (1, 2), (2, 2))


@functools.lru_cache(maxsize=1024)
def choose_gradient(
    kind: Gradient,
    problem: Problem,
    dtype: KernelDtype,
    algorithm: str,
    precision: str,
    device: Device,
) -> Config:
    """Return the configuration that should be fastest for a gradient of ``problem``.

    Raises
    ------
    ValueError
        None of the algorithm's configurations can run; with the reason.
    """
    found = (_grad_input if kind == "grad_input" else _grad_weight)(
        problem, dtype, algorithm, precision, device
    )
    if not found:
        raise ValueError(
            f"algorithm must be one that can run, got {algorithm!r}: {no_candidate(dtype, device)}"
        )
    return min(found, key=lambda pair: pair[1])[0]


def _grad_input(
    problem: Problem, dtype: KernelDtype, algorithm: str, precision: str, device: Device
) -> list[tuple[Config, float]]:
    correlation = input_gradient(problem)
    rates = rates_of(device)
    found: list[tuple[Config, float]] = []
    if algorithm in ("auto", "gather"):
        for tile in GATHER_TILES[dtype.accumulator_bytes]:
            gather = GatherConfig(*tile)
            found.append((gather, _cost.seconds(gather, correlation, dtype, rates)))
    if algorithm in ("auto", "implicit_gemm") and device.capability >= TENSOR_CORES:
        for math in maths_of(dtype, precision):
            for tiles in (
                TILES_64 if needs_64_bits(problem) else GRAD_INPUT_TILES[dtype.accumulator_bytes]
            ):
                for warps in GRAD_INPUT_WARPS:
                    config = fit_grad_input(
                        correlation, dtype, math, tiles, warps, device.shared_bytes
                    )
                    if config is not None:
                        cost = grad_input_seconds(config, correlation, dtype, rates)
                        found.append((config, cost))
    return found


def _grad_weight(
    problem: Problem, dtype: KernelDtype, algorithm: str, precision: str, device: Device
) -> list[tuple[Config, float]]:
    rates = rates_of(device)
    configs: list[GradWeightConfig | None] = []
    if algorithm in ("auto", "direct"):
        configs.append(fit_grad_weight_direct(problem, dtype, device.shared_bytes))
    if algorithm in ("auto", "implicit_gemm") and device.capability >= TENSOR_CORES:
        configs += [
            fit_grad_weight(problem, dtype, math, tiles, device.shared_bytes)
            for math in maths_of(dtype, precision)
            for tiles in (
                TILES_64 if needs_64_bits(problem) else GRAD_WEIGHT_TILES[dtype.accumulator_bytes]
            )
        ]
    return [
        (config, grad_weight_seconds(config, problem, dtype, rates))
        for config in configs
        if config is not None
    ]


def make_gradient_plan(
    kind: Gradient,
    problem: Problem,
    dtype: KernelDtype,
    algorithm: str,
    *,
    precision: str = "ieee",
    config: Any = None,
    device: Device = H100,
    aligned: bool = True,
) -> Plan:
    """Return the plan of a gradient of ``problem``.

    Parameters
    ----------
    config : GatherConfig, GradInputConfig, GradWeightConfig or None
        Forces a kernel and its tiles, whatever ``algorithm`` and ``precision`` say.
    aligned : bool
        Whether the addresses of what the kernels read are multiples of 16 bytes.

    Raises
    ------
    TypeError
        A ``config`` that is none of this gradient.
    ValueError
        The algorithm cannot run this problem on this device.
    """
    records = (GatherConfig, GradInputConfig) if kind == "grad_input" else (GradWeightConfig,)
    if config is None:
        config = choose_gradient(kind, problem, dtype, algorithm, precision, device)
    elif not isinstance(config, records):
        raise TypeError(f"config must be a configuration of {kind}, got {config!r}")
    if isinstance(config, GradWeightConfig):
        return plan_grad_weight(problem, dtype, config, aligned=aligned)
    correlation = input_gradient(problem)
    if isinstance(config, GradInputConfig):
        plan = plan_grad_input(correlation, dtype, config, aligned=aligned)
    else:
        plan = plan_gather(correlation, dtype, False, config=config)
    # A correlation knows its arrays as x and y.
    names: dict[Role, Role] = {"x": "grad_output", "y": "grad_input"}
    launches = tuple(
        replace(launch, roles=tuple(names.get(role, role) for role in launch.roles))
        for launch in plan.launches
    )
    return replace(plan, launches=launches)
