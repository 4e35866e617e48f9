"""What ptxas reports of a kernel, and what is a fault."""

from __future__ import annotations

import dataclasses

import pytest

from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._problem import make_problem

#: Two wgmma instructions; between them a place for code.
HOPPER_KERNEL = r"""
extern "C" __global__ void hopper(float* y, unsigned long long matrix) {
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int i = 0; i < 2; ++i) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(matrix));
    BETWEEN
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


@pytest.mark.cuda
@pytest.mark.parametrize("between", ["", "d[0] += 1;"], ids=["asynchronous", "serialized"])
def test_serialized_wgmma_is_a_fault(between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import kernel_resources

    source = HOPPER_KERNEL.replace("BETWEEN", between)
    monkeypatch.setattr(kernel_resources, "kernel_source", lambda kernel: source)
    usage = kernel_resources.compile_variant("hopper", (), "90a")
    assert 8 <= usage.registers <= 64
    problem = make_problem((1, 2, 4, 4, 4), (2, 4, 3, 3, 3))
    (launch,) = plan_gather(problem, DTYPES["float32"], False).launches
    found = kernel_resources.faults(launch, usage, 90)
    assert len(found) == bool(between)
    assert all("wgmma.mma_async instructions are serialized due to" in fault for fault in found)


def test_launches_run_on_their_architecture() -> None:
    problem = make_problem((1, 2, 4, 4, 4), (2, 4, 3, 3, 3))
    (launch,) = plan_gather(problem, DTYPES["float32"], False).launches
    hopper = dataclasses.replace(launch, architecture="90a")
    assert [launch.runs_on(capability) for capability in (80, 90, 100)] == [True, True, True]
    assert [hopper.runs_on(capability) for capability in (80, 90, 100)] == [False, True, False]
