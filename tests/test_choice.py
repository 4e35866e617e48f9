"""The choice of kernels and tiles: every candidate is legal, and the choice is stable."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from cupy_convt3d import _choice, _cost
from cupy_convt3d._algorithm import ALGORITHMS, make_plan
from cupy_convt3d._choice import RECORDS, can_run, candidates, choose, config_of, rates_of
from cupy_convt3d._device import H100, Device
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._phase import Axis, axes
from cupy_convt3d._plan_depth_to_space import DepthToSpaceConfig, shared_bytes_of
from cupy_convt3d._plan_gather import GatherConfig
from cupy_convt3d._plan_implicit_gemm import GemmConfig, inputs_of_segment, shared_layout
from cupy_convt3d._plan_scatter import ScatterConfig
from cupy_convt3d._plan_subpixel import SubpixelConfig, fit_subpixel, layout_of, offsets_of
from cupy_convt3d._problem import Problem, make_problem
from cupy_convt3d._tensor_core import MATHS
from tests.problems import EDGES, Case, case_of, load_cases
from tests.test_tensor_core import TILE_EDGES

A100 = Device("NVIDIA A100-SXM4-80GB", 80, 108, 163 * 1024)
RTX_4090 = Device("NVIDIA GeForce RTX 4090", 89, 128, 99 * 1024)
T4 = Device("Tesla T4", 75, 40, 64 * 1024)

ALL_CASES = [
    *EDGES,
    *TILE_EDGES,
    *(case_of(e) for e in load_cases() if "out" in e and "output_size" not in e),
]

PROBLEM_58 = make_problem((16, 32, 16, 32, 64), (32, 16, 3, 5, 7))
PROBLEM_72 = make_problem(
    (8, 32, 12, 24, 48),
    (32, 8, 3, 5, 7),
    stride=2,
    padding=(1, 2, 3),
    output_padding=1,
    groups=4,
)
UPSAMPLING = make_problem((2, 64, 64, 64, 64), (64, 32, 2, 2, 2), stride=2)
OVERLAPPING = make_problem((4, 32, 32, 64, 128), (32, 32, 3, 3, 3), stride=2, padding=1)


def check_gemm(problem: Problem, dtype: str, config: GemmConfig, device: Device) -> None:
    depth, height, width = axes(problem)
    assert config.threads <= 256
    assert config.co_tile % 8 == 0
    assert config.co_tile * config.tap_slice <= 16 * config.m_tiles
    assert config.rows * config.tile_w <= 8 * config.warp_n_tiles * config.warps_n
    assert config.tile_d <= depth.positions
    assert config.tile_h <= height.positions
    assert 1 <= config.stage_taps_h <= height.most_taps
    assert 1 <= config.pass_rows <= config.rows
    assert config.sum_channels % 8 == 0
    assert inputs_of_segment(width, config.segment, config.tap_slice) <= config.tile_w
    check_segments(config, problem)
    layout = shared_layout(problem, DTYPES[dtype], config)
    assert layout.total <= device.shared_bytes
    assert layout.stage_weights % 16 == layout.stage_bytes % 16 == layout.sums % 16 == 0


def check_subpixel(problem: Problem, dtype: str, config: SubpixelConfig, device: Device) -> None:
    depth, height, _ = axes(problem)
    assert config.threads <= 256
    phases = depth.stride * height.stride
    assert config.co_blocks * phases <= config.warp_m_tiles * config.warps_m
    assert config.tile_d * config.tile_h * config.row_warps <= config.warps_n
    assert config.tile_d <= depth.positions
    assert config.tile_h <= height.positions
    layout = layout_of(problem, DTYPES[dtype], config)
    assert layout.total <= device.shared_bytes
    assert layout.stage_weights % 16 == layout.stage_bytes % 16 == 0


def test_offsets_are_those_that_phases_meet() -> None:
    """Against the definition, for all small kernels, strides and paddings."""
    for kernel, stride, padding in itertools.product(range(1, 8), range(1, 5), range(9)):
        axis = Axis(9, kernel, 20, stride, padding, 1)
        offsets = offsets_of(axis)
        met = {
            ((phase + padding - tap) // stride, phase, tap)
            for phase in range(stride)
            for tap in range(kernel)
            if (phase + padding - tap) % stride == 0
        }
        expected = {
            (offsets.first + u, phase, tap)
            for u in range(offsets.count)
            for phase in range(stride)
            if 0 <= (tap := offsets.first_tap - u * stride + phase) < kernel
        }
        assert expected == met
        assert {offsets.first, offsets.first + offsets.count - 1} <= {
            offset for offset, _, _ in met
        }


def test_a_subpixel_configuration_for_fewer_phases_is_refused() -> None:
    """It would leave outputs unwritten."""
    few = make_problem((1, 32, 12, 24, 48), (32, 32, 3, 5, 7), stride=(1, 1, 2))
    many = make_problem((1, 32, 12, 24, 48), (32, 32, 3, 5, 7), stride=2)
    dtype, math_ = DTYPES["float32"], MATHS["bf16x3"]
    config = fit_subpixel(few, dtype, math_, (2, 4), (2, 2), H100.shared_bytes)
    assert config is not None
    assert can_run(config, few, dtype, H100) is None
    with pytest.raises(ValueError, match="too few m tiles for 4 phases"):
        make_plan(many, dtype, False, "auto", True, config=config)


def check_segments(config: GemmConfig, problem: Problem) -> None:
    """Follow the kernel: every input that a segment's outputs need lies in its tile."""
    width = axes(problem)[2]
    # Segments differ only at the borders and by how they are aligned.
    count = -(-width.output // config.segment)
    for segment in {0, 1, 2, 3, count // 2, count - 2, count - 1} & set(range(count)):
        begin = segment * config.segment
        end = min(begin + config.segment, width.output)
        for first_tap in range(0, width.kernel, config.tap_slice):
            last_tap = min(first_tap + config.tap_slice, width.kernel) - 1
            lowest = begin + width.padding - last_tap * width.dilation
            first = max(lowest, 0) // width.stride & ~7
            highest = end - 1 + width.padding - first_tap * width.dilation
            if highest >= 0 and first < width.input:
                assert min(highest // width.stride, width.input - 1) < first + config.tile_w


@pytest.mark.parametrize(
    ("dtype", "device"),
    [
        ("float32", H100),
        ("float32", RTX_4090),
        ("float16", A100),
        ("float64", RTX_4090),
        ("complex64", H100),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_candidate_is_legal(dtype: str, device: Device) -> None:
    for case in ALL_CASES if device is H100 else TILE_EDGES:
        problem = case.problem()
        found = candidates(problem, DTYPES[dtype], "auto", "tf32", False, device)
        assert any(isinstance(config, GatherConfig) for config in found)
        assert any(isinstance(config, GemmConfig) for config in found) != (dtype == "complex64")
        for config in found:
            hash(config)
            assert can_run(config, problem, DTYPES[dtype], device) is None
            if isinstance(config, GemmConfig):
                check_gemm(problem, dtype, config, device)
            if isinstance(config, DepthToSpaceConfig):
                _, inputs, stage = shared_bytes_of(problem, DTYPES[dtype], config)
                assert inputs + config.stages * stage <= device.shared_bytes
            if isinstance(config, SubpixelConfig):
                check_subpixel(problem, dtype, config, device)
            seconds = _cost.seconds(config, problem, DTYPES[dtype], rates_of(device))
            assert 0 < seconds < math.inf


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.id)
def test_a_choice_makes_a_plan(case: Case) -> None:
    for algorithm in ALGORITHMS:
        plan = make_plan(case.problem(), DTYPES["float32"], case.bias, algorithm, True)
        assert algorithm in ("auto", plan.algorithm)
        if algorithm in ("auto", "gather", "implicit_gemm"):
            assert plan.deterministic
        for launch in (*plan.packing, *plan.launches):
            assert (case.x[0] > 0) <= launch.grid < 2**31
            assert launch.block <= 256
            assert launch.shared_bytes <= H100.shared_bytes


def test_the_choice_does_not_follow_the_batch() -> None:
    """Else the bits of a sample would depend on how many others come with it."""
    for problem in (PROBLEM_58, UPSAMPLING, OVERLAPPING, TILE_EDGES[0].problem()):
        chosen = {
            choose(
                dataclasses.replace(problem, batch=batch),
                DTYPES["float32"],
                "auto",
                "ieee",
                True,
                H100,
            )
            for batch in (1, 2, 3, 16, 100)
        }
        assert len(chosen) == 1


@pytest.mark.parametrize(
    ("problem", "precision", "record", "maths"),
    [
        (PROBLEM_58, "ieee", GemmConfig, {"tf32x3"}),
        (PROBLEM_58, "bf16x3", GemmConfig, {"bf16x3"}),
        (PROBLEM_58, "tf32", GemmConfig, {"tf32"}),
        (OVERLAPPING, "bf16x3", GemmConfig, {"bf16x3"}),
        (PROBLEM_72, "bf16x3", SubpixelConfig, {"bf16x3"}),
        (PROBLEM_72, "tf32", SubpixelConfig, {"tf32"}),
        (UPSAMPLING, "ieee", DepthToSpaceConfig, {"tf32x3"}),
        (UPSAMPLING, "bf16x3", DepthToSpaceConfig, {"bf16x3"}),
    ],
)
def test_known_choices_on_an_h100(
    problem: Problem, precision: str, record: type, maths: set[str]
) -> None:
    config = choose(problem, DTYPES["float32"], "auto", precision, True, H100)
    assert isinstance(config, record)
    assert config.math in maths  # type: ignore[attr-defined]


def test_the_tiles_of_the_headline() -> None:
    config = choose(PROBLEM_58, DTYPES["float32"], "auto", "bf16x3", True, H100)
    assert isinstance(config, GemmConfig)
    # All taps along W and output channels are one matrix of 112 rows without a wasted one.
    assert (config.co_tile, config.tap_slice, 16 * config.m_tiles) == (16, 7, 112)
    assert (config.tile_w, config.segment) == (64, 70)


def test_precision_is_the_least_that_is_accepted() -> None:
    for precision, allowed in (
        ("ieee", {"tf32x3"}),
        ("bf16x3", {"tf32x3", "bf16x3"}),
        ("tf32", {"tf32x3", "bf16x3", "tf32"}),
    ):
        found = candidates(PROBLEM_58, DTYPES["float32"], "implicit_gemm", precision, True, H100)
        assert {config.math for config in found} == allowed  # type: ignore[union-attr]
        for dtype in ("float16", "float64"):
            found = candidates(PROBLEM_58, DTYPES[dtype], "implicit_gemm", precision, True, H100)
            assert {config.math for config in found} == {dtype}  # type: ignore[union-attr]


def test_atomics_need_permission() -> None:
    for case in (*EDGES[::3], *TILE_EDGES):
        config = choose(case.problem(), DTYPES["float32"], "auto", "ieee", True, RTX_4090)
        assert config != ScatterConfig(owns_output=False)
    found = candidates(OVERLAPPING, DTYPES["float32"], "auto", "ieee", False, H100)
    assert ScatterConfig(owns_output=False) in found


def test_what_cannot_run_says_why() -> None:
    gemm = choose(PROBLEM_58, DTYPES["float32"], "implicit_gemm", "ieee", True, H100)
    assert isinstance(gemm, GemmConfig)
    reason = can_run(gemm, PROBLEM_58, DTYPES["float32"], T4)
    assert reason == "mma.sync needs compute capability 8.0, the device has 7.5"
    reason = can_run(gemm, PROBLEM_58, DTYPES["float32"], RTX_4090)
    assert reason == "wgmma needs compute capability 9.0, the device has 8.9"
    ada = choose(PROBLEM_58, DTYPES["float32"], "implicit_gemm", "ieee", True, RTX_4090)
    assert isinstance(ada, GemmConfig)
    big = dataclasses.replace(ada, stages=4, stage_steps=4)
    reason = can_run(big, PROBLEM_58, DTYPES["float32"], RTX_4090)
    assert reason is not None
    assert reason.endswith("bytes of shared memory, the device has 101376")
    assert can_run(gemm, PROBLEM_58, DTYPES["complex64"], H100) == (
        "tensor cores have no complex numbers"
    )
    up = choose(UPSAMPLING, DTYPES["float32"], "implicit_gemm", "ieee", True, H100)
    assert "kernel == stride" in str(can_run(up, PROBLEM_58, DTYPES["float32"], H100))


def test_an_algorithm_that_cannot_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got 'implicit_gemm': tensor cores have no complex"):
        make_plan(PROBLEM_58, DTYPES["complex64"], False, "implicit_gemm", True)
    with pytest.raises(ValueError, match=r"got 'implicit_gemm': mma.sync needs compute capab"):
        make_plan(PROBLEM_58, DTYPES["float32"], False, "implicit_gemm", True, device=T4)
    assert make_plan(PROBLEM_58, DTYPES["float32"], False, "auto", True, device=T4).deterministic


def test_a_forced_configuration_is_used_or_refused() -> None:
    config = choose(PROBLEM_58, DTYPES["float32"], "implicit_gemm", "tf32", True, RTX_4090)
    plan = make_plan(PROBLEM_58, DTYPES["float32"], False, "gather", True, config=config)
    assert plan.launches[-1].kernel == "convt3d_implicit_gemm"
    assert "-DCONVT3D_MATH=2" in plan.launches[-1].options
    with pytest.raises(ValueError, match="config must be able to run this problem"):
        make_plan(PROBLEM_58, DTYPES["complex64"], False, "auto", True, config=config)
    with pytest.raises(TypeError, match="config must be a configuration of a kernel, got 'fast'"):
        make_plan(PROBLEM_58, DTYPES["float32"], False, "auto", True, config="fast")


def test_a_table_of_measurements_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = GatherConfig(4, 4)
    device = dataclasses.replace(H100, name="a card with a table")
    monkeypatch.setattr(
        _choice,
        "tuned_config",
        lambda name, *_: dataclasses.asdict(tuned) if name == device.name else None,
    )
    assert choose(PROBLEM_58, DTYPES["float32"], "auto", "ieee", True, device) == tuned
    assert choose(PROBLEM_58, DTYPES["float32"], "implicit_gemm", "ieee", True, device) != tuned


def test_configurations_survive_a_table() -> None:
    for dtype in ("float32", "float64"):
        for problem in (PROBLEM_58, UPSAMPLING):
            for config in candidates(problem, DTYPES[dtype], "auto", "ieee", False, H100):
                assert config_of(dataclasses.asdict(config)) == config
    with pytest.raises(ValueError, match="no configuration has the fields"):
        config_of({"tile": 3})
    fields = [tuple(field.name for field in dataclasses.fields(record)) for record in RECORDS]
    assert len(set(fields)) == len(RECORDS)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.id)
def test_pairs_of_outputs_and_taps_by_brute_force(case: Case) -> None:
    for axis in axes(case.problem()):
        if axis.input * axis.kernel > 10**5:
            continue
        count = sum(
            0 <= i * axis.stride + k * axis.dilation - axis.padding < axis.output
            for i in range(axis.input)
            for k in range(axis.kernel)
        )
        assert _cost.pairs(axis) == count


def test_maths_have_what_the_kernels_have() -> None:
    assert [(m.name, m.number, m.step_k, m.parts, m.terms) for m in MATHS.values()] == [
        ("float16", 0, 16, 1, 1),
        ("bfloat16", 1, 16, 1, 1),
        ("tf32", 2, 8, 1, 1),
        ("tf32x3", 3, 8, 2, 3),
        ("bf16x3", 4, 16, 2, 3),
        ("float64", 5, 4, 1, 1),
    ]
