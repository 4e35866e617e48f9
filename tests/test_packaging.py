"""The wheel and the sdist carry the CUDA sources, and the package finds them there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cupy_convt3d import __version__, _loader
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan_gather import plan_gather
from tests.executors import run_on_host
from tests.host.executor import HostExecutor
from tests.problems import Case, exact_result, integer_data

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import sys
import numpy as np
import cupy_convt3d
from cupy_convt3d import _loader
print(cupy_convt3d.__file__)
print(_loader.kernel_directory())
print(_loader.source_hash())
y = cupy_convt3d.conv_transpose3d(np.ones((1, 1, 1, 1, 2)), np.ones((1, 1, 1, 1, 2)))
print(y.ravel().tolist())
print("cupy" in sys.modules, "torch" in sys.modules)
"""

DEVICE_PROGRAM = """
import cupy
import cupy_convt3d
x = cupy.arange(1, 3, dtype=cupy.float32).reshape(1, 1, 1, 1, 2)
print(cupy_convt3d.conv_transpose3d(x, x).ravel().tolist())
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel and an sdist of the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def run(program: str, package_parent: Path) -> list[str]:
    """Run a program that imports the package from a folder, away from the checkout."""
    path = os.pathsep.join([str(package_parent), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=package_parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def wheel_contents(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the contents of the wheel, which is how a wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    (wheel,) = distributions.glob("*.whl")
    assert wheel.name == f"cupy_convt3d-{__version__}-py3-none-any.whl"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_wheel(wheel_contents: Path) -> None:
    package = wheel_contents / "cupy_convt3d"
    lines = run(PROGRAM, wheel_contents)
    assert lines == [
        str(package / "__init__.py"),
        str(package / "kernels_cu"),
        _loader.source_hash(),
        "[1.0, 2.0, 1.0]",
        # Importing the package and using NumPy arrays imports neither.
        "False False",
    ]
    assert (package / "py.typed").is_file()
    names = {path.name for path in wheel_contents.iterdir()}
    assert names == {"cupy_convt3d", f"cupy_convt3d-{__version__}.dist-info"}


def test_a_kernel_of_the_wheel_runs_on_the_host(wheel_contents: Path, tmp_path: Path) -> None:
    case = Case("wheel", (1, 2, 2, 3, 4), (2, 3, 2, 2, 2), stride=2)
    executor = HostExecutor(wheel_contents / "cupy_convt3d" / "kernels_cu", tmp_path)
    plan = plan_gather(case.problem(), DTYPES["float32"], False)
    arrays = integer_data(case, "float32")
    y = run_on_host(executor, plan, case.problem(), arrays)
    np.testing.assert_array_equal(y, exact_result(case, arrays))


@pytest.mark.cuda
def test_a_kernel_of_the_wheel_runs_on_the_device(wheel_contents: Path) -> None:
    assert run(DEVICE_PROGRAM, wheel_contents) == ["[1.0, 4.0, 4.0]"]


def test_sdist(distributions: Path, tmp_path: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / f"cupy_convt3d-{__version__}"
    for part in ("LICENSE", "README.md", "tests/cases.jsonl", "examples/quickstart.py"):
        assert (folder / part).is_file(), part
    lines = run(PROGRAM, folder)
    assert lines[1:4] == [
        str(folder / "kernels_cu"),
        _loader.source_hash(),
        "[1.0, 2.0, 1.0]",
    ]
