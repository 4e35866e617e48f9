"""Write the tables that ``cupy_convt3d/_tuning.py`` reads."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from cupy_convt3d._tuning import read_table


def update_table(
    path: Path,
    device: str,
    now: datetime.datetime,
    versions: dict[str, Any],
    choices: dict[str, dict[str, Any]],
) -> None:
    """Add choices to a table, in place of older ones of the same signatures, or make it."""
    kept: dict[str, Any] = read_table(path)["choices"] if path.exists() else {}
    table = {
        "device": device,
        "date": now.isoformat(timespec="seconds"),
        "versions": versions,
        "choices": dict(sorted({**kept, **choices}.items())),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    # Checked before it takes the place of a table that works.
    read_table(new)
    os.replace(new, path)
