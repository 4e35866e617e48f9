"""Finding, hashing and compiling the CUDA sources."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cupy_convt3d import _architecture_build, _loader
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan import variant_options


def test_kernels_are_found_in_the_checkout() -> None:
    names = {path.name for path in _loader.kernel_directory().glob("*.cu")}
    assert names == {
        "convt3d_depth_to_space.cu",
        "convt3d_gather.cu",
        "convt3d_grad_input_implicit_gemm.cu",
        "convt3d_grad_weight_direct.cu",
        "convt3d_grad_weight_implicit_gemm.cu",
        "convt3d_implicit_gemm.cu",
        "convt3d_scatter.cu",
        "convt3d_subpixel.cu",
        "fill_bias.cu",
        "finish_sums.cu",
        "pack_depth_to_space.cu",
        "pack_subpixel.cu",
        "pack_weight.cu",
        "sum_grad_weight.cu",
    }


def test_hash_changes_with_any_source(tmp_path: Path) -> None:
    folder = tmp_path / "kernels_cu"
    shutil.copytree(_loader.kernel_directory(), folder)
    original = _loader.hash_of_folder(folder)
    assert original == _loader.source_hash()
    for path in sorted(folder.iterdir()):
        text = path.read_text(encoding="utf-8")
        path.write_text(text + "\n", encoding="utf-8")
        assert _loader.hash_of_folder(folder) != original, path.name
        path.write_text(text, encoding="utf-8")
    assert _loader.hash_of_folder(folder) == original
    (folder / "fill_bias.cu").rename(folder / "renamed.cu")
    assert _loader.hash_of_folder(folder) != original


def test_the_hash_is_among_the_options() -> None:
    options = _loader.compile_options(("-DA=1",))
    assert f"-DCONVT3D_SOURCE_HASH={_loader.source_hash()}" in options
    assert options[-1] == "-DA=1"


@pytest.mark.cuda
def test_a_kernel_is_compiled_once_per_device() -> None:
    import cupy

    options = variant_options(DTYPES["float32"], 32)
    device = cupy.cuda.runtime.getDevice()
    first = _loader.load_kernel("fill_bias", options, 0, device)
    assert _loader.load_kernel("fill_bias", options, 0, device) is first


@pytest.mark.cuda
def test_shared_memory_limit_is_raised_above_48_kib() -> None:
    options = variant_options(DTYPES["float32"], 32)
    kernel = _loader.load_kernel("convt3d_scatter", options, 60 * 1024, 0)
    assert kernel.max_dynamic_shared_size_bytes >= 60 * 1024


@pytest.mark.cuda
def test_compile_error_names_kernel_options_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels_cu"
    shutil.copytree(_loader.kernel_directory(), folder)
    path = folder / "fill_bias.cu"
    path.write_text(path.read_text(encoding="utf-8") + "undeclared value;\n", encoding="utf-8")
    line = len(path.read_text(encoding="utf-8").splitlines())
    monkeypatch.setattr(_loader, "kernel_directory", lambda: folder)
    with pytest.raises(_loader.KernelCompileError) as caught:
        _loader.load_kernel("fill_bias", ("-DCONVT3D_DTYPE=3",), 0, 0)
    message = str(caught.value)
    assert "fill_bias.cu did not compile with" in message
    assert "-DCONVT3D_DTYPE=3" in message
    assert f"fill_bias.cu({line})" in message


@pytest.mark.cuda
def test_a_wrong_struct_size_does_not_compile() -> None:
    with pytest.raises(_loader.KernelCompileError, match=r"_params\.py differ"):
        _loader.load_kernel("fill_bias", ("-DCONVT3D_PARAMS_SIZE=8",), 0, 0)


#: Compiles for sm_90a alone.
HOPPER_KERNEL = r"""
extern "C" __global__ void hopper(float* y, float value) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  y[threadIdx.x] = value * threadIdx.x;
}
"""


@pytest.fixture
def hopper_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a kernel for sm_90a one of the sources; return the folder that CuPy's cache is in."""
    folder = tmp_path / "kernels_cu"
    shutil.copytree(_loader.kernel_directory(), folder)
    (folder / "hopper.cu").write_text(HOPPER_KERNEL, encoding="utf-8")
    monkeypatch.setattr(_loader, "kernel_directory", lambda: folder)
    monkeypatch.setattr(_loader, "_KERNELS", {})
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build_hopper_kernel() -> bytes:
    options = _loader.compile_options(())
    return _architecture_build.build(_loader.kernel_source("hopper"), "hopper.cu", options, "90a")


def test_a_kept_binary_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "binary"
    assert _architecture_build.cached(path, lambda: b"binary") == b"binary"
    assert _architecture_build.cached(path, lambda: b"another") == b"binary"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: data + b"x",
        lambda data: data[:-1] + b"Y",
        lambda data: b"Y" + data[1:],
    ],
    ids=["empty", "cut", "cut digest", "longer", "changed", "changed digest"],
)
def test_a_damaged_binary_is_made_again(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "binary"
    _architecture_build.cached(path, lambda: b"binary")
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    assert _architecture_build.cached(path, lambda: b"binary") == b"binary"
    assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"in the way")
    assert _architecture_build.cached(file / "binary", lambda: b"binary") == b"binary"
    assert file.read_bytes() == b"in the way"


def test_binaries_may_be_written_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    barrier = threading.Barrier(4)

    def make() -> bytes:
        barrier.wait(timeout=60)
        return b"binary" * 10000

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _architecture_build.cached(path, make), range(4)))
    assert found == [b"binary" * 10000] * 4
    assert _architecture_build.cached(path, lambda: b"another") == found[0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_kept_binary_is_of_its_source_options_and_compiler() -> None:
    arguments = [
        ("source", ("-arch=sm_90a", "-DA=1"), (12, 9)),
        ("Source", ("-arch=sm_90a", "-DA=1"), (12, 9)),
        ("source", ("-arch=sm_90a", "-DA=2"), (12, 9)),
        ("source", ("-arch=compute_90a", "-DA=1"), (12, 9)),
        ("source", ("-arch=sm_90a", "-DA=1"), (13, 0)),
    ]
    assert len({_architecture_build.cache_path(*a) for a in arguments}) == len(arguments)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("ptx", "beginning"), [("1", b"//"), ("0", b"\x7fELF")], ids=["PTX", "cubin"]
)
def test_build_for_an_architecture(
    ptx: str, beginning: bytes, hopper_kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_COMPILE_WITH_PTX", ptx)
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    binary = build_hopper_kernel()
    assert binary.startswith(beginning)
    assert b"sm_90a" in binary
    assert not hopper_kernel.exists()
    monkeypatch.delenv("CUPY_CACHE_IN_MEMORY")
    assert build_hopper_kernel() == binary
    (kept,) = hopper_kernel.iterdir()
    assert kept.read_bytes().endswith(binary)


@pytest.mark.cuda
def test_a_cubin_is_whole(hopper_kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its headers lie inside it: the driver refuses a file that was cut by a single byte."""
    monkeypatch.setenv("CUPY_COMPILE_WITH_PTX", "0")
    binary = build_hopper_kernel()
    (program_headers, section_headers), sizes = (
        struct.unpack_from("<2Q", binary, 0x20),
        struct.unpack_from("<4H", binary, 0x36),
    )
    assert 64 < program_headers + sizes[0] * sizes[1] <= len(binary)
    assert 64 < section_headers + sizes[2] * sizes[3] <= len(binary)


@pytest.mark.cuda
def test_old_compilers_are_named(hopper_kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy_backends.cuda.libs import nvrtc

    monkeypatch.setattr(nvrtc, "getVersion", lambda: (11, 8))
    with pytest.raises(
        _loader.KernelCompileError, match=r"NVRTC 11\.8 is too old for \w+_90a: 12\.0 or later"
    ):
        _loader.load_kernel("hopper", (), 0, 0, "90a")


@pytest.mark.cuda
@pytest.mark.hopper
def test_a_kernel_for_hopper_alone_runs_there(hopper_kernel: Path) -> None:
    import cupy

    device = cupy.cuda.runtime.getDevice()
    kernel = _loader.load_kernel("hopper", (), 60 * 1024, device, "90a")
    assert kernel.max_dynamic_shared_size_bytes >= 60 * 1024
    assert _loader.load_kernel("hopper", (), 60 * 1024, device, "90a") is kernel
    y = cupy.zeros(32, dtype=cupy.float32)
    kernel((1,), (32,), (y, np.float32(3)), shared_mem=60 * 1024)
    np.testing.assert_array_equal(cupy.asnumpy(y), 3 * np.arange(32))


@pytest.mark.cuda
@pytest.mark.hopper
def test_an_architecture_is_part_of_a_kernel(hopper_kernel: Path) -> None:
    path = hopper_kernel.parent / "kernels_cu" / "hopper.cu"
    path.write_text('extern "C" __global__ void hopper() {}', encoding="utf-8")
    plain = _loader.load_kernel("hopper", (), 0, 0)
    assert _loader.load_kernel("hopper", (), 0, 0, "90a") is not plain


@pytest.mark.cuda
def test_compile_error_for_an_architecture(hopper_kernel: Path) -> None:
    path = hopper_kernel.parent / "kernels_cu" / "hopper.cu"
    path.write_text(HOPPER_KERNEL + "undeclared value;\n", encoding="utf-8")
    line = len(path.read_text(encoding="utf-8").splitlines())
    with pytest.raises(_loader.KernelCompileError) as caught:
        _loader.load_kernel("hopper", ("-DSOME=3",), 0, 0, "90a")
    message = str(caught.value)
    assert "hopper.cu did not compile with" in message
    assert "-DSOME=3" in message
    assert "_90a: " in message
    assert f"hopper.cu({line})" in message
    assert not hopper_kernel.exists()
