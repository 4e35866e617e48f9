"""The named problems of the speed-of-light report: those that people publish times for or run.

- ``kb1-*``: KernelBench level 1, with PyTorch's published times beside them.
- ``kb2-*``: KernelBench level 2, the transposed convolution of each of its 19 problems that has
  one; some are the same convolution before different epilogues.
- ``nnunet-*``: the up-sampling of an nnU-Net decoder (kernel equal to stride, no padding), at batch
  2 with its default channels and the extents of a 128x128x128 patch; 2x2x2, and 1x2x2 as for
  anisotropic voxels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cupy_convt3d._problem import Problem, Triple, make_problem


@dataclass(frozen=True)
class Workload:
    """The arguments of one call, without data."""

    name: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    bias: bool = True
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    output_padding: Triple = (0, 0, 0)
    groups: int = 1
    dilation: Triple = (1, 1, 1)
    #: PyTorch eager, published, in ms: H200, H100 PCIe (both torch 2.5, tf32 allowed), H100 SXM
    #: (torch 2.9, float32).
    eager_ms: tuple[float, ...] = ()

    def problem(self) -> Problem:
        """Return the sizes, checked."""
        return make_problem(
            self.x,
            self.weight,
            None,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Workload:
        """Return the workload that `to_json` wrote, tuples restored."""
        return Workload(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def _cube(value: int) -> Triple:
    return value, value, value


LEVEL_1 = [
    Workload("kb1-58", (16, 32, 16, 32, 64), (32, 16, 3, 5, 7), False, eager_ms=(2.30, 2.58, 7.66)),
    Workload("kb1-61", (8, 48, 64, 64, 64), (48, 48, 3, 3, 3), False, eager_ms=(14.7, 6.43, 9.15)),
    Workload("kb1-68", (16, 32, 64, 64, 64), (32, 64, 3, 5, 5), False, eager_ms=(8.36, 11.9, 36.8)),
    Workload("kb1-70", (8, 48, 96, 96, 96), (48, 24, 3, 3, 3), False, eager_ms=(17.6, 12.0, 29.3)),
    Workload(
        "kb1-72",
        (8, 32, 12, 24, 48),
        (32, 8, 3, 5, 7),
        False,
        stride=_cube(2),
        padding=(1, 2, 3),
        output_padding=_cube(1),
        groups=4,
        eager_ms=(2.49, 3.23, 2.82),
    ),
    # KernelBench's file says groups=4 and does not use it.
    Workload(
        "kb1-73",
        (4, 32, 32, 64, 128),
        (32, 32, 3, 3, 3),
        False,
        stride=_cube(2),
        padding=_cube(1),
        eager_ms=(1.76, 3.06, 2.09),
    ),
    Workload(
        "kb1-77",
        (16, 32, 16, 32, 32),
        (32, 64, 3, 3, 3),
        False,
        stride=_cube(2),
        padding=_cube(1),
        dilation=_cube(2),
        eager_ms=(1.96, 2.44, 1.96),
    ),
]


def _level_2(
    number: int, x: tuple[int, ...], out_channels: int, kernel: int, s: int, p: int, op: int
) -> Workload:
    return Workload(
        f"kb2-{number}",
        x,
        (x[1], out_channels, *_cube(kernel)),
        bias=number != 61,
        stride=_cube(s),
        padding=_cube(p),
        output_padding=_cube(op),
    )


LEVEL_2 = [
    _level_2(3, (32, 32, 16, 32, 32), 64, 3, 2, 1, 1),
    _level_2(13, (16, 16, 32, 128, 128), 64, 3, 1, 1, 0),
    _level_2(15, (16, 16, 16, 32, 32), 32, 3, 2, 1, 0),
    _level_2(20, (16, 32, 16, 32, 32), 64, 3, 2, 1, 1),
    _level_2(26, (128, 32, 16, 16, 16), 64, 3, 2, 1, 1),
    _level_2(34, (32, 32, 16, 32, 32), 64, 4, 2, 1, 0),
    _level_2(38, (32, 32, 16, 32, 32), 64, 3, 2, 1, 1),
    _level_2(49, (16, 32, 16, 32, 32), 64, 3, 2, 1, 1),
    _level_2(50, (128, 3, 16, 32, 32), 16, 3, 2, 1, 0),
    _level_2(58, (128, 3, 16, 32, 32), 16, 3, 2, 1, 0),
    _level_2(60, (128, 3, 16, 32, 32), 16, 3, 2, 1, 0),
    _level_2(61, (16, 64, 32, 32, 32), 128, 3, 1, 0, 0),
    _level_2(72, (64, 3, 32, 32, 32), 16, 3, 2, 1, 0),
    _level_2(74, (16, 16, 16, 32, 32), 32, 3, 2, 1, 1),
    _level_2(77, (16, 64, 16, 32, 32), 128, 5, 1, 0, 0),
    _level_2(78, (16, 32, 32, 32, 32), 64, 5, 2, 2, 0),
    _level_2(89, (128, 3, 16, 32, 32), 16, 3, 2, 1, 1),
    _level_2(96, (128, 3, 16, 32, 32), 16, 3, 2, 1, 0),
    _level_2(100, (16, 64, 24, 48, 48), 128, 3, 2, 1, 0),
]

#: Input channels, output channels and input extent of each level, from the bottom up.
DECODER = [(320, 320, 4), (320, 256, 8), (256, 128, 16), (128, 64, 32), (64, 32, 64)]

NNUNET = [
    Workload(
        f"nnunet-{kernel[0]}{kernel[1]}{kernel[2]}-{c_in}to{c_out}",
        (2, c_in, *_cube(extent)),
        (c_in, c_out, *kernel),
        stride=kernel,
    )
    for kernel in ((2, 2, 2), (1, 2, 2))
    for c_in, c_out, extent in DECODER
]

WORKLOADS = [*LEVEL_1, *LEVEL_2, *NNUNET]


def select(patterns: list[str]) -> list[Workload]:
    """Return the workloads whose name is or begins with one of ``patterns``; all, without any.

    Raises
    ------
    ValueError
        If a pattern selects nothing.
    """
    if not patterns:
        return WORKLOADS
    chosen = []
    for pattern in patterns:
        # A whole name first: kb2-3 is not kb2-34.
        found = [w for w in WORKLOADS if w.name == pattern] or [
            w for w in WORKLOADS if w.name.startswith(pattern)
        ]
        if not found:
            names = ", ".join(w.name for w in WORKLOADS)
            raise ValueError(f"problem must be or begin one of {names}, got {pattern!r}")
        chosen += [w for w in found if w not in chosen]
    return chosen
