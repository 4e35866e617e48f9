"""Find the CUDA sources, compile a variant of a kernel for the current device, and keep it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cupy_convt3d._architecture_build import BuildError, build

_KERNELS: dict[tuple[int, str, tuple[str, ...], int, str], Any] = {}


class KernelCompileError(RuntimeError):
    """A kernel did not compile; the message has its name, options and the compiler's file:line."""


@functools.cache
def kernel_directory() -> Path:
    """Return the folder of CUDA sources: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "kernels_cu", package.parent / "kernels_cu"):
        if (candidate / "convt3d_params.cuh").is_file():
            return candidate
    raise FileNotFoundError(
        f"the CUDA sources of cupy_convt3d must be in {package / 'kernels_cu'} or "
        f"{package.parent / 'kernels_cu'}, found in neither: reinstall cupy-convt3d"
    )


@functools.cache
def source_hash() -> str:
    """Return a hash of all CUDA sources.

    CuPy's disk cache knows the source text and the options of a module, not the files it includes:
    a changed header would run the old binary. With this hash among the options it cannot.
    """
    return hash_of_folder(kernel_directory())


def hash_of_folder(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of the .cu and .cuh files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compile_options(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return what NVRTC gets besides the architecture."""
    return (
        "--std=c++17",
        "-lineinfo",
        f"-I{kernel_directory()}",
        f"-DCONVT3D_SOURCE_HASH={source_hash()}",
        *options,
    )


def kernel_source(kernel: str) -> str:
    """Return the text of a .cu file, with a first line that makes the compiler report its name."""
    path = kernel_directory() / f"{kernel}.cu"
    return f'#line 1 "{path.name}"\n{path.read_text(encoding="utf-8")}'


def load_kernel(
    kernel: str, options: tuple[str, ...], shared_bytes: int, device: int, architecture: str = ""
) -> Any:
    """Return the ``cupy.RawKernel`` of a variant for ``device``, which must be the current one.

    The first call compiles (or reads CuPy's disk cache) and raises the kernel's limit of dynamic
    shared memory; later ones are a dictionary look-up, also during the capture of a CUDA graph.
    ``architecture`` is that of `cupy_convt3d._plan.Launch`.

    Raises
    ------
    KernelCompileError
        With the kernel, the options and what the compiler said.
    """
    key = (device, kernel, options, shared_bytes, architecture)
    try:
        return _KERNELS[key]
    except KeyError:
        pass
    import cupy

    all_options = compile_options(options)
    try:
        with _module(kernel, all_options, architecture) as module:
            function = module.get_function(kernel)
            # Also builds the function now rather than inside a graph capture.
            limit = function.max_dynamic_shared_size_bytes
    except (cupy.cuda.compiler.CompileException, BuildError) as error:
        raise KernelCompileError(
            f"{kernel}.cu did not compile with {' '.join(all_options)}:\n{error}"
        ) from error
    if shared_bytes > limit:
        function.max_dynamic_shared_size_bytes = shared_bytes
    _KERNELS[key] = function
    return function


@contextlib.contextmanager
def _module(kernel: str, options: tuple[str, ...], architecture: str) -> Iterator[Any]:
    """Give the ``cupy.RawModule`` of a variant, in whose context its function must be built."""
    import cupy

    source = kernel_source(kernel)
    if not architecture:
        yield cupy.RawModule(code=source, options=options, backend="nvrtc")
        return
    binary = build(source, f"{kernel}.cu", options, architecture)
    # A file is the only form in which CuPy takes a binary.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / kernel
        path.write_bytes(binary)
        yield cupy.RawModule(path=str(path))
