"""From ``algorithm=`` and ``config=`` to a plan."""

from __future__ import annotations

from typing import Any

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._choice import RECORDS, can_run, choose
from cupy_convt3d._device import H100, Device
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_depth_to_space import DepthToSpaceConfig, plan_depth_to_space
from cupy_convt3d._plan_gather import GatherConfig, plan_gather
from cupy_convt3d._plan_implicit_gemm import GemmConfig, plan_implicit_gemm
from cupy_convt3d._plan_scatter import plan_scatter
from cupy_convt3d._plan_subpixel import SubpixelConfig, plan_subpixel
from cupy_convt3d._problem import Problem

ALGORITHMS = ("auto", "gather", "scatter", "implicit_gemm")


def check_algorithm(algorithm: object, algorithms: tuple[str, ...] = ALGORITHMS) -> None:
    """Raise ValueError unless ``algorithm`` is one of ``algorithms``."""
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise ValueError(f"algorithm must be one of {', '.join(algorithms)}, got {algorithm!r}")


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
    device: Device = H100,
    x_aligned: bool = True,
) -> Plan:
    """Return the plan of the named algorithm, or of the one that should be faster.

    Parameters
    ----------
    config : GatherConfig, ScatterConfig, GemmConfig, DepthToSpaceConfig, SubpixelConfig or None
        Forces a kernel and its tiles, whatever ``algorithm`` and ``precision`` say.
    x_aligned : bool
        Whether the address of x is a multiple of 16 bytes.

    Raises
    ------
    TypeError
        A ``config`` that is no configuration.
    ValueError
        The configuration, or the algorithm, cannot run this problem on this device.
    """
    if config is None:
        config = choose(problem, dtype, algorithm, precision, deterministic, device)
    elif not isinstance(config, RECORDS):
        raise TypeError(f"config must be a configuration of a kernel, got {config!r}")
    else:
        reason = can_run(config, problem, dtype, device)
        if reason is not None:
            raise ValueError(f"config must be able to run this problem, got {config}: {reason}")
    if isinstance(config, GemmConfig):
        return plan_implicit_gemm(
            problem, dtype, has_bias, config, activation=activation, x_aligned=x_aligned
        )
    if isinstance(config, DepthToSpaceConfig):
        return plan_depth_to_space(
            problem, dtype, has_bias, config, activation=activation, x_aligned=x_aligned
        )
    if isinstance(config, SubpixelConfig):
        return plan_subpixel(
            problem,
            dtype,
            has_bias,
            config,
            activation=activation,
            x_aligned=x_aligned,
            multiprocessors=device.multiprocessors,
        )
    if isinstance(config, GatherConfig):
        return plan_gather(problem, dtype, has_bias, activation=activation, config=config)
    return plan_scatter(problem, dtype, has_bias, activation=activation)
