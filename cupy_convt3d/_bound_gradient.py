"""The compiled plan of a gradient, once per signature; for CuPy arrays and torch tensors alike."""

from __future__ import annotations

import functools

from cupy_convt3d._call import Settings, Shape, checked_problem
from cupy_convt3d._choice_gradient import Gradient, make_gradient_plan
from cupy_convt3d._device import device_of
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._launch import BoundPlan


@functools.lru_cache(maxsize=1024)
def bound_gradient(
    kind: Gradient,
    x_shape: Shape,
    weight_shape: Shape,
    dtype: KernelDtype,
    settings: Settings,
    device: int,
    aligned: bool,
) -> BoundPlan:
    """Return the compiled plan of a gradient for ``device``, which must be the current one.

    Its arrays are, by role, ``"grad_output"``, ``"weight"`` and ``"grad_input"``, or ``"x"``,
    ``"grad_output"`` and ``"grad_weight"``, and ``"workspace"``, ``"packed"`` and ``"bias"``, which
    is None. The result has elements, and so has the batch. ``aligned`` says that what the kernels
    read starts at multiples of `COPY_ALIGNMENT`.
    """
    plan = make_gradient_plan(
        kind,
        checked_problem(x_shape, weight_shape, None, settings),
        dtype,
        settings.algorithm,
        precision=settings.precision,
        config=settings.config,
        device=device_of(device),
        aligned=aligned,
    )
    return BoundPlan(plan, device)
