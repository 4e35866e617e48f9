"""The benchmark for the GPU: its parts, and a small run of all of it."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch

from benchmarks.gpu import default_path, line, work_through, write_json
from benchmarks.gpu_environment import host_environment
from benchmarks.gpu_gradients import (
    GRADIENTS,
    TORCH_GRADIENTS,
    CheckGradient,
    CheckTorchOperators,
    MeasureGradient,
    TorchGradient,
)
from benchmarks.gpu_plot import draw, medians
from benchmarks.gpu_tasks import Check, Measure, passed, tasks
from benchmarks.gpu_timing import TINY, Effort, summary
from benchmarks.gpu_variants import (
    TORCH_COMPILED,
    TORCH_EAGER,
    TORCH_MODES,
    VARIANTS,
    TorchVariant,
    Variant,
)
from benchmarks.gpu_worker import Budget, Worker
from benchmarks.gpu_workload import (
    EDGES,
    PROBLEMS,
    device_operands,
    gather_result,
    integer_operands,
    load_workload,
    products,
    slice_accuracy,
    whole_accuracy,
)
from tests.reference import gradient_reference, scatter_reference
from tests.worker_tasks import Misbehave

ROOT = Path(__file__).resolve().parents[1]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_summary() -> None:
    assert summary([3.0, 1.0, 8.0]) == {
        "median_ms": 3.0,
        "mean_ms": 4.0,
        "min_ms": 1.0,
        "max_ms": 8.0,
        "samples_ms": [3.0, 1.0, 8.0],
    }


def test_a_full_run_has_at_least_50_repeats_and_kernelbenchs_trials() -> None:
    effort = Effort()
    assert effort.repeats >= 50
    assert (effort.warm_ups, effort.trials) == (5, 100)
    # KernelBench overwrites 32 * 1024 * 1024 items of 8 bytes.
    assert effort.flush_bytes >= 32 * 1024 * 1024 * 8
    assert effort.flush_caches > 1


def test_budget() -> None:
    clock = Clock()
    budget = Budget(60.0, clock)
    assert budget.left() == 60
    assert budget.refusal(60.0) is None
    clock.now += 50
    assert budget.refusal(10.0) is None
    assert budget.refusal(11.0) == "no time: may need 11 s, 10 s left"
    clock.now += 50
    assert budget.left() == 0


def test_work_that_does_not_fit_is_skipped_and_the_rest_goes_on() -> None:
    clock = Clock()
    rows: list[dict[str, Any]] = []
    limits = []

    def run(task: Any, limit_s: float) -> dict[str, Any]:
        limits.append(limit_s)
        clock.now += task.estimate_s
        return task.row()  # type: ignore[no-any-return]

    work = [Misbehave("a", 10.0), Misbehave("b", 50.0), Misbehave("c", 20.0), Misbehave("d", 1.0)]
    assert work_through(work, Budget(30.0, clock), run, rows.append)
    assert [row["variant"] for row in rows if "skipped" in row] == ["b", "d"]
    assert [row["passed"] for row in rows if "skipped" not in row] == [True, True]
    assert limits == [30.0, 20.0]


def test_a_failure_is_kept_and_the_rest_goes_on() -> None:
    rows: list[dict[str, Any]] = []

    def run(task: Any, limit_s: float) -> dict[str, Any]:
        return {**task.row(), **({"error": "no"} if task.how == "a" else {})}

    work = [Misbehave("a"), Misbehave("b")]
    assert not work_through(work, Budget(30.0), run, rows.append)
    assert [row["passed"] for row in rows] == [False, True]
    assert line(rows[0]).endswith("no  FAILED")


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.stop()


def test_an_error_costs_one_row(worker: Worker) -> None:
    row = worker.run(Misbehave("raise"), 60)
    assert row == {
        "kind": "check",
        "variant": "raise",
        "began": True,
        "error": "RuntimeError: no",
    }
    assert "process" in worker.run(Misbehave("nothing"), 60)
    row = worker.run(Misbehave("need a package"), 60)
    assert row["skipped"] == "No module named 'nothing'"


def test_a_process_that_dies_or_hangs_costs_one_row(worker: Worker) -> None:
    assert worker.run(Misbehave("die"), 60)["error"] == "the process died"
    first = worker.run(Misbehave("nothing"), 60)["process"]
    row = worker.run(Misbehave("hang"), 1)
    assert row["error"] == "ended after 1 s without an answer"
    assert worker.run(Misbehave("nothing"), 60)["process"] != first


def test_the_problems_are_cases_and_scale_down() -> None:
    for name in (*PROBLEMS, *EDGES):
        workload, small = load_workload(name), load_workload(name, tiny=True)
        assert small.problem.kernel == workload.problem.kernel
        assert small.settings == workload.settings
        assert np.prod(small.problem.y_shape) <= 2 * 12 * 12 * 12 * 14
    levels = [int(name.removeprefix("kb1-")) for name in PROBLEMS if name.startswith("kb1-")]
    assert sorted(levels) == [58, 61, 68, 70, 72, 73, 77]
    with pytest.raises(ValueError, match=r"problem must be an id in cases\.jsonl, got 'no'"):
        load_workload("no")


@pytest.mark.parametrize("name", [*PROBLEMS, *EDGES])
def test_products_are_those_that_reach_an_output(name: str) -> None:
    workload = load_workload(name, tiny=True)
    p = workload.problem
    ones = np.ones(p.x_shape), np.ones(p.weight_shape)
    y = scatter_reference(*ones, None, p.output, p.stride, p.padding, p.groups, p.dilation)
    assert products(workload) == y.sum()


def test_the_most_important_comes_first() -> None:
    work = list(tasks(PROBLEMS, Effort(), False, True))
    checks = [task for task in work if isinstance(task, Check)]
    assert work[: len(VARIANTS)] == [c for c in checks if c.dtype == "float32"]
    of_gradients = work[len(VARIANTS) : len(VARIANTS) + len(GRADIENTS) + 1]
    assert of_gradients == [
        *(CheckGradient(v, "float32") for v in GRADIENTS),
        CheckTorchOperators(),
    ]
    gradients = [task for task in work if isinstance(task, MeasureGradient)]
    assert {t.variant for t in gradients if t.problem == "kb1-58"} == {*GRADIENTS, *TORCH_GRADIENTS}
    assert len(checks) == sum(len(variant.dtypes) for variant in VARIANTS)
    times = [task for task in work if isinstance(task, Measure)]
    assert times[0].problem == PROBLEMS[0]
    assert {t.variant for t in times if t.problem == PROBLEMS[0] and t.protocol == "flushed"} == {
        *VARIANTS,
        *TORCH_EAGER,
        *TORCH_MODES,
        *TORCH_COMPILED,
    }
    assert times[-1].variant in TORCH_COMPILED
    assert all(t.torch_operands for t in times if t.protocol == "kernelbench")
    alone = [t for t in tasks(PROBLEMS, Effort(), False, False) if isinstance(t, Measure)]
    assert {t.variant for t in alone} == set(VARIANTS)
    assert not any(t.torch_operands for t in alone)


def test_what_counts_as_passed() -> None:
    good = {"within_gate": True, "share_outside_gather": 0.0, "same_bits": True}
    task = Measure("kb1-58", Variant("gather"), TINY)
    assert passed(task, good)
    for wrong in (
        {"within_gate": False},
        {"share_outside_gather": 0.1},
        {"same_bits": False},
        {"error": "no"},
    ):
        assert not passed(task, {**good, **wrong}), wrong
    tf32 = Measure("kb1-58", Variant("gather", "tf32"), TINY)
    assert passed(tf32, {**good, "within_gate": False, "share_outside_gather": 0.3})
    assert passed(Measure("kb1-58", TORCH_EAGER[0], TINY), {"error": "no"})
    gradient = MeasureGradient("kb1-58", GRADIENTS[0], TINY)
    assert passed(gradient, {"within_gate": True, "same_bits": True})
    assert not passed(gradient, {"within_gate": False, "same_bits": True})
    assert not passed(gradient, {"within_gate": True, "same_bits": False})
    assert passed(MeasureGradient("kb1-58", TORCH_GRADIENTS[0], TINY), {"within_gate": False})
    check = Check(Variant("gather"), "float32")
    assert passed(check, {"wrong": [], "checked": 3})
    assert not passed(check, {"wrong": ["holes-bias"]})


def results_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "environment": {"device": {"name": "a card"}},
        "problems": {"kb1-58": {}, "kb1-61": {}},
        "rows": rows,
    }


def time_row(problem: str, library: str, variant: str, ms: float) -> dict[str, Any]:
    row = {"kind": "time", "problem": problem, "library": library, "variant": variant}
    return {**row, "protocol": "flushed", "median_ms": ms}


def test_the_plot_has_ours_and_torch(tmp_path: Path) -> None:
    results = results_of(
        [
            time_row("kb1-58", "cupy_convt3d", "gather ieee", 0.5),
            time_row("kb1-58", "torch", "eager", 2.5),
            {**time_row("kb1-58", "torch", "eager", 9.0), "protocol": "kernelbench"},
            {"kind": "time", "problem": "kb1-61", "protocol": "flushed", "error": "no"},
            {"kind": "check", "variant": "gather ieee", "wrong": []},
            {**time_row("kb1-58", "torch", "grad_input eager", 5.0), "kind": "gradient"},
        ]
    )
    assert medians(results) == {"gather ieee": {"kb1-58": 0.5}, "torch eager": {"kb1-58": 2.5}}
    draw(results, tmp_path / "plot.png")
    pixels = matplotlib.image.imread(tmp_path / "plot.png")
    assert min(pixels.shape[:2]) > 300
    assert pixels[:, :, :3].std() > 0.1
    with pytest.raises(ValueError, match="at least one row with times"):
        draw(results_of([]), tmp_path / "none.png")


def test_files(tmp_path: Path) -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    path = default_path("NVIDIA H100 80GB HBM3", now)
    assert path == Path("gpu-NVIDIA-H100-80GB-HBM3-20260102-030405.json")
    for number in (1, 2):
        write_json(tmp_path / path, {"number": number})
    assert json.loads((tmp_path / path).read_text()) == {"number": 2}
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_environment_names_versions() -> None:
    environment = host_environment()
    assert environment["python"].count(".") == 2
    assert environment["packages"]["numpy"] == np.__version__


@pytest.fixture
def torch_flags() -> Iterator[None]:
    """Restore the flags that torch's modes set."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    yield
    cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = before


@pytest.mark.usefixtures("torch_flags")
@pytest.mark.parametrize("variant", [*TORCH_EAGER, *TORCH_MODES], ids=lambda v: v.label)
def test_torch_modes(variant: TorchVariant) -> None:
    workload = load_workload("kb1-72", tiny=True)
    operands = [
        None if a is None else torch.from_numpy(a)
        for a in integer_operands(workload, np.dtype("float32"))
    ]
    y = variant.bind(*operands, workload.settings)()
    exact = torch.nn.functional.conv_transpose3d(*operands, **workload.settings)
    torch.testing.assert_close(y, exact, rtol=0, atol=0)
    assert torch.backends.cudnn.allow_tf32 == variant.tf32
    assert torch.backends.cudnn.benchmark == variant.benchmark


@pytest.mark.usefixtures("torch_flags")
@pytest.mark.parametrize("variant", TORCH_GRADIENTS, ids=lambda variant: variant.label)
def test_torchs_gradients(variant: TorchGradient) -> None:
    workload = load_workload("groups-trt4188")
    p = workload.problem
    x, weight, _ = integer_operands(workload, np.dtype("float32"))
    grad = np.random.default_rng(1).integers(-1, 2, p.y_shape).astype("float32")
    exact = gradient_reference(x, weight, grad, p.stride, p.padding, p.groups, p.dilation)
    found = variant.bind(workload, x, weight, grad)().numpy()
    np.testing.assert_array_equal(found, exact[variant.gradient == "grad_weight"])


@pytest.mark.cuda
def test_wrong_results_are_found() -> None:
    workload = load_workload("kb1-72", tiny=True)
    y = gather_result(workload, "float32").copy()
    assert slice_accuracy(workload, y)["within_gate"]
    assert whole_accuracy(workload, y) == {"share_outside_gather": 0}
    assert float(device_operands(workload).x.min()) >= 0
    for value in (np.nan, 1e9):
        y[-1, -1, 0, 0, 0] = value
        assert not slice_accuracy(workload, y)["within_gate"]
        assert whole_accuracy(workload, y)["share_outside_gather"] == pytest.approx(1 / y.size)
    with pytest.raises(ValueError, match="y must have shape"):
        slice_accuracy(workload, y[:, :-1])


@pytest.mark.cuda
def test_a_tiny_run(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--tiny", "--minutes", "4"]
    command += ["--output", "out.json", "--problems", "kb1-58", "kb1-72", "nnunet-222-64to32"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-2:] == ["out.json", "out.png"]
    assert min(matplotlib.image.imread(tmp_path / "out.png").shape[:2]) > 300
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["environment"]["device"]["name"]
    assert out["environment"]["cuda"]["driver"] >= 12000
    assert out["problems"]["kb1-72"]["groups"] == 4
    times = {
        (row["problem"], row["variant"], row["protocol"]): row
        for row in out["rows"]
        if row["kind"] == "time" and row["library"] == "cupy_convt3d"
    }
    labels = [variant.label for variant in VARIANTS]
    expected = [(p, v, "flushed") for p in out["problems"] for v in labels]
    expected += [(p, v, "kernelbench") for p in ("kb1-58", "kb1-72") for v in labels]
    assert sorted(times) == sorted(expected)
    for (_, _, protocol), row in times.items():
        assert len(row["samples_ms"]) == (3 if protocol == "flushed" else 2)
        assert min(row["samples_ms"]) > 0
        assert row["multiply_adds"] > 0
        assert row["max_error"] < TOLERATED[row["variant"].split()[1]]
    checks = {(row["variant"], row["dtype"]) for row in out["rows"] if row["kind"] == "check"}
    assert checks == {(v.label, dtype) for v in VARIANTS for dtype in v.dtypes} | {
        (v.label, "float32") for v in GRADIENTS
    }
    gradients = [row for row in out["rows"] if row["kind"] == "gradient"]
    assert {(row["problem"], row["variant"]) for row in gradients} == {
        (problem, v.label) for problem in out["problems"] for v in GRADIENTS
    }
    for row in gradients:
        assert row["same_bits"]
        assert row["max_error"] < TOLERATED[row["variant"].split()[2]] * row["largest"]
    assert all(row["passed"] for row in out["rows"] if "skipped" not in row)


#: Errors of results around 1, by precision.
TOLERATED = {"ieee": 2e-6, "bf16x3": 5e-5, "tf32": 5e-3}


def test_without_a_device_the_command_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--tiny"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": ""}
    result = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 2
    assert result.stderr.strip()
    assert not list(tmp_path.iterdir())
