"""Runs a plan on NumPy arrays: the kernels that CuPy would launch, compiled as C++ for the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.host.compiler import KernelCompiler, default_cache_directory
from tests.host.guarded_buffer import GuardedBuffer, array_bytes, first_difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from cupy_convt3d._plan import Launch, Plan

KERNELS_DIRECTORY = Path(__file__).resolve().parents[2] / "kernels_cu"

MAX_GRID = 2**31 - 1
MAX_BLOCK = 1024
READ_ONLY_ROLES = ("x", "weight", "bias", "grad_output")

#: Values of ``host::Order`` in schedule.h.
_ORDERS = {"forward": 0, "reverse": 1, "shuffle": 2}

_ERROR_BYTES = 512


class HostKernelError(RuntimeError):
    """A kernel broke a rule of CUDA: a barrier that not all reach, or a shared memory overrun."""


class _Kernel:
    """The loaded library of one kernel."""

    def __init__(self, library: Path) -> None:
        # PyDLL keeps the interpreter lock: the library has one set of built-in variables, so two
        # Python threads must not run it at a time.
        self._library = ctypes.PyDLL(str(library))
        count = ctypes.c_size_t.in_dll(self._library, "host_parameter_count").value
        self._library.host_parameter_sizes.restype = ctypes.POINTER(ctypes.c_size_t * count)
        self.parameter_sizes = tuple(self._library.host_parameter_sizes().contents)
        self._library.host_launch.argtypes = (
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int,
            ctypes.c_ulonglong,
            ctypes.c_char_p,
            ctypes.c_size_t,
        )

    def launch(self, launch: Launch, pointers: list[int | None], order: int, seed: int) -> None:
        values = [ctypes.c_void_p(pointer) for pointer in pointers]
        sizes = (*(ctypes.sizeof(value) for value in values), launch.params.nbytes)
        if sizes != self.parameter_sizes:
            raise ValueError(
                f"{launch.kernel} takes parameters of {self.parameter_sizes} bytes, "
                f"the launch passes {sizes}"
            )
        addresses = [ctypes.addressof(value) for value in values] + [launch.params.ctypes.data]
        arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        failed = self._library.host_launch(
            launch.grid,
            launch.block,
            launch.shared_bytes,
            arguments,
            order,
            seed,
            error,
            len(error),
        )
        if failed:
            raise HostKernelError(f"{launch.kernel}: {error.value.decode(errors='replace')}")


class HostExecutor:
    """Runs plans on the CPU, and checks what a device would not.

    Arrays lie between guards, shared memory and the workspace start as NaNs, and the launch
    arguments must have the number and the sizes that the kernel declares.

    Parameters
    ----------
    source_directory : Path
        Holds the ``.cu`` and ``.cuh`` files.
    cache_directory : Path, optional
        Receives the compiled kernels; by default a directory of the user's cache.
    order : {"forward", "reverse", "shuffle"}
        The order in which blocks run, and the threads of a block between two barriers.
    seed : int
        Seed of ``order="shuffle"``.
    """

    def __init__(
        self,
        source_directory: Path = KERNELS_DIRECTORY,
        cache_directory: Path | None = None,
        *,
        order: Literal["forward", "reverse", "shuffle"] = "forward",
        seed: int = 0,
    ) -> None:
        self._compiler = KernelCompiler(
            source_directory, cache_directory or default_cache_directory()
        )
        self._order = _ORDERS[order]
        self._seed = seed
        self._kernels: dict[tuple[str, tuple[str, ...]], _Kernel] = {}

    def build_all(self, variants: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Compile (kernel, options) pairs ahead of their first run, in parallel."""
        self._compiler.compile_all(variants)

    def run(self, plan: Plan, arrays: Mapping[str, NDArray[Any] | None]) -> None:
        """Run the launches of a plan, in order.

        Parameters
        ----------
        plan : Plan
            The launches.
        arrays : mapping of str to ndarray or None
            A C-contiguous array for each role but ``workspace`` and ``packed``; None passes a
            null pointer. All but ``x``, ``weight`` and ``bias`` are overwritten with what the
            kernels left there.

        Raises
        ------
        AssertionError
            If a kernel writes outside an array, or to a read-only one.
        HostKernelError
            If a kernel breaks a rule of CUDA.
        ValueError
            If a launch does not fit its kernel or the limits of CUDA.
        """
        present = {role: array for role, array in arrays.items() if array is not None}
        for role, array in present.items():
            if not array.flags.c_contiguous:
                raise ValueError(f"{role} is not C-contiguous")
        buffers = {
            role: GuardedBuffer.copy_of(array, number)
            for number, (role, array) in enumerate(present.items(), start=1)
        }
        for role, size in (("workspace", plan.workspace_bytes), ("packed", plan.packed_bytes)):
            buffers[role] = GuardedBuffer(size, len(buffers) + 1)
        pointers = {
            **dict.fromkeys(arrays),
            **{role: buffer.address for role, buffer in buffers.items()},
        }
        for launch in (*plan.packing, *plan.launches):
            self._launch(launch, pointers)
            _check_memory(launch.kernel, buffers, present)
        for role, array in present.items():
            if role not in READ_ONLY_ROLES:
                array_bytes(array)[:] = buffers[role].contents

    def _launch(self, launch: Launch, pointers: Mapping[str, int | None]) -> None:
        for name, extent, limit in (
            ("grid", launch.grid, MAX_GRID),
            ("block", launch.block, MAX_BLOCK),
        ):
            if not 1 <= extent <= limit:
                raise ValueError(f"{launch.kernel}: {name} is {extent}, CUDA allows 1 to {limit}")
        variant = (launch.kernel, launch.options)
        if variant not in self._kernels:
            self._kernels[variant] = _Kernel(self._compiler.compile(*variant))
        self._kernels[variant].launch(
            launch, [pointers[role] for role in launch.roles], self._order, self._seed
        )


def _check_memory(
    kernel: str,
    buffers: Mapping[str, GuardedBuffer],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Raise an AssertionError if a launch wrote where it must not."""
    for role, buffer in buffers.items():
        damage = buffer.first_damage()
        if damage is not None:
            raise AssertionError(
                f"{kernel} wrote outside {role}: byte offset {damage}, "
                f"it has {buffer.contents.size} bytes"
            )
        if role in READ_ONLY_ROLES:
            change = first_difference(buffer.contents, array_bytes(arrays[role]))
            if change is not None:
                raise AssertionError(
                    f"{kernel} wrote to the read-only {role}: byte offset {change}"
                )
