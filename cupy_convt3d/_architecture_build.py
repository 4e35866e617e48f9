"""Compile for one architecture alone, such as sm_90a, which CuPy does not, and keep the result.

Environment variables of CuPy mean the same here: ``CUPY_COMPILE_WITH_PTX=1`` asks for PTX,
``CUPY_CACHE_DIR`` is the folder of compiled kernels, ``CUPY_CACHE_IN_MEMORY=1`` leaves it alone.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The first NVRTC with architectures of their own.
_OLDEST_NVRTC = (12, 0)

_DIGEST_BYTES = hashlib.sha256().digest_size


class BuildError(RuntimeError):
    """A source did not compile; the message has the compiler's version, its target and its log."""


def build(source: str, name: str, options: tuple[str, ...], architecture: str) -> bytes:
    """Return the cubin (or PTX) of a CUDA source, from CuPy's cache folder if it is there.

    Parameters
    ----------
    source : str
        The text of the source.
    name : str
        What the compiler calls it.
    options : tuple of str
        Everything but the architecture. They must change when a file changes that the source
        includes.
    architecture : str
        Such as "90a".

    Raises
    ------
    BuildError
        If the source does not compile, or NVRTC is too old for the architecture.
    """
    from cupy_backends.cuda.libs import nvrtc

    version = nvrtc.getVersion()
    kind = "compute" if _is_set("CUPY_COMPILE_WITH_PTX") else "sm"
    target = f"{kind}_{architecture}"
    if version < _OLDEST_NVRTC:
        raise BuildError(
            f"NVRTC {_dotted(version)} is too old for {target}: "
            f"{_dotted(_OLDEST_NVRTC)} or later is needed"
        )
    # What CuPy adds to the options of a module.
    options = (*options, f"-arch={target}", "-ftz=true", "--device-as-default-execution-space")

    def compile_source() -> bytes:
        program = nvrtc.createProgram(source, name, (), ())
        try:
            nvrtc.compileProgram(program, options)
            if kind == "compute":
                ptx: bytes = nvrtc.getPTX(program)
                return ptx
            # CuPy drops the last byte, a zero, as if it ended a text. Without it the driver would
            # find the file cut; after a whole one a zero does no harm.
            cubin: bytes = nvrtc.getCUBIN(program)
            return cubin + b"\0"
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).rstrip("\0")
            raise BuildError(f"NVRTC {_dotted(version)} for {target}: {log or error}") from error
        finally:
            nvrtc.destroyProgram(program)

    if _is_set("CUPY_CACHE_IN_MEMORY"):
        return compile_source()
    return cached(cache_path(source, options, version), compile_source)


def cache_path(source: str, options: tuple[str, ...], version: tuple[int, ...]) -> Path:
    """Return the file for what NVRTC of this version makes of a source with these options."""
    folder = os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache"
    key = repr((source, options, version)).encode()
    return Path(folder).expanduser() / f"{hashlib.sha256(key).hexdigest()}.convt3d"


def cached(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what a file holds, or else make it and keep it there.

    A file that was cut or changed is made again. One that cannot be written is no error: the next
    process makes it once more. Processes that write one file at the same time do not meet.
    """
    try:
        stored = path.read_bytes()
    except OSError:
        stored = b""
    digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if hashlib.sha256(data).digest() == digest:
        return data
    data = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder inside, because a file can only be renamed inside one file system.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder) / path.name
            whole.write_bytes(hashlib.sha256(data).digest() + data)
            whole.replace(path)
    except OSError:
        pass
    return data


def _is_set(variable: str) -> bool:
    return os.environ.get(variable) == "1"


def _dotted(version: Any) -> str:
    return ".".join(map(str, version))
