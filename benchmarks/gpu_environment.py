"""What a measurement depends on: versions, the card, its clocks, the revision of the code."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Fields of nvidia-smi that do not change in a run, and those that are sampled.
CARD_FIELDS = (
    "name",
    "driver_version",
    "vbios_version",
    "memory.total",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "ecc.mode.current",
    "mig.mode.current",
)
CLOCK_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu")


def package_versions() -> dict[str, str]:
    """Return the versions of the distributions that matter, of those installed."""
    wanted = ("cupy", "torch", "triton", "numpy", "ml_dtypes", "nvidia-cu", "cupy_convt3d")
    return {
        name: distribution.version
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"] or "")
        .lower()
        .replace("-", "_")
        .startswith(tuple(w.replace("-", "_") for w in wanted))
    }


def device_environment() -> dict[str, Any]:
    """Return the versions and properties that need the device; raises without CuPy or device."""
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "device": {
            "name": properties["name"].decode(),
            "compute_capability": f"{properties['major']}.{properties['minor']}",
            "multiprocessors": properties["multiProcessorCount"],
            "memory_bytes": properties["totalGlobalMem"],
            "l2_bytes": properties["l2CacheSize"],
        },
        "cuda": {
            "driver": runtime.driverGetVersion(),
            "runtime": runtime.runtimeGetVersion(),
            "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        },
        "torch": _torch_environment(),
    }


def _torch_environment() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"usable": False, "note": str(error)}
    environment: dict[str, Any] = {
        "usable": torch.cuda.is_available(),
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    if not environment["usable"]:
        environment["note"] = f"torch {torch.__version__} finds no CUDA device"
    return environment


def host_environment() -> dict[str, Any]:
    """Return what needs no device."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "revision": _output(
            "git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"
        ),
        "card": _card(),
    }


def _output(*command: str) -> str | None:
    """Return what a command prints, or None if it is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _card() -> dict[str, str] | None:
    line = _output(
        "nvidia-smi", f"--query-gpu={','.join(CARD_FIELDS)}", "--format=csv,noheader", "--id=0"
    )
    return None if line is None else dict(zip(CARD_FIELDS, line.split(", "), strict=False))


class ClockSamples:
    """Clocks, power and temperature once a second while the block runs, if nvidia-smi is there."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # A file, as a full pipe would stop the sampling.
        self._lines = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by __exit__
        self.samples: list[dict[str, str]] = []

    def __enter__(self) -> ClockSamples:
        if shutil.which("nvidia-smi"):
            query = f"--query-gpu={','.join(CLOCK_FIELDS)}"
            self._process = subprocess.Popen(
                ["nvidia-smi", query, "--format=csv,noheader", "--id=0", "--loop=1"],
                stdout=self._lines,
                stderr=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._lines.seek(0)
            self.samples = [
                dict(zip(CLOCK_FIELDS, line.strip().split(", "), strict=False))
                for line in self._lines
            ]
        self._lines.close()
