"""Plans as data: grids, tiles and boxes within the limits of every device."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cupy_convt3d._dtypes import DTYPES as KERNEL_DTYPES
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_gather import (
    MAX_STAGE_TAPS,
    MAX_WIDTH_PHASES,
    STAGE_PAIRS,
    GatherConfig,
    can_have_whole_rows,
    choose_config,
    choose_stage,
    choose_tile,
    columns_of,
    plan_gather,
)
from cupy_convt3d._plan_gather import TILES as GATHER_TILES
from cupy_convt3d._plan_scatter import SHARED_LIMIT, plan_scatter
from cupy_convt3d._problem import make_problem
from tests.problems import DTYPES, EDGES, Case, case_of, load_cases

#: Shared memory that a block may have on every supported device (sm_86, 89 and 120 have least).
LEAST_SHARED = 99 * 1024

ALL_CASES = [
    *EDGES,
    *(case_of(e) for e in load_cases() if "out" in e and "output_size" not in e),
]


def options(plan: Plan, launch: int = 0) -> dict[str, int]:
    pairs = (option.removeprefix("-D").split("=") for option in plan.launches[launch].options)
    return {name: int(value) for name, value in pairs}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.id)
def test_launches_are_legal(case: Case, dtype: str) -> None:
    for planner in (plan_gather, plan_scatter):
        plan = planner(case.problem(), KERNEL_DTYPES[dtype], case.bias)
        for launch in plan.launches:
            assert 0 <= launch.grid < 2**31
            assert launch.block % 32 == 0
            assert 32 <= launch.block <= 256
            assert launch.shared_bytes <= SHARED_LIMIT < LEAST_SHARED - 16 * 1024
            assert launch.params.shape == (1,)
            assert not launch.params.flags.writeable
            assert all(0 <= int(d) < 2**63 for d in launch.params["tiles"])


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.id)
def test_scatter_covers_inputs_and_taps(case: Case) -> None:
    problem = case.problem()
    plan = plan_scatter(problem, KERNEL_DTYPES["float32"], case.bias)
    scatter = next(launch for launch in plan.launches if launch.kernel == "convt3d_scatter")
    axes = scatter.params["axis"][0]
    positions = options(plan, plan.launches.index(scatter))["CONVT3D_TILE_POSITIONS"]
    assert math.prod(int(a["tile"]) for a in axes) <= scatter.block * positions
    for axis, extent, kernel, output in zip(
        axes, problem.input, problem.kernel, problem.output, strict=True
    ):
        assert (axis["tiles"] - 1) * axis["tile"] < extent <= axis["tiles"] * axis["tile"]
        assert (axis["tap_slices"] - 1) * axis["tap_slice"] < kernel
        assert kernel <= axis["tap_slices"] * axis["tap_slice"]
        if scatter.params["owns_output"][0]:
            assert owned_outputs(axis, output) == list(range(output))


def owned_outputs(axis: object, output: int) -> list[int]:
    """Follow `outputs_of_axis` in the kernel: every output belongs to one block, within its box."""
    owned: list[int] = []
    tile, stride, padding = (int(axis[f]) for f in ("tile", "stride", "padding"))
    for index in range(int(axis["tiles"])):
        origin = index * tile * stride - padding
        begin = 0 if index == 0 else max(origin, 0)
        last = index + 1 == axis["tiles"]
        end = output if last else min(origin + tile * stride, output)
        assert end - begin <= int(axis["box"]["divisor"])
        owned += range(begin, end)
    return owned


def test_big_cases_use_64_bit_indices_when_they_must() -> None:
    big = {e["id"]: case_of(e) for e in load_cases() if e.get("big") and "out" in e}
    assert len(big) == 34
    for name, case in big.items():
        problem = case.problem()
        elements = max(math.prod(problem.x_shape), math.prod(problem.y_shape))
        plan = plan_gather(problem, KERNEL_DTYPES["float32"], case.bias)
        expected = 64 if elements >= 2**31 else 32
        assert options(plan)["CONVT3D_INDEX_BITS"] == expected, name


def test_grid_covers_more_samples_than_a_grid_axis_allows() -> None:
    problem = make_problem((70000, 1, 1, 1, 1), (1, 1, 1, 1, 1))
    plan = plan_gather(problem, KERNEL_DTYPES["float32"], False)
    assert plan.launches[0].grid == -(-70000 // 256)
    problem = make_problem((1, 70000, 1, 1, 1), (70000, 1, 1, 1, 1), groups=70000)
    assert plan_gather(problem, KERNEL_DTYPES["float32"], False).launches[0].grid == 70000


@pytest.mark.parametrize(
    ("out_channels", "rows", "expected"),
    [
        (1, 40, (1, 8)),
        (2, 40, (4, 8)),
        (4, 40, (4, 8)),
        (5, 40, (8, 8)),
        (16, 40, (8, 8)),
        (16, 4, (16, 4)),
        (16, 1, (16, 1)),
    ],
)
def test_gather_tile_fits_channels_and_rows(
    out_channels: int, rows: int, expected: tuple[int, int]
) -> None:
    problem = make_problem((1, 4, 1, rows, 40), (4, out_channels, 1, 3, 3), padding=(0, 1, 1))
    assert choose_tile(problem, KERNEL_DTYPES["float32"]) == expected


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.id)
def test_gather_stage_stays_within_the_kernels_arrays(case: Case) -> None:
    problem = case.problem()
    for whole_rows in (False, True)[: 1 + can_have_whole_rows(problem)]:
        config = GatherConfig(1, 1, whole_rows)
        (launch,) = plan_gather(problem, KERNEL_DTYPES["float32"], False, config=config).launches
        params = launch.params[0]
        width_phases = int(params["gather"]["width_phases"]["divisor"])
        unit = int(params["gather"]["unit_taps"]) * width_phases
        stage_taps = int(params["stage_taps"]["divisor"])
        assert 1 <= width_phases <= MAX_WIDTH_PHASES
        assert stage_taps == unit * params["gather"]["stage_units"]
        assert 1 <= stage_taps <= MAX_STAGE_TAPS
        assert 1 <= stage_taps * params["stage_channels"] <= STAGE_PAIRS


def test_order_of_a_gather_sum_follows_neither_batch_nor_tile() -> None:
    for case in ALL_CASES:
        problem = case.problem()
        other = replace(problem, batch=problem.batch + 7)
        assert choose_stage(problem) == choose_stage(other)
        assert columns_of(problem) == columns_of(other)


def test_gather_writes_whole_rows_where_memory_is_slower_than_products() -> None:
    few = make_problem((128, 3, 16, 32, 32), (3, 16, 3, 3, 3), stride=2, padding=1)
    many = make_problem((4, 32, 32, 64, 128), (32, 32, 3, 3, 3), stride=2, padding=1)
    # Every phase has as many taps: no lane waits.
    even = make_problem((4, 32, 32, 64, 128), (32, 32, 4, 4, 4), stride=2, padding=1)
    whole = [choose_config(p, KERNEL_DTYPES["float32"]).whole_rows for p in (few, many, even)]
    assert whole == [True, False, True]


def test_sums_of_a_gather_thread_fit_64_registers() -> None:
    for size, tiles in GATHER_TILES.items():
        assert all(co * positions * size <= 64 * 4 for co, positions in tiles)


def test_workspace_is_for_16_bit_scatters_with_atomics_alone() -> None:
    problem = make_problem((1, 4, 40, 40, 40), (4, 4, 3, 3, 3))
    for dtype in DTYPES:
        assert plan_gather(problem, KERNEL_DTYPES[dtype], True).workspace_bytes == 0
        plan = plan_scatter(problem, KERNEL_DTYPES[dtype], True)
        kernels = [launch.kernel for launch in plan.launches]
        if dtype in ("float16", "bfloat16"):
            assert plan.workspace_bytes == math.prod(problem.y_shape) * 4
            assert kernels == ["fill_bias", "convt3d_scatter", "finish_sums"]
        else:
            assert plan.workspace_bytes == 0
            assert kernels == ["fill_bias", "convt3d_scatter"]
