"""Phases against the definition, by brute force over one-dimensional problems."""

from __future__ import annotations

import itertools
import math

from cupy_convt3d._phase import Axis


def axes_to_check() -> list[Axis]:
    axes = []
    for kernel, stride, padding, dilation, extent in itertools.product(
        range(1, 6), range(1, 7), range(4), range(1, 5), (1, 2, 5)
    ):
        for output_padding in range(max(stride, dilation)):
            output = (
                (extent - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1
            )
            if output >= 1:
                axes.append(Axis(extent, kernel, output, stride, padding, dilation))
    return axes


AXES = axes_to_check()


def products(axis: Axis) -> set[tuple[int, int, int]]:
    """Return every (output, tap, input) that meet, from the definition."""
    return {
        (o, k, i)
        for i in range(axis.input)
        for k in range(axis.kernel)
        if 0 <= (o := i * axis.stride + k * axis.dilation - axis.padding) < axis.output
    }


def test_there_are_many() -> None:
    assert len(AXES) > 3000


def test_taps_and_inputs_are_those_of_the_definition() -> None:
    for axis in AXES:
        found = []
        for index in range(axis.phases):
            phase = axis.phase(index)
            for m, j in itertools.product(range(axis.positions), range(phase.taps)):
                output = index + m * axis.stride
                tap = phase.first_tap + j * axis.tap_step
                source = phase.origin + m - j * axis.input_step
                if output < axis.output and 0 <= source < axis.input:
                    found.append((output, tap, source))
        assert len(found) == len(set(found)), axis
        assert set(found) == products(axis), axis


def test_phases_partition_the_outputs() -> None:
    for axis in AXES:
        outputs = [
            index + m * axis.stride
            for index in range(axis.phases)
            for m in range(axis.positions)
            if index + m * axis.stride < axis.output
        ]
        assert sorted(outputs) == list(range(axis.output)), axis


def test_taps_of_all_residues_partition_the_kernel() -> None:
    for axis in AXES:
        if axis.phases < axis.stride:
            continue
        phases = [axis.phase(index) for index in range(axis.stride)]
        taps = [p.first_tap + j * axis.tap_step for p in phases for j in range(p.taps)]
        assert sorted(taps) == list(range(axis.kernel)), axis
        assert sum(p.taps > 0 for p in phases) == min(axis.stride // axis.gcd, axis.kernel), axis
        assert max(p.taps for p in phases) == axis.most_taps, axis


def test_every_phase_has_taps_exactly_if_coprime_and_not_above_the_kernel() -> None:
    for axis in AXES:
        if axis.phases == axis.stride:
            covered = all(axis.phase(index).taps for index in range(axis.stride))
            assert covered == (
                math.gcd(axis.stride, axis.dilation) == 1 and axis.stride <= axis.kernel
            ), axis
