"""The checks catch what they are there for: each planted bug makes the kernels' own tests fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._loader import kernel_directory
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._plan_scatter import plan_scatter
from tests.executors import run_on_host
from tests.host.executor import HostExecutor
from tests.problems import Case, exact_result, integer_data

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Bug:
    """A change of one kernel, and the algorithm that runs into it."""

    id: str
    file: str
    original: str
    planted: str
    algorithm: str


OFF_BY_ONE = Bug(
    "off-by-one",
    "convt3d_gather.cu",
    "+ i * row_step < p.axis[1].output) column.rows = i + 1;",
    "+ i * row_step <= p.axis[1].output) column.rows = i + 1;",
    "gather",
)
MISSING_BARRIER = Bug(
    "missing-barrier",
    "convt3d_gather.cu",
    "__syncthreads();  // the stage is complete",
    "",
    "gather",
)
MISSING_ATOMIC = Bug(
    "missing-atomic",
    "element.cuh",
    "  atomicAdd(target, value);",
    "  *target = *target + value;",
    "scatter",
)
UNCLEARED_SUMS = Bug(
    "uncleared-sums",
    "convt3d_scatter.cu",
    "      sums[e] = EmptySum<Accumulator>::value();",
    "",
    "scatter",
)

#: The scatter cuts this input, so that neighbouring blocks meet in an output.
CASE = Case("planted", (1, 2, 9, 9, 40), (2, 4, 3, 3, 3))

DEVICE_PROGRAM = """
import sys
from pathlib import Path
import cupy
from cupy_convt3d import _loader
from tests.problems import exact_result, integer_data
from tests.test_planted_bugs import CASE
from cupy_convt3d import conv_transpose3d
from cupy_convt3d._plan_gather import GatherConfig
import numpy as np

cupy.cuda.set_allocator(None)
folder = Path(sys.argv[1])
_loader.kernel_directory = lambda: folder
arrays = integer_data(CASE, "float32")
x, weight, _ = (None if a is None else cupy.asarray(a) for a in arrays)
# Columns of 8 rows, as on the host.
config = GatherConfig(4, 8, False) if sys.argv[2] == "gather" else None
y = conv_transpose3d(x, weight, algorithm=sys.argv[2], config=config)
np.testing.assert_array_equal(y.get(), exact_result(CASE, arrays))
print("no finding")
"""


def plant(bug: Bug, folder: Path) -> Path:
    target = folder / "kernels_cu"
    shutil.copytree(kernel_directory(), target)
    path = target / bug.file
    text = path.read_text(encoding="utf-8")
    assert text.count(bug.original) == 1, f"{bug.file} no longer has: {bug.original}"
    path.write_text(text.replace(bug.original, bug.planted), encoding="utf-8")
    return target


def run_planted_on_host(bug: Bug, folder: Path, order: str) -> np.ndarray:
    planner = {"gather": plan_gather, "scatter": plan_scatter}[bug.algorithm]
    plan = planner(CASE.problem(), DTYPES["float32"], False)
    executor = HostExecutor(plant(bug, folder), folder / "cache", order=order)
    return run_on_host(executor, plan, CASE.problem(), integer_data(CASE, "float32"))


def test_off_by_one_is_caught_on_the_host(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="convt3d_gather"):
        run_planted_on_host(OFF_BY_ONE, tmp_path, "forward")


@pytest.mark.parametrize("bug", [MISSING_BARRIER, UNCLEARED_SUMS], ids=lambda bug: bug.id)
def test_wrong_results_are_caught_on_the_host(bug: Bug, tmp_path: Path) -> None:
    expected = exact_result(CASE, integer_data(CASE, "float32"))
    # Threads run one after the other here: the one that runs first finds no other's work done.
    y = run_planted_on_host(bug, tmp_path, "forward")
    assert not np.array_equal(y, expected)


@pytest.mark.simulated
@pytest.mark.parametrize(
    ("bug", "finding"),
    [
        pytest.param(OFF_BY_ONE, "memcheck|racecheck", id="off-by-one"),
        pytest.param(MISSING_BARRIER, "racecheck|initcheck", id="missing-barrier"),
        pytest.param(MISSING_ATOMIC, "racecheck", id="missing-atomic"),
        pytest.param(UNCLEARED_SUMS, "initcheck", id="uncleared-sums"),
    ],
)
def test_bugs_are_caught_on_a_simulated_device(bug: Bug, finding: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEVICE_PROGRAM, str(plant(bug, tmp_path)), bug.algorithm]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    output = result.stdout + result.stderr
    assert result.returncode != 0
    assert "no finding" not in output
    assert re.search(finding, output), output


@pytest.mark.simulated
def test_without_a_bug_there_is_no_finding(tmp_path: Path) -> None:
    for algorithm in ("gather", "scatter"):
        command = [sys.executable, "-c", DEVICE_PROGRAM, str(kernel_directory()), algorithm]
        result = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
        )
        assert result.stdout == "no finding\n"
