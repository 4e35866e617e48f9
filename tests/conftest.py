"""Which tests can run here: those for a CUDA device are deselected, and counted, without one."""

from __future__ import annotations

import os

import pytest

from tests.host.compiler import HostCompilerError, find_compiler
from tests.host.executor import HostExecutor
from tests.variants import kernel_variants


def _find_devices() -> tuple[int, str]:
    """Return the number of CUDA devices that CuPy can use, and why it is 0."""
    try:
        import cupy
    except ImportError:
        return 0, "CuPy is not installed"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return 0, f"CuPy finds no device ({error})"
    return count, "" if count else "CuPy finds no device"


DEVICES, REASON = _find_devices()
if DEVICES:
    import cupy

#: The simulated device checks every access; set by its launcher.
SIMULATED = DEVICES > 0 and os.environ.get("SIMGPU") == "1"


def _capability() -> str:
    return str(cupy.cuda.Device().compute_capability) if DEVICES else ""


#: wgmma is an instruction of compute capability 9.0 alone.
_NEEDS = {
    "hopper": (_capability() == "90", REASON or "the device has another compute capability"),
    "cuda": (DEVICES >= 1, REASON),
    "two_devices": (DEVICES >= 2, REASON or "CuPy finds one device"),
    "simulated": (SIMULATED, "the device is real" if DEVICES else REASON),
}
_deselected: dict[str, int] = {}

if DEVICES:
    # One allocation per array: a pool would hide an access beyond an array inside its neighbour.
    cupy.cuda.set_allocator(None)


def pytest_sessionstart() -> None:
    """Say once that the compiler is missing, rather than in every test of a kernel."""
    try:
        find_compiler()
    except HostCompilerError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, dropped = [], []
    for item in items:
        missing = [
            mark for mark, (met, _) in _NEEDS.items() if not met and item.get_closest_marker(mark)
        ]
        if missing:
            dropped.append(item)
            _deselected[missing[-1]] = _deselected.get(missing[-1], 0) + 1
        else:
            kept.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_report_collectionfinish() -> list[str]:
    names = {
        "hopper": "a CUDA device of compute capability 9.0",
        "cuda": "a CUDA device",
        "two_devices": "two CUDA devices",
        "simulated": "a simulated CUDA device",
    }
    return [
        f"deselected {count} tests that need {names[mark]}: {_NEEDS[mark][1]}"
        for mark, count in _deselected.items()
    ]


@pytest.fixture(scope="session")
def host() -> HostExecutor:
    """Return the executor that runs the kernels as C++, with every variant compiled."""
    executor = HostExecutor()
    executor.build_all(kernel_variants())
    return executor
