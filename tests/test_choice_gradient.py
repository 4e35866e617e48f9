"""Which kernel computes a gradient: stable, within the device, and what a reader would expect."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.workloads import WORKLOADS, Workload, select
from cupy_convt3d._choice_gradient import Gradient, choose_gradient, make_gradient_plan
from cupy_convt3d._device import H100, Device
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan_gather import GatherConfig
from cupy_convt3d._plan_grad_input import GradInputConfig
from cupy_convt3d._plan_grad_weight import GradWeightConfig
from cupy_convt3d._problem import Problem, make_problem
from tests.problems import EDGES, Case

KINDS: tuple[Gradient, ...] = ("grad_input", "grad_weight")
GRADIENTS = pytest.mark.parametrize("kind", KINDS)

#: A card with the least shared memory of those supported, and one without tensor cores of use.
SMALL = dataclasses.replace(H100, shared_bytes=99 * 1024)
OLD = dataclasses.replace(H100, capability=75, shared_bytes=64 * 1024)


def problem_58() -> Problem:
    (workload,) = select(["kb1-58"])
    return workload.problem()


@GRADIENTS
@pytest.mark.parametrize("precision", ["ieee", "bf16x3", "tf32"])
def test_large_problems_take_tensor_cores_of_the_precision(kind: Gradient, precision: str) -> None:
    config = choose_gradient(kind, problem_58(), DTYPES["float32"], "auto", precision, H100)
    assert isinstance(config, (GradInputConfig, GradWeightConfig))
    allowed = {"ieee": {"tf32x3"}, "bf16x3": {"bf16x3", "tf32x3"}}
    assert config.math in allowed.get(precision, {"tf32", "bf16x3", "tf32x3"})


@GRADIENTS
@pytest.mark.parametrize("device", [H100, SMALL, OLD], ids=["h100", "small", "old"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_plans_fit_the_device(kind: Gradient, workload: Workload, device: Device) -> None:
    plan = make_gradient_plan(
        kind, workload.problem(), DTYPES["float32"], "auto", device=device, precision="bf16x3"
    )
    assert plan.deterministic
    for launch in (*plan.packing, *plan.launches):
        assert launch.shared_bytes <= device.shared_bytes
        assert 1 <= launch.block <= 256
        assert launch.block % 32 == 0
    if device is OLD:
        assert plan.algorithm in ("gather", "direct")


@GRADIENTS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_every_problem_has_a_plan(kind: Gradient, dtype: str, case: Case) -> None:
    for device in (H100, OLD):
        plan = make_gradient_plan(kind, case.problem(), DTYPES[dtype], "auto", device=device)
        assert plan.launches
        if dtype.startswith("complex"):
            assert plan.algorithm in ("gather", "direct")


def test_strides_that_no_box_of_many_positions_fits() -> None:
    problem = make_problem((1, 16, 2, 3, 64), (16, 16, 3, 3, 3), stride=(50, 40, 1000))
    plan = make_gradient_plan("grad_weight", problem, DTYPES["complex128"], "auto")
    assert plan.algorithm == "direct"
    assert plan.launches[0].shared_bytes <= H100.shared_bytes


def test_the_gradient_of_the_input_does_not_depend_on_the_batch() -> None:
    problem = problem_58()
    configs = {
        choose_gradient(
            "grad_input",
            dataclasses.replace(problem, batch=batch),
            DTYPES["float32"],
            "auto",
            "ieee",
            H100,
        )
        for batch in (1, 2, 16, 1000)
    }
    assert len(configs) == 1


def test_splits_do_not_depend_on_the_device() -> None:
    """As far as the tiles are the same: splits decide on the order of summation."""
    problem = problem_58()
    half = dataclasses.replace(H100, multiprocessors=H100.multiprocessors // 2)
    configs = [
        choose_gradient("grad_weight", problem, DTYPES["float32"], "auto", "ieee", device)
        for device in (H100, half)
    ]
    assert configs[0] == configs[1]


@GRADIENTS
def test_what_cannot_run_is_refused(kind: Gradient) -> None:
    problem = problem_58()
    with pytest.raises(ValueError, match="tensor cores have no complex numbers"):
        make_gradient_plan(kind, problem, DTYPES["complex64"], "implicit_gemm")
    with pytest.raises(ValueError, match=r"mma.sync needs compute capability 8.0"):
        make_gradient_plan(kind, problem, DTYPES["float32"], "implicit_gemm", device=OLD)
    other = {"grad_input": "grad_weight", "grad_weight": "grad_input"}
    config = choose_gradient(other[kind], problem, DTYPES["float32"], "auto", "ieee", H100)
    with pytest.raises(TypeError, match=f"config must be a configuration of {kind}, got Grad"):
        make_gradient_plan(kind, problem, DTYPES["float32"], "auto", config=config)


def test_a_configuration_can_be_forced() -> None:
    plan = make_gradient_plan(
        "grad_input", problem_58(), DTYPES["float32"], "auto", config=GatherConfig(4, 4)
    )
    assert plan.algorithm == "gather"
    assert plan.launches[0].roles == ("grad_output", "weight", "bias", "grad_input")
