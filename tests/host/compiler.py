"""Compiles a kernel and its options to a host library, once, in a cache on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import shlex
import shutil
import subprocess
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST_DIRECTORY = Path(__file__).resolve().parent

COMPILERS = ("g++", "clang++")

FLAGS = (
    "-std=c++20",
    "-O2",
    # The kernels name each fused multiply-add; leaving the rest to the compiler's choice would make
    # results depend on it.
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fPIC",
    "-shared",
    # Libraries of two variants define the same names: none may bind to the other's.
    "-fvisibility=hidden",
    # The checked longjmp of glibc refuses to change stacks.
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wno-unknown-pragmas",
)

# The anonymous namespace gives all of a kernel internal linkage: g++ refuses to put variables of
# templates and of plain functions into one section, as __shared__ needs it, unless both have it.
TRANSLATION_UNIT = """\
#include <cuda_host.h>
namespace {{
#include <{kernel}.cu>
}}
HOST_EXPORT_KERNEL({kernel})
"""


class HostCompilerError(RuntimeError):
    """There is no usable C++ compiler, or it refused a kernel."""


class HostCompilerWarning(UserWarning):
    """What the C++ compiler said about a kernel that it compiled."""


def default_cache_directory() -> Path:
    """Return where compiled kernels are kept unless the caller says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cupy_convt3d" / "host"


@functools.cache
def find_compiler() -> tuple[str, ...]:
    """Return the command of the C++ compiler: ``$CXX`` where set, else g++ or clang++.

    Raises
    ------
    HostCompilerError
        If none of them is on the PATH.
    """
    from_environment = shlex.split(os.environ.get("CXX", ""))
    candidates = [from_environment] if from_environment else [[name] for name in COMPILERS]
    for command in candidates:
        if shutil.which(command[0]):
            return tuple(command)
    looked_for = ", ".join(command[0] for command in candidates)
    raise HostCompilerError(
        "The host run needs a C++20 compiler and found none on the PATH. "
        f"Looked for: {looked_for}. Install g++ 11 or clang++ 14 or later "
        "(Debian, Ubuntu: apt install g++), or set CXX."
    )


@functools.cache
def _target(compiler: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the flags that select this CPU, and a text that names the compiler and the CPU.

    A CPU with FMA makes fma() one instruction instead of a slow call. The predefined macros hold
    the compiler's version and the instruction sets, so that two machines may share a cache.
    """
    for flags in (("-march=native",), ()):
        command = [*compiler, *flags, "-x", "c++", "-dM", "-E", os.devnull]
        probe = subprocess.run(command, capture_output=True, text=True, check=False)
        if probe.returncode == 0:
            return flags, probe.stdout
    raise HostCompilerError(f"{shlex.join(command)} failed:\n{probe.stderr}")


class KernelCompiler:
    """Compiles the kernels of one directory.

    Parameters
    ----------
    source_directory : Path
        Holds ``<kernel>.cu`` and the headers.
    cache_directory : Path
        Receives the libraries. Processes may share it.
    """

    def __init__(self, source_directory: Path, cache_directory: Path) -> None:
        self._source_directory = source_directory
        self._cache_directory = cache_directory

    def compile(self, kernel: str, options: Iterable[str]) -> Path:
        """Return the library of a kernel, compiling it if the cache lacks it.

        Parameters
        ----------
        kernel : str
            Name of the file and of its entry point.
        options : iterable of str
            NVRTC options; all but ``-D`` definitions are for the device compiler and ignored.

        Raises
        ------
        HostCompilerError
            If there is no compiler, or it refuses the kernel.
        """
        compiler = find_compiler()
        target_flags, target = _target(compiler)
        arguments = [
            *FLAGS,
            *target_flags,
            f"-I{HOST_DIRECTORY}",
            f"-I{self._source_directory}",
            *(option for option in options if option.startswith("-D")),
        ]
        source = TRANSLATION_UNIT.format(kernel=kernel)
        key = self._key(kernel, [source, target, *compiler, *arguments])
        library = self._cache_directory / f"{kernel}-{key}.so"
        if library.exists():
            return library
        self._cache_directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._cache_directory, suffix=".tmp")
        os.close(handle)
        try:
            command = [*compiler, *arguments, "-x", "c++", "-", "-o", temporary]
            run = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise HostCompilerError(f"{kernel}: {shlex.join(command)} failed:\n{run.stderr}")
            if run.stderr:
                warnings.warn(f"{kernel}: {run.stderr}", HostCompilerWarning, stacklevel=2)
            # Atomic, so that another process sees the whole library or none.
            os.replace(temporary, library)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return library

    def compile_all(self, variants: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Compile many (kernel, options) pairs, one compiler process per CPU at a time."""
        order = list(dict.fromkeys(variants))
        # Of processes that share the cache each has an order of its own, so that they seldom
        # compile the same variant at the same time.
        random.Random(os.getpid()).shuffle(order)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda variant: self.compile(*variant), order))

    def _key(self, kernel: str, texts: Iterable[str]) -> str:
        """Return a hash of the texts, the kernel's file and every header that it could include."""
        digest = hashlib.sha256()
        for text in texts:
            digest.update(text.encode() + b"\0")
        headers = [
            path
            for directory in (HOST_DIRECTORY, self._source_directory)
            for path in sorted(directory.iterdir())
            if path.suffix in (".h", ".cuh")
        ]
        for path in [*headers, self._source_directory / f"{kernel}.cu"]:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:32]
