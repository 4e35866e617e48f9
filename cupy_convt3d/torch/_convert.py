"""Put the module in the place of torch's, in a whole model."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from cupy_convt3d._precision import precision_of
from cupy_convt3d.torch._module import ConvTranspose3d

Model = TypeVar("Model", bound=Any)


def convert(model: Model, *, precision: str | None = "ieee") -> Model:
    """Make every ``torch.nn.ConvTranspose3d`` of a model a `ConvTranspose3d`, in place.

    The modules stay the objects they are, with their parameters, hooks, device and mode: optimizers
    and other models that share them go on working. Modules that are one already stay as they are,
    as do those of other classes, subclasses of torch's included.

    Parameters
    ----------
    model : torch.nn.Module
        May itself be a ``torch.nn.ConvTranspose3d``. ``copy.deepcopy(model)`` keeps the original.
    precision : {"ieee", "bf16x3", "tf32"} or None, default "ieee"
        Of the converted modules; as in `cupy_convt3d.torch.conv_transpose3d`.

    Returns
    -------
    torch.nn.Module
        ``model`` itself.

    Raises
    ------
    TypeError
        ``model`` is no module.
    ValueError
        An unknown ``precision``.

    Examples
    --------
    >>> import torch
    >>> from cupy_convt3d.torch import convert
    >>> convert(torch.nn.Sequential(torch.nn.ConvTranspose3d(4, 2, 2, stride=2), torch.nn.ReLU()))
    Sequential(
      (0): ConvTranspose3d(4, 2, kernel_size=(2, 2, 2), stride=(2, 2, 2))
      (1): ReLU()
    )
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    precision = precision_of(precision)
    for module in model.modules():
        if type(module) is torch.nn.ConvTranspose3d:
            # A module of this class differs from torch's by nothing but this attribute.
            module.__class__ = ConvTranspose3d
            module.precision = precision
    return model
