"""Measured choices: what ``benchmarks/tune.py`` found to be fastest on a device.

A table is a JSON file ``tuning/<device name>.json`` beside this module::

    {"device": ..., "date": ..., "versions": {...}, "choices": {signature: configuration}}
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cupy_convt3d._problem import Problem

DIRECTORY = Path(__file__).resolve().parent / "tuning"

#: The keys of a table and the types of their values.
LAYOUT: dict[str, type] = {"device": str, "date": str, "versions": dict, "choices": dict}


def table_path(device_name: str, directory: Path = DIRECTORY) -> Path:
    """Return where the table of a device is, whether it exists or not."""
    return directory / (re.sub(r"[^A-Za-z0-9.-]+", "_", device_name).strip("_.") + ".json")


def signature(problem: Problem, dtype_name: str, precision: str) -> str:
    """Return the text that stands for a problem in a table: everything that a choice depends on."""
    parts = {
        "x": problem.x_shape,
        "weight": problem.weight_shape,
        "stride": problem.stride,
        "padding": problem.padding,
        "output_padding": problem.output_padding,
        "dilation": problem.dilation,
        "groups": (problem.groups,),
    }
    spelled = (f"{name}={'x'.join(map(str, values))}" for name, values in parts.items())
    return " ".join((dtype_name, precision, *spelled))


def tuned_config(
    device_name: str, problem: Problem, dtype_name: str, precision: str
) -> dict[str, Any] | None:
    """Return the configuration measured to be fastest, as a new dict, or None if there is none.

    Raises
    ------
    ValueError
        The table of this device exists and is malformed.
    """
    choices = _choices(table_path(device_name))
    choice = choices.get(signature(problem, dtype_name, precision))
    return None if choice is None else dict(choice)


@functools.lru_cache(maxsize=16)
def _choices(path: Path) -> Mapping[str, dict[str, Any]]:
    try:
        table = read_table(path)
    except FileNotFoundError:
        return MappingProxyType({})
    return MappingProxyType(table["choices"])


def read_table(path: Path) -> dict[str, Any]:
    """Return a table, its layout checked.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is not a table; the message says why.
    """
    text = path.read_text(encoding="utf-8")
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"tuning table {path} must be JSON: {error}") from error
    if not isinstance(table, dict) or set(table) != set(LAYOUT):
        raise ValueError(f"tuning table {path} must have the keys {', '.join(LAYOUT)}")
    for key, kind in LAYOUT.items():
        if not isinstance(table[key], kind):
            raise ValueError(f"tuning table {path}: {key!r} must be a {kind.__name__}")
    for name, choice in table["choices"].items():
        if not isinstance(choice, dict):
            raise ValueError(f"tuning table {path}: the choice of {name!r} must be a dict")
    return table
