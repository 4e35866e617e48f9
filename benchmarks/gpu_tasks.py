"""The pieces of a run of the GPU benchmark, and their order.

A task is plain data, so that it can be sent to the process that has the device, and fills one row
of the results as far as it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.gpu_environment import device_environment
from benchmarks.gpu_gradients import MeasureGradient, gradient_checks, gradient_times
from benchmarks.gpu_timing import Effort, Flush, flushed_times, kernelbench_times, summary
from benchmarks.gpu_variants import (
    TORCH_COMPILED,
    TORCH_EAGER,
    TORCH_MODES,
    VARIANTS,
    TorchVariant,
    Variant,
)
from benchmarks.gpu_workload import (
    EDGES,
    device_operands,
    integer_operands,
    load_workload,
    products,
    slice_accuracy,
    whole_accuracy,
)

AnyVariant = Variant | TorchVariant
Row = dict[str, Any]


class Task(Protocol):
    """What a task has.

    ``estimate_s`` is what must be left of the time of a run for it to begin; at ``limit_s`` it is
    ended.
    """

    @property
    def estimate_s(self) -> float: ...  # noqa: D102

    @property
    def limit_s(self) -> float: ...  # noqa: D102

    def row(self) -> Row:
        """Return what identifies the task in the results."""

    def run(self, row: Row) -> None:
        """Do the work on the device and add the results to the row, one by one."""


@dataclass(frozen=True)
class Describe:
    """Ask for versions and properties of the device."""

    estimate_s: float = 20.0
    limit_s: float = 120.0

    def row(self) -> Row:
        """Return what identifies the task in the results."""
        return {"kind": "environment"}

    def run(self, row: Row) -> None:
        """Add the environment."""
        row.update(device_environment())


@dataclass(frozen=True)
class Check:
    """Compare a variant with the definition on small problems, exactly: sums of small integers."""

    variant: Variant
    dtype: str
    estimate_s: float = 15.0
    limit_s: float = 90.0

    def row(self) -> Row:
        """Return what identifies the task in the results."""
        return {"kind": "check", "variant": self.variant.label, "dtype": self.dtype}

    def run(self, row: Row) -> None:
        """Add the names of the problems with a wrong result."""
        import cupy
        import numpy as np

        from tests.reference import scatter_reference

        if self.dtype == "bfloat16":
            import ml_dtypes

            dtype = np.dtype(ml_dtypes.bfloat16)
        else:
            dtype = np.dtype(self.dtype)
        row["wrong"] = []
        for name in EDGES:
            workload = load_workload(name)
            p = workload.problem
            operands = integer_operands(workload, dtype)
            exact = scatter_reference(
                *operands, p.output, p.stride, p.padding, p.groups, p.dilation
            )
            arrays = [None if a is None else cupy.asarray(a) for a in operands]
            y = self.variant.bind(*arrays, workload.settings)()
            if not np.array_equal(y.get(), exact.astype(dtype)):
                row["wrong"].append(name)
        row["checked"] = len(EDGES)


@dataclass(frozen=True)
class Measure:
    """Check and time one variant on one problem, in float32."""

    problem: str
    variant: AnyVariant
    effort: Effort
    protocol: str = "flushed"
    #: Operands as torch tensors: as KernelBench has them, and always for torch.
    torch_operands: bool = False
    tiny: bool = False
    estimate_s: float = 5.0
    limit_s: float = 60.0

    def row(self) -> Row:
        """Return what identifies the task in the results."""
        return {
            "kind": "time",
            "problem": self.problem,
            "library": self.variant.library,
            "variant": self.variant.label,
            "protocol": self.protocol,
            "operands": "torch" if self.torch_operands else "cupy",
        }

    def run(self, row: Row) -> None:
        """Add accuracy, times, and the comparison of the whole result."""
        import cupy

        workload = load_workload(self.problem, self.tiny)
        row["multiply_adds"] = products(workload)
        operands = device_operands(workload)
        if self.torch_operands:
            operands = operands.to_torch()
        call = self.variant.bind(*operands.arrays, workload.settings)
        first = _as_cupy(call())
        row.update(slice_accuracy(workload, first))
        if self.protocol == "kernelbench":
            del first
            times = kernelbench_times(call, Flush(self.effort), self.effort)
            row.update(summary(times))
            return
        if self.variant.deterministic:
            row["same_bits"] = bool(cupy.array_equal(first, _as_cupy(call())))
        del first
        times = flushed_times(call, Flush(self.effort), self.effort)
        row.update(summary(times))
        # Last, as this alone depends on another kernel.
        row.update(whole_accuracy(workload, _as_cupy(call())))


def _as_cupy(y: Any) -> Any:
    import cupy

    return y if isinstance(y, cupy.ndarray) else cupy.from_dlpack(y)


def passed(task: Task, row: Row) -> bool:
    """Return whether a finished row is as it must be; torch and skipped rows always are."""
    if isinstance(task, (Measure, MeasureGradient)) and task.variant.library == "torch":
        return True
    if "skipped" in row:
        return True
    if "error" in row or row.get("wrong") or row.get("same_bits") is False:
        return False
    if isinstance(task, MeasureGradient):
        return bool(row["within_gate"])
    if isinstance(task, Measure) and task.variant.meets_gate:
        return bool(row["within_gate"]) and not row.get("share_outside_gather")
    return True


def tasks(
    problems: tuple[str, ...], effort: Effort, tiny: bool, torch_cuda: bool
) -> Iterator[Task]:
    """Return the work of a run, the most important first."""

    def measure(problem: str, variant: AnyVariant, **options: Any) -> Measure:
        if variant.library == "torch":
            options["torch_operands"] = True
        return Measure(problem, variant, effort, tiny=tiny, **options)

    def kernelbench(problem: str, variant: AnyVariant) -> Measure:
        return measure(problem, variant, protocol="kernelbench", torch_operands=torch_cuda)

    eager = TORCH_EAGER if torch_cuda else ()
    for variant in VARIANTS:
        yield Check(variant, "float32")
    yield from gradient_checks(torch_cuda)
    for problem in problems:
        for variant in (*VARIANTS, *eager):
            yield measure(problem, variant)
        if problem.startswith("kb"):
            for variant in (*VARIANTS, *eager):
                yield kernelbench(problem, variant)
    for problem in problems:
        yield from gradient_times(problem, effort, tiny, torch_cuda)
    for variant in VARIANTS:
        for dtype in variant.dtypes:
            if dtype != "float32":
                yield Check(variant, dtype)
    if torch_cuda:
        for problem in problems:
            for variant in TORCH_MODES:
                yield measure(problem, variant, estimate_s=15.0)
        for problem in problems:
            for variant in TORCH_COMPILED:
                yield measure(problem, variant, estimate_s=40.0, limit_s=90.0)
