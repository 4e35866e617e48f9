"""Tasks for the worker process of the GPU benchmark that go wrong in each way a kernel can."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Misbehave:
    how: str
    estimate_s: float = 1.0
    limit_s: float = 60.0

    def row(self) -> dict[str, Any]:
        return {"kind": "check", "variant": self.how}

    def run(self, row: dict[str, Any]) -> None:
        row["began"] = True
        if self.how == "raise":
            raise RuntimeError("no")
        if self.how == "need a package":
            raise ImportError("No module named 'nothing'")
        if self.how == "die":
            os._exit(1)
        if self.how == "hang":
            time.sleep(600)
        row["process"] = os.getpid()
