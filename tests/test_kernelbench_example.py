"""The models of examples/kernelbench: the harness's rules, and its verdict."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_workload import load_workload
from tests.test_examples import run_example

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "kernelbench"))

import evaluate
from problems import FOLDER, PROBLEMS, Problem
from protocol import TRIALS, Verdict, judge, trial_seeds

EACH_PROBLEM = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: str(p.number))

#: What KernelBench's static checker refuses for every backend.
FORBIDDEN = (
    r"\btry\s*:",
    r"\bexcept\b",
    r"\bpass\b",
    r"threading|multiprocessing|concurrent\.futures|PoolExecutor",
    r"_make_subclass|class\s+\w+.*\((torch\.)?Tensor\)|Tensor\.__new__",
    r"(synchronize|Event|record|elapsed_time|perf_counter|time\.time)\s*=",
)
#: What it warns of: layers and operations of torch, streams, lower precisions.
WARNED_OF = (
    r"torch\.nn\.(?!Module|Parameter)",
    r"torch\.conv\w*\s*\(|\bF\.\w+|functional",
    r"Stream\s*\(|\.stream\s*\(",
    r"\.half\s*\(|float16|float2half",
)


def test_the_problems_are_kernelbenchs() -> None:
    assert [problem.number for problem in PROBLEMS] == [58, 61, 68, 70, 72, 73, 77]
    for problem in PROBLEMS:
        expected = load_workload(f"kb1-{problem.number}").problem
        layer = problem.reference().to("meta")
        assert problem.x_shape == expected.x_shape
        assert tuple(layer.weight.shape) == expected.weight_shape
        assert tuple(layer(torch.empty(problem.x_shape, device="meta")).shape) == expected.y_shape
        assert (layer.stride, layer.padding) == (expected.stride, expected.padding)
        assert (layer.groups, layer.dilation) == (expected.groups, expected.dilation)


@EACH_PROBLEM
def test_static_rules(problem: Problem) -> None:
    text = (FOLDER / f"{problem.name}.py").read_text(encoding="utf-8")
    for pattern in (*FORBIDDEN, *WARNED_OF):
        assert not re.search(pattern, text), pattern


@EACH_PROBLEM
def test_the_same_seed_draws_the_same_parameters(problem: Problem) -> None:
    reference, model = evaluate.build(problem)
    theirs, ours = reference.state_dict(), model.state_dict()
    assert list(ours) == [f"conv_transpose3d.{name}" for name in theirs] != []
    for expected, parameter in zip(theirs.values(), ours.values(), strict=True):
        assert torch.equal(parameter, expected)
    # The constructors give their positional arguments the same meaning.
    assert str(model.conv_transpose3d) == str(reference)


def test_the_seeds_depend_on_one_seed_alone() -> None:
    seeds = trial_seeds()
    torch.rand(3)
    assert trial_seeds() == seeds
    assert len(set(seeds)) == TRIALS == 5
    assert trial_seeds(seed=43) != seeds


@pytest.mark.parametrize(
    ("error", "share", "passed"), [(0.0, 0.0, 1), (1.9e-4, 0.95, 1), (2.1e-4, 1.05, 0)]
)
def test_tolerance(error: float, share: float, passed: int) -> None:
    verdict = Verdict()
    expected = torch.ones(2, 3, dtype=torch.float64)
    y = expected.clone()
    y[1, 2] += error  # of 1e-4 + 1e-4 * |y|
    verdict.add(expected, y)
    assert verdict.passed == passed
    assert verdict.worst == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("wrong", [torch.full((2, 3), torch.nan), torch.ones(2, 4)])
def test_a_wrong_result_is_never_forgotten(wrong: torch.Tensor) -> None:
    verdict = Verdict()
    expected = torch.ones(2, 3)
    for y in (wrong, expected):
        verdict.add(expected, y)
    assert (verdict.trials, verdict.passed) == (2, 1)
    assert not verdict.worst <= 1


def rows(lines: list[str]) -> dict[tuple[int, str], float]:
    """Return the worst error of each model that passed, by problem and precision."""
    found = [re.match(r" +(\d+)  (\w+) +5 of 5 +(\d+\.\d{4})( |$)", line) for line in lines]
    return {(int(m[1]), m[2]): float(m[3]) for m in found if m}


def test_cpu(tmp_path: Path) -> None:
    lines = run_example(tmp_path, str(FOLDER / "evaluate.py"), "--cpu", "--reduced")
    assert lines[0].startswith("NumPy path; reference: torch ")
    errors = rows(lines)
    assert list(errors) == [(problem.number, "float32") for problem in PROBLEMS]
    # float32 sums of 192 to 3360 products around 1/2, in another order: within some 1e-5.
    assert max(errors.values()) < 0.1
    assert len(lines) == 3 + len(PROBLEMS)


def test_failures_and_missing_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = PROBLEMS[-1].reduced()
    assert evaluate.evaluate_on_cpu([problem], minutes=0)
    assert capsys.readouterr().out.endswith("     77  not judged: 0 minutes were over\n")

    reference, _ = evaluate.build(problem)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return reference(x) + 1e-3

    monkeypatch.setattr(evaluate, "build", lambda problem: (reference, wrong))
    assert not evaluate.evaluate_on_cpu([problem], minutes=1)
    assert "0 of 5, FAILED" in capsys.readouterr().out


@pytest.mark.cuda
def test_through_cupy(tmp_path: Path) -> None:
    command = [str(FOLDER / "evaluate.py"), "--simulated", "--problems", "72", "77"]
    lines = run_example(tmp_path, *command)
    assert lines[0].startswith("CuPy arrays on ")
    errors = rows(lines)
    assert list(errors) == [(n, p) for n in (72, 77) for p in ("ieee", "bf16x3")]
    assert max(errors.values()) < 1
    assert len(lines) == 3 + len(errors)


@pytest.mark.cuda
def test_tf32_is_outside_the_tolerance() -> None:
    problem = PROBLEMS[0].reduced()
    reference, model = evaluate.build(problem)
    tf32 = evaluate.through_cupy(model.conv_transpose3d, "tf32")
    verdict = judge(reference, tf32, problem.draw)
    assert (verdict.trials, verdict.passed) == (TRIALS, 0)
    # By the rounding of products, not by a wrong result.
    assert 1 < verdict.worst < 20
