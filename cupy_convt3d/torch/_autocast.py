"""Autocast: the operators run in the dtype of autocast on the device, as torch's convolutions do.

``torch.library.register_autocast`` has one dtype for all; here it is looked up in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cupy_convt3d.torch._operators import FORWARD, GRAD_INPUT, GRAD_WEIGHT, LIBRARY


def _in_autocast(operator: Any, device: str) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        cast = (
            argument.to(dtype)
            if isinstance(argument, torch.Tensor) and _is_cast(argument, device)
            else argument
            for argument in arguments
        )
        with torch.autocast(device, enabled=False):
            return operator(*cast)

    return run


def _is_cast(tensor: Any, device: str) -> bool:
    """Whether autocast is for this tensor: float64 and complex numbers stay what they are."""
    floating = tensor.is_floating_point() and tensor.dtype != torch.float64
    return bool(floating and tensor.device.type == device)


for _operator in (FORWARD, GRAD_INPUT, GRAD_WEIGHT):
    for _key, _device in (("AutocastCUDA", "cuda"), ("AutocastCPU", "cpu")):
        LIBRARY.impl(_operator, _in_autocast(_operator, _device), _key)
