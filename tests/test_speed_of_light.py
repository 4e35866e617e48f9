"""The speed-of-light model: counts against brute force, rates against what NVIDIA publishes."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from benchmarks.pipe_model import (
    Window,
    dram_bytes,
    read_counters,
    read_window,
    tail_factor,
    unique_bytes_of_grid,
    unit_times,
    useful_products,
)
from benchmarks.sampled_counters import Choice, array_bytes, collect, sample_size, tiles_of, window
from benchmarks.speed_of_light import distinct, main
from benchmarks.workloads import LEVEL_1, LEVEL_2, NNUNET, WORKLOADS, Workload, select
from cupy_convt3d._phase import axes
from cupy_convt3d._problem import Problem
from cupy_convt3d._unit_rates import A100, CARDS, H100_SXM, H200, RTX_4090, SECTOR, UnitRates
from tests.problems import EDGES, Case, case_of, drawn_cases, load_cases

#: GFLOP of the KernelBench problems of level 1, from the table the project was planned with.
LEVEL_1_GFLOP = {58: 56.4, 61: 260.9, 68: 1288, 70: 440, 72: 5.5, 73: 55.9, 77: 26.6}


def count_products(problem: Problem) -> int:
    """Count by trying every input, tap and output of each axis."""
    total = problem.batch * problem.in_channels * problem.out_channels_per_group
    for axis in axes(problem):
        total *= sum(
            o + axis.padding == i * axis.stride + k * axis.dilation
            for i, k, o in itertools.product(
                range(axis.input), range(axis.kernel), range(axis.output)
            )
        )
    return total


@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_useful_products_of_edges(case: Case) -> None:
    assert useful_products(case.problem()) == count_products(case.problem())


@given(drawn_cases())
@settings(deadline=None)
def test_useful_products_of_drawn_problems(case: Case) -> None:
    assert useful_products(case.problem()) == count_products(case.problem())


@pytest.mark.parametrize(("number", "gflop"), LEVEL_1_GFLOP.items())
def test_useful_products_of_kernelbench(number: int, gflop: float) -> None:
    (workload,) = select([f"kb1-{number}"])
    assert 2 * useful_products(workload.problem()) / 1e9 == pytest.approx(gflop, rel=0.01)


@pytest.mark.parametrize(
    ("card", "kind", "teraflops"),
    [
        (H100_SXM, "f32", 66.9),
        (H100_SXM, "f64", 33.5),
        (A100, "f32", 19.5),
        (A100, "f64", 9.7),
        (RTX_4090, "f32", 82.6),
        (RTX_4090, "f64", 1.29),
    ],
    ids=str,
)
def test_published_fma_peaks(card: UnitRates, kind: str, teraflops: float) -> None:
    assert 2 * card.fma_per_second(kind) / 1e12 == pytest.approx(teraflops, rel=0.01)


@pytest.mark.parametrize(
    ("card", "kind", "teraflops"),
    [
        (H100_SXM, "tf32", 0.62 * 494.7),
        (H100_SXM, "bf16", 0.62 * 989.4),
        (H100_SXM, "f64", 66.9),
        (A100, "tf32", 156),
        (A100, "f16", 312),
        (A100, "f64", 19.5),
        (RTX_4090, "tf32", 82.6),
        (RTX_4090, "f16", 165.2),
    ],
    ids=str,
)
def test_published_tensor_peaks(card: UnitRates, kind: str, teraflops: float) -> None:
    assert 2 * card.mma_per_second(kind) / 1e12 == pytest.approx(teraflops, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "teraflops"), [("tf32", 494.7), ("f16", 989.4), ("bf16", 989.4)], ids=str
)
def test_wgmma_reaches_95_percent_of_the_published_peak(kind: str, teraflops: float) -> None:
    rate = 2 * H100_SXM.wgmma_per_second(kind) / 1e12
    assert rate == pytest.approx(0.95 * teraflops, rel=0.001)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_hopper_alone_has_wgmma(card: UnitRates) -> None:
    for kind in ("tf32", "f16", "bf16"):
        assert (card.wgmma_per_second(kind) > 0) == (card.capability == 90)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_rates_are_consistent(card: UnitRates) -> None:
    assert card.dram_bytes_per_second < card.l2_bytes_per_second
    assert card.l2_bytes_per_second < 128 * card.shared_wavefronts_per_second
    assert card.mma_per_second("f16") == card.mma_per_second("bf16")
    assert card.mma_per_second("f16") == pytest.approx(2 * card.mma_per_second("tf32"))
    assert card.mma_per_second("f64", "m8n8k4") <= card.mma_per_second("f64", "m16n8k4")
    assert card.shared_per_block < card.shared_per_multiprocessor
    assert card.issues_per_second == 4 * card.shared_wavefronts_per_second


def test_h200_is_an_h100_with_other_memory() -> None:
    assert replace(H200, name=H100_SXM.name, dram_bytes_per_second=3.35e12) == H100_SXM


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # 64 warps
        (256, 128, 0, 2),  # all registers
        (256, 129, 0, 1),
        (32, 16, 0, 32),  # the most blocks
        (128, 32, 75 * 1024, 3),  # 76 KiB each, with what the driver keeps
        (128, 32, 113 * 1024, 2),
        (128, 32, 227 * 1024, 1),
        (128, 32, 227 * 1024 + 1, 0),
    ],
)
def test_blocks_per_multiprocessor(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert H100_SXM.blocks_per_multiprocessor(threads, registers, shared) == blocks


def record(**changes: Any) -> dict[str, Any]:
    """Return a line of counters as a simulated device writes it, of 2 blocks out of 10."""
    nothing = {"requests": 0, "sectors": 0, "bytes_asked": 0}
    no_shared = {"wavefronts": 0, "ideal_wavefronts": 0}
    return {
        "kernel": "k",
        "blocks_run": 2,
        "blocks_in_grid": 10,
        "warp_instructions": 1000,
        "active_lanes": 0.5,
        "warp_instructions_by_class": {"fma32": 100, "add32": 20, "mul32": 30, "fp64": 7},
        "mma": {
            "mma.m16n8k8.row.col.f32.tf32.tf32.f32": {"flops": 4096},
            "mma.m16n8k16.row.col.f32.bf16.bf16.f32": {"flops": 8192},
        },
        "global": {
            "load": {"requests": 10, "sectors": 40, "bytes_asked": 640},
            "store": {"requests": 4, "sectors": 16, "bytes_asked": 512},
            "atomic": {"requests": 1, "sectors": 8, "bytes_asked": 256},
            "async_copy": nothing | {"sectors": 20, "bytes_asked": 640},
            "unique_sectors": 60,
            "unique_load_sectors": 44,
        },
        "shared": {
            "load": {"wavefronts": 50, "ideal_wavefronts": 40},
            "store": no_shared,
            "atomic": no_shared,
        },
        "local": {"bytes": 0},
        **changes,
    }


def test_counters_are_scaled_to_the_grid() -> None:
    counters = read_counters(record())
    assert counters.tensor == {("m16n8k8", "tf32"): 5 * 2048, ("m16n8k16", "bf16"): 5 * 4096}
    assert counters.products_f32 == 5 * 32 * 100
    assert counters.fma_f32 == 5 * 32 * 150
    assert counters.fma_f64 == 5 * 32 * 7
    assert counters.warp_instructions == 5000
    assert counters.shared_wavefronts == 250
    assert (counters.load_sectors, counters.async_sectors) == (200, 100)
    assert counters.load_bytes_asked == 5 * 640


def wgmma_record() -> dict[str, Any]:
    """Return counters of one instruction of each shape: four warps, each with a quarter of it."""
    return record(
        blocks_in_grid=2,
        mma={
            "wgmma.m64n128k16.f32.bf16.bf16": {
                "warp_instructions": 4,
                "flops": 4 * 2 * 16 * 128 * 16,
            },
            "wgmma.m64n32k8.f32.tf32.tf32": {"warp_instructions": 4, "flops": 4 * 2 * 16 * 32 * 8},
        },
    )


def test_wgmma_reads_b_from_shared_memory() -> None:
    counters = read_counters(wgmma_record())
    assert counters.tensor == {
        ("m64n128k16", "bf16"): 64 * 128 * 16,
        ("m64n32k8", "tf32"): 64 * 32 * 8,
    }
    reads = 128 * 16 * 2 / 128 + 32 * 8 * 4 / 128
    assert counters.shared_wavefronts == 50 + reads
    assert counters.shared_ideal_wavefronts == 40 + reads


def test_wgmma_has_a_rate_of_its_own() -> None:
    card = replace(
        H100_SXM, multiprocessors=1, tensor_clock_ghz=1.0, wgmma_f16=2048, wgmma_tf32=1024
    )
    times = unit_times(read_counters(wgmma_record()), [Window(1, 50), Window(2, 80)], 2, 0, card)
    assert 1e3 * times.tensor["m64n128k16 bf16"] == pytest.approx(64)
    assert 1e3 * times.tensor["m64n32k8 tf32"] == pytest.approx(16)


def test_other_instructions_have_no_rate() -> None:
    line = record(mma={"wmma.m16n16k16.row.col.f32.f32": {"flops": 1}})
    with pytest.raises(ValueError, match="wmma"):
        read_counters(line)


def test_unit_times() -> None:
    # One multiprocessor at 1 GHz that does one of everything per clock.
    card = replace(
        H100_SXM,
        multiprocessors=1,
        clock_ghz=1.0,
        tensor_clock_ghz=1.0,
        fma_f32=32,
        fma_f64=32,
        mma_tf32=2048,
        mma_f16=4096,
        l2_bytes_per_second=SECTOR * 1e9,
        dram_bytes_per_second=SECTOR * 1e9,
        l2_bytes=0,
    )
    windows = [Window(2, 50), Window(4, 80)]
    times = unit_times(read_counters(record()), windows, 10, SECTOR * 100, card)
    ns = {unit: 1e3 * us for unit, us in times.units.items()}
    assert ns["tensor"] == pytest.approx(5 + 5)
    assert ns["fma"] == pytest.approx(5 * 150)
    assert ns["fp64"] == pytest.approx(5 * 7)
    # 50 wavefronts of shared memory, 40 + 16 sectors through L1 and 20 written by cp.async.
    assert ns["shared/L1"] == pytest.approx(5 * (50 + 14 + 5))
    assert ns["issue"] == pytest.approx(5 * 250)
    assert ns["L2"] == pytest.approx(5 * (44 + 16 + 8))
    assert 1e3 * times.l2_without_l1 == pytest.approx(5 * (40 + 20 + 16 + 8))
    # 80 sectors of 4 blocks and 15 more for each of 6 others.
    assert ns["DRAM"] == pytest.approx(80 + 15 * 6)
    assert times.limit == "issue"
    assert times.microseconds == times.issue


def test_dram_is_never_below_compulsory() -> None:
    small = replace(H100_SXM, l2_bytes=1000)
    assert dram_bytes(3000, 2000, small) == 3000
    assert dram_bytes(1500, 2000, small) == 2000
    assert dram_bytes(3000, 900, small) == 900


def test_unique_bytes_of_a_grid_that_ran_whole() -> None:
    assert unique_bytes_of_grid([Window(2, 15), Window(3, 20)], 3) == 20 * SECTOR
    # A grid of fewer blocks than half a window runs whole both times.
    assert unique_bytes_of_grid([Window(1, 20), Window(1, 20)], 1) == 20 * SECTOR


def test_windows_are_read() -> None:
    assert read_window(record()) == Window(2, 60)


def test_tail_factor() -> None:
    assert tail_factor(132 * 4, 132, 2) == 1
    assert tail_factor(66, 132, 1) == 2
    assert tail_factor(133, 132, 2) == 2 * 132 / 133
    assert tail_factor(132 * 2 + 1, 132, 2) == 2 * 264 / 265


def test_workloads_are_those_of_cases() -> None:
    by_name = {workload.name: workload for workload in WORKLOADS}
    assert len(by_name) == len(WORKLOADS)
    seen = set()
    for entry in load_cases():
        if not entry["id"].startswith("kb"):
            continue
        case, workload = case_of(entry), by_name[entry["id"]]
        assert workload.problem() == case.problem()
        assert workload.bias == case.bias
        assert workload.problem().y_shape == tuple(entry["out"])
        seen.add(entry["id"])
    assert len(LEVEL_1) == 7
    assert len(LEVEL_2) == 19
    # The file lists 58, 60 and 96 of level 2 in the entry of 50.
    assert {w.name for w in LEVEL_1 + LEVEL_2} - seen == {"kb2-58", "kb2-60", "kb2-96"}


@pytest.mark.parametrize("workload", NNUNET, ids=lambda workload: workload.name)
def test_decoder_levels_join(workload: Workload) -> None:
    assert workload.weight[2:] == workload.stride
    assert workload.x[1] == workload.weight[0]
    if workload.stride == (2, 2, 2) and workload.x[2] < 64:
        (above,) = (
            w for w in NNUNET if w.stride == (2, 2, 2) and w.x[2:] == workload.problem().output
        )
        assert above.x[1] == workload.weight[1]


def test_selection() -> None:
    assert [w.name for w in select(["kb2-3"])] == ["kb2-3"]
    assert select(["kb1"]) == LEVEL_1
    assert select([]) == WORKLOADS
    with pytest.raises(ValueError, match="kb3"):
        select(["kb3"])
    assert sorted(distinct(LEVEL_2).values(), key=len)[-1] == [
        "kb2-50",
        "kb2-58",
        "kb2-60",
        "kb2-96",
    ]


def test_workloads_survive_json() -> None:
    for workload in WORKLOADS:
        assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


def test_windows_have_one_tile_a_block() -> None:
    (workload,) = select(["kb1-58"])
    (launch,) = Choice(algorithm="gather").plan(workload).launches
    first = window(launch, 8)
    assert (first.grid, int(first.params["tiles"][0])) == (8, 8)
    assert tiles_of(launch) == int(launch.params["tiles"][0])
    assert window(launch, 10**6) is launch


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_sample_sizes(workload: Workload) -> None:
    size = sample_size(workload, Choice().plan(workload))
    assert 64 <= size <= 1024
    assert math.log2(size).is_integer()


def test_a_device_without_counters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMGPU", raising=False)
    with pytest.raises(SystemExit, match="simulated CUDA device"):
        main(["kb1-58"])


@pytest.mark.simulated
def test_counters_of_a_row() -> None:
    # Four blocks of 256 threads with one output each, one tap, one channel: a copy of 4096 bytes.
    workload = Workload("row", (1, 1, 1, 1, 1024), (1, 1, 1, 1, 1), bias=False)
    (found,) = collect([workload], Choice(algorithm="gather"), 4)
    counters = read_counters(found["counters"])
    assert (counters.blocks, counters.blocks_run) == (4, 4)
    assert counters.products_f32 == useful_products(workload.problem()) == 1024
    assert counters.store_sectors == 4096 / SECTOR
    assert counters.store_bytes_asked == 4096
    # x, and the sector of the weight.
    assert counters.unique_load_sectors == 4096 / SECTOR + 1
    assert not counters.tensor


@pytest.mark.simulated
def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert main(["nnunet-122-320to320", "--blocks", "4", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "modelled" in printed.splitlines()[0]
    for card in ("H100 SXM", "A100", "RTX 4090"):
        assert f"modelled us, {card}" in printed
    results = json.loads(path.read_text(encoding="utf-8"))["workloads"]
    assert [result["choice"]["card"] for result in results] == ["h100", "a100", "rtx4090"]
    for result in results:
        assert result["useful_products"] == 2 * 320 * 320 * 4 * 8 * 8
        for launch in result["launches"]:
            assert launch["issued_products"] >= 0
            card = launch["modelled"]
            assert card["us"] == max(card["units"].values())
            assert 0 < card["occupancy"] <= 1


def test_each_card_has_a_plan_that_it_can_run() -> None:
    (workload,) = select(["kb1-58"])
    for name, rates in CARDS.items():
        plan = Choice(card=name, precision="bf16x3").plan(workload)
        assert all(launch.runs_on(rates.capability) for launch in plan.launches)
        assert {launch.architecture for launch in plan.launches} == (
            {"90a"} if rates.capability == 90 else {""}
        )


@pytest.mark.parametrize("operation", ["forward", "grad_input", "grad_weight"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_workload_has_a_plan_of_each_operation(workload: Workload, operation: str) -> None:
    choice = Choice(operation=operation, precision="bf16x3")
    plan = choice.plan(workload)
    sizes = array_bytes(workload, plan, choice)
    for launch in (*plan.packing, *plan.launches):
        assert set(launch.roles) <= set(sizes)
    assert plan.deterministic


@pytest.mark.simulated
@pytest.mark.parametrize("operation", ["grad_input", "grad_weight"])
def test_report_of_gradients(
    operation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    arguments = ["kb1-72", "--operation", operation, "--blocks", "8", "--card", "h100"]
    assert main([*arguments, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"kb1-72: {operation}, implicit_gemm" in printed
    # Published times are those of the forward operation.
    assert "PyTorch" not in printed
    (result,) = json.loads(path.read_text(encoding="utf-8"))["workloads"]
    assert result["modelled_us"][0] > 0
