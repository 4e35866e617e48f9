"""Each example runs as a user would run it, and what it prints is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest
import torch

from tests.conftest import DEVICES

ROOT = Path(__file__).resolve().parents[1]
RAN = r"CUDA kernel on \S.*" if DEVICES else "NumPy path, no CUDA device found"


def run_example(folder: Path, *command: str) -> list[str]:
    """Return the lines that a Python command prints, run from an empty folder."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def example(name: str) -> str:
    return str(ROOT / "examples" / name)


def test_quickstart(tmp_path: Path) -> None:
    result, check = run_example(tmp_path, example("quickstart.py"))
    assert re.fullmatch(rf"{RAN}: float32 \(2, 8, 4, 10, 16\)", result)
    assert check == "agrees with torch to 1e-5: True"


def test_quickstart_without_torch(tmp_path: Path) -> None:
    path = example("quickstart.py")
    without_torch = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({path!r})"
    result, check = run_example(tmp_path, "-c", without_torch)
    assert re.fullmatch(rf"{RAN}: float32 \(2, 8, 4, 10, 16\)", result)
    assert check == "one output agrees with its definition to 1e-5: True"


def test_torch_dlpack(tmp_path: Path) -> None:
    expected = [
        "CPU: torch.float32 (2, 8, 10, 7, 14), a Tensor",
        "CPU: agrees with torch to 1e-5: True",
        "CPU: gradients agree with torch's to 1e-4: True",
        "CPU: the result is in the memory given as out: True",
    ]
    if not DEVICES:
        expected += ["CUDA, CuPy: not run, no CuPy with a CUDA device found"]
    elif torch.cuda.is_available():
        expected += [
            "CUDA: torch.float32 (2, 8, 10, 7, 14), a Tensor on cuda:0",
            "CUDA: agrees with torch to 1e-5, on a stream of its own: True",
            "CUDA: torch allocated memory for the result, none for copies: True",
            "CuPy: array to torch tensor and back by DLPack, in the same memory: True",
            "CuPy: agrees with torch to 1e-5: True",
        ]
    else:
        expected += [
            "CUDA: not run, torch finds no CUDA device",
            "CuPy: no DLPack, torch finds no CUDA device; copied to a CPU tensor",
            "CuPy: agrees with torch to 1e-5: True",
        ]
    assert run_example(tmp_path, example("torch_dlpack.py")) == expected


@pytest.mark.parametrize("arguments", [[], ["picture.png"]])
def test_upsample_volume(tmp_path: Path, arguments: list[str]) -> None:
    ran, difference, picture = run_example(tmp_path, example("upsample_volume.py"), *arguments)
    assert re.fullmatch(rf"{RAN}: \(33, 41, 25\) to \(66, 82, 50\)", ran)
    match = re.fullmatch(
        r"largest difference to scipy.ndimage.zoom: (\S+) of the intensity range", difference
    )
    assert match
    assert float(match[1]) < 1e-6
    name = arguments[0] if arguments else "upsample_volume.png"
    assert picture == f"picture: {name}"
    pixels = matplotlib.image.imread(tmp_path / name)
    height, width, channels = pixels.shape
    assert (channels, min(height, width) > 500) == (4, True)
    # Both halves hold panels: neither volume was left out.
    assert pixels[: height // 2, :, :3].std() > 0.1
    assert pixels[height // 2 :, :, :3].std() > 0.1


def test_train_super_resolution(tmp_path: Path) -> None:
    command = [example("train_super_resolution.py"), "--steps", "8", "picture.png"]
    training, *errors, picture = run_example(tmp_path, *command)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(rf"{device}: loss (\S+) in step 1, (\S+) in step 8", training)
    assert match
    assert float(match[2]) < float(match[1]) < 0.01
    for line, name in zip(errors, ("trilinear interpolation", "network"), strict=True):
        match = re.fullmatch(
            rf"front half, {name}: root mean square error (\S+) of the largest intensity", line
        )
        assert match
        assert 0.03 < float(match[1]) < 0.1
    assert picture == "picture: picture.png"
    pixels = matplotlib.image.imread(tmp_path / "picture.png")
    height, width, channels = pixels.shape
    assert (channels, min(height, width) > 500) == (4, True)
    # Above the curve, below the volumes.
    assert pixels[: height // 3, :, :3].std() > 0.01
    assert pixels[height // 2 :, :, :3].std() > 0.1


def test_compare_algorithms(tmp_path: Path) -> None:
    lines = run_example(tmp_path, example("compare_algorithms.py"))
    reports = {}
    for line in lines[-2:] if DEVICES else lines[-1:]:
        match = re.fullmatch(r"(\w+): (.*), at most (\S+) from float64", line)
        assert match, line
        assert 0 < float(match[3]) < 5e-5
        reports[match[1]] = match[2]
    if not DEVICES:
        assert lines[0] == "NumPy path, no CUDA device found: every algorithm is this one"
        assert reports == {"auto": "the same bits in 5 runs"}
        return
    assert reports["gather"] == "the same bits in 5 runs"
    # Whether atomics differ in 5 runs is chance; if they do, then by last bits.
    match = re.fullmatch(r"5 runs differ by up to (\S+)", reports["scatter"])
    if match:
        assert 0 < float(match[1]) < 5e-5
    else:
        assert reports["scatter"] == "the same bits in 5 runs"
