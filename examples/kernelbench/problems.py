"""The seven level-1 problems of KernelBench that are 3-D transposed convolutions.

Data, layer and constructor arguments are those of KernelBench's problem files of the same names, in
the sizes of its version 0.1 and later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Problem:
    """One problem: `torch.rand` of a shape through one layer without bias."""

    name: str
    x_shape: tuple[int, ...]
    #: Input channels, output channels, kernel size.
    layer: tuple[Any, ...]
    #: The further arguments of the problem's constructor, in its order.
    settings: dict[str, Any] = field(default_factory=dict)
    #: Arguments that the constructor is given after these and does not use.
    unused: tuple[Any, ...] = ()

    @property
    def number(self) -> int:
        """KernelBench's number."""
        return int(self.name.split("_")[0])

    def init_inputs(self) -> list[Any]:
        """Return the positional arguments of the constructors."""
        return [*self.layer, *self.settings.values(), *self.unused]

    def draw(self) -> torch.Tensor:
        """Draw the argument of ``forward``."""
        return torch.rand(self.x_shape)

    def reference(self) -> nn.ConvTranspose3d:
        """Return the layer that the problem's model consists of, its parameters drawn."""
        return nn.ConvTranspose3d(*self.layer, **self.settings, bias=False)

    def submission(self, precision: str) -> nn.Module:
        """Return the model of the file beside this one, loaded as KernelBench does."""
        path = FOLDER / f"{self.name}.py"
        namespace: dict[str, Any] = {}
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), namespace)
        namespace["PRECISION"] = precision
        model: Callable[..., nn.Module] = namespace["ModelNew"]
        return model(*self.init_inputs())

    def reduced(self) -> Problem:
        """Return the problem with one sample of few rows, whose sums have as many products."""
        _, channels, _, _, width = self.x_shape
        return replace(self, x_shape=(1, channels, 4, 6, width))


PROBLEMS = (
    Problem(
        "58_conv_transposed_3D__asymmetric_input__asymmetric_kernel",
        (16, 32, 16, 32, 64),
        (32, 16, (3, 5, 7)),
    ),
    Problem(
        "61_conv_transposed_3D__square_input__square_kernel",
        (8, 48, 64, 64, 64),
        (48, 48, 3),
    ),
    Problem(
        "68_conv_transposed_3D__square_input__asymmetric_kernel",
        (16, 32, 64, 64, 64),
        (32, 64, (3, 5, 5)),
    ),
    Problem(
        "70_conv_transposed_3D__asymmetric_input__square_kernel",
        (8, 48, 96, 96, 96),
        (48, 24, 3),
    ),
    Problem(
        "72_conv_transposed_3D_asymmetric_input_asymmetric_kernel___strided_padded_grouped_",
        (8, 32, 12, 24, 48),
        (32, 32, (3, 5, 7)),
        {"stride": (2, 2, 2), "padding": (1, 2, 3), "output_padding": (1, 1, 1), "groups": 4},
    ),
    # The 4 is meant as groups, but stands where the constructor has an output_padding that it
    # does not use.
    Problem(
        "73_conv_transposed_3D_asymmetric_input_square_kernel__strided_padded__grouped",
        (4, 32, 32, 64, 128),
        (32, 32, 3),
        {"stride": 2, "padding": 1},
        unused=(4,),
    ),
    Problem(
        "77_conv_transposed_3D_square_input_square_kernel___padded____dilated____strided__",
        (16, 32, 16, 32, 32),
        (32, 64, 3),
        {"stride": 2, "padding": 1, "dilation": 2},
    ),
)
