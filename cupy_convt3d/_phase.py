"""Phases (residue classes) of a strided transposed convolution, as integers.

Along one axis an output ``o``, a tap ``k`` and an input ``i`` meet when
``o + padding == i*stride + k*dilation``. The taps that reach ``o`` therefore depend on ``o`` modulo
``stride`` alone: the outputs ``phase, phase + stride, ...`` share one tap list, and over them the
transposed convolution is an ordinary stride-1 gather. ``kernels_cu/residue_class.cuh`` computes the
same numbers on the device.

With ``g = gcd(stride, dilation)`` the taps of a phase are ``first_tap, first_tap + stride/g, ...``,
and each step moves the input down by ``dilation/g``. A phase has no tap where ``g`` does not divide
``phase + padding``, or where the kernel is shorter than ``stride/g``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cupy_convt3d._problem import Problem


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a problem and the constants of its phases, in elements."""

    input: int
    kernel: int
    output: int
    stride: int
    padding: int
    dilation: int
    #: What is added to every input coordinate, and how many inputs lie between consecutive outputs
    #: of a phase: for the correlations that gradients are (``_input_gradient.py``).
    origin: int = 0
    input_stride: int = 1

    @property
    def gcd(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def tap_step(self) -> int:
        """From one tap of a phase to its next."""
        return self.stride // self.gcd

    @property
    def input_step(self) -> int:
        """How far one tap of a phase moves the input coordinate down."""
        return self.dilation // self.gcd

    @property
    def inverse(self) -> int:
        """The inverse of ``input_step`` modulo ``tap_step``."""
        return pow(self.input_step, -1, self.tap_step) if self.tap_step > 1 else 0

    @property
    def phases(self) -> int:
        """Phases that have an output."""
        return min(self.stride, self.output)

    @property
    def positions(self) -> int:
        """Outputs of the longest phase."""
        return -(-self.output // self.stride)

    @property
    def most_taps(self) -> int:
        """Taps of the phase that has most."""
        return -(-self.kernel // self.tap_step)

    @property
    def reach(self) -> int:
        """Outputs between the first and the last that one input can reach."""
        return (self.kernel - 1) * self.dilation + 1

    def phase(self, phase: int) -> Phase:
        """Return the tap list of the outputs ``phase, phase + stride, ...``."""
        padded = phase + self.padding
        residue = padded % self.stride
        if residue % self.gcd:
            return Phase(0, 0, 0)
        first_tap = residue // self.gcd * self.inverse % self.tap_step
        if first_tap >= self.kernel:
            return Phase(0, 0, 0)
        taps = -(-(self.kernel - first_tap) // self.tap_step)
        meets = (padded - first_tap * self.dilation) // self.stride
        return Phase(first_tap, taps, self.origin + meets)


@dataclass(frozen=True, slots=True)
class Phase:
    """The tap list of one phase.

    Tap ``j < taps`` is ``first_tap + j*tap_step``; it meets output ``phase + m*stride`` at input
    ``origin + m*input_stride - j*input_step``.
    """

    first_tap: int
    taps: int
    origin: int


def axes(problem: Problem) -> tuple[Axis, Axis, Axis]:
    """Return the three spatial axes: depth, height, width."""
    depth, height, width = (
        # The dilation of a kernel of one tap means nothing; 1 keeps it out of the gcd.
        Axis(i, k, o, s, p, d if k > 1 else 1, origin, step)
        for i, k, o, s, p, d, origin, step in zip(
            problem.input,
            problem.kernel,
            problem.output,
            problem.stride,
            problem.padding,
            problem.dilation,
            problem.origin,
            problem.input_stride,
            strict=True,
        )
    )
    return depth, height, width
