"""Tables of measured choices: where they are, what they may hold, what is found in them."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_workload import load_workload
from benchmarks.tuning_table import update_table
from cupy_convt3d import _tuning
from cupy_convt3d._problem import make_problem

ROOT = Path(__file__).resolve().parents[1]
DEVICE = "NVIDIA H100 80GB HBM3"
PROBLEM = make_problem((2, 4, 5, 6, 7), (4, 3, 2, 3, 1), stride=2, padding=(0, 1, 0), groups=2)
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    def path_there(name: str) -> Path:
        return table_path(name, tmp_path)

    table_path = _tuning.table_path
    monkeypatch.setattr(_tuning, "table_path", path_there)
    _tuning._choices.cache_clear()
    yield tmp_path
    _tuning._choices.cache_clear()


def add(directory: Path, choices: dict[str, dict[str, Any]]) -> Path:
    path = _tuning.table_path(DEVICE)
    assert path.parent == directory
    update_table(path, DEVICE, NOW, {"cupy": "14.2.0"}, choices)
    return path


def test_a_device_without_a_table_has_no_choices(directory: Path) -> None:
    assert _tuning.tuned_config(DEVICE, PROBLEM, "float32", "ieee") is None


def test_a_choice_is_found_for_its_signature_alone(directory: Path) -> None:
    path = add(directory, {_tuning.signature(PROBLEM, "float32", "ieee"): {"tile": 4}})
    assert path.name == "NVIDIA_H100_80GB_HBM3.json"
    found = _tuning.tuned_config(DEVICE, PROBLEM, "float32", "ieee")
    assert found == {"tile": 4}
    found["tile"] = 8
    assert _tuning.tuned_config(DEVICE, PROBLEM, "float32", "ieee") == {"tile": 4}
    assert _tuning.tuned_config(DEVICE, PROBLEM, "float32", "bf16x3") is None
    assert _tuning.tuned_config(DEVICE, PROBLEM, "float16", "ieee") is None
    assert _tuning.tuned_config("another", PROBLEM, "float32", "ieee") is None
    larger = dataclasses.replace(PROBLEM, batch=3)
    assert _tuning.tuned_config(DEVICE, larger, "float32", "ieee") is None


def test_the_file_is_read_once(directory: Path) -> None:
    path = add(directory, {_tuning.signature(PROBLEM, "float32", "ieee"): {"tile": 4}})
    assert _tuning.tuned_config(DEVICE, PROBLEM, "float32", "ieee") == {"tile": 4}
    path.unlink()
    assert _tuning.tuned_config(DEVICE, PROBLEM, "float32", "ieee") == {"tile": 4}


def test_signatures_are_readable_and_differ_in_every_setting() -> None:
    assert _tuning.signature(PROBLEM, "float32", "ieee") == (
        "float32 ieee x=2x4x5x6x7 weight=4x3x2x3x1 stride=2x2x2 padding=0x1x0 "
        "output_padding=0x0x0 dilation=1x1x1 groups=2"
    )
    x, weight = (2, 4, 5, 6, 7), (4, 3, 2, 3, 1)
    problems = [
        make_problem(x, weight, **settings)
        for settings in (
            {},
            {"stride": (1, 1, 2)},
            {"padding": (1, 0, 0)},
            {"dilation": (1, 1, 2)},
            {"dilation": (1, 1, 2), "output_padding": (0, 0, 1)},
            {"groups": 2},
        )
    ]
    assert len({_tuning.signature(p, "float32", "ieee") for p in problems}) == len(problems)


def test_an_update_keeps_the_other_choices(directory: Path) -> None:
    add(directory, {"a": {"tile": 1}, "b": {"tile": 2}})
    path = add(directory, {"b": {"tile": 3}, "c": {"tile": 4}})
    table = _tuning.read_table(path)
    assert table == {
        "device": DEVICE,
        "date": "2026-01-02T03:04:05+00:00",
        "versions": {"cupy": "14.2.0"},
        "choices": {"a": {"tile": 1}, "b": {"tile": 3}, "c": {"tile": 4}},
    }
    assert [p.name for p in directory.iterdir()] == [path.name]


GOOD = {"device": DEVICE, "date": "", "versions": {}, "choices": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "must have the keys"),
        (json.dumps({**GOOD, "more": 1}), "must have the keys device, date, versions, choices"),
        (json.dumps({"device": DEVICE}), "must have the keys"),
        (json.dumps({**GOOD, "choices": []}), "'choices' must be a dict"),
        (json.dumps({**GOOD, "device": 3}), "'device' must be a str"),
        (json.dumps({**GOOD, "choices": {"a": 1}}), "the choice of 'a' must be a dict"),
    ],
)
def test_a_malformed_table_is_an_error_that_names_it(
    directory: Path, text: str, message: str
) -> None:
    path = _tuning.table_path(DEVICE)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        _tuning.tuned_config(DEVICE, PROBLEM, "float32", "ieee")
    assert str(path) in str(error.value)


def test_a_malformed_table_is_not_written(directory: Path) -> None:
    path = add(directory, {"a": {"tile": 1}})
    with pytest.raises(ValueError, match="must be a dict"):
        add(directory, {"b": 3})  # type: ignore[dict-item]
    assert _tuning.read_table(path)["choices"] == {"a": {"tile": 1}}


def test_device_names_cannot_leave_the_directory(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "...", "C:\\x"):
        assert _tuning.table_path(name, tmp_path).parent == tmp_path


@pytest.mark.cuda
def test_a_tiny_run_of_tune_writes_a_table(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "tune.py"), "--tiny"]
    # float16 has one math, float32 three: so many more candidates.
    command += ["kb1-58", "nnunet-222-64to32", "--dtypes", "float16"]
    command += ["--directory", str(tmp_path / "tables")]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (table,) = (tmp_path / "tables").iterdir()
    assert result.stdout.splitlines()[-1] == str(table)
    read = _tuning.read_table(table)
    assert table == _tuning.table_path(read["device"], tmp_path / "tables")
    assert read["versions"]["packages"]
    signatures = {
        _tuning.signature(load_workload(name, tiny=True).problem, "float16", "ieee")
        for name in ("kb1-58", "nnunet-222-64to32")
    }
    assert set(read["choices"]) == signatures


def test_the_tables_of_the_package_are_well_formed() -> None:
    for path in _tuning.DIRECTORY.glob("*.json"):
        assert _tuning.table_path(_tuning.read_table(path)["device"]) == path
