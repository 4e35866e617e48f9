"""Finding, hashing and compiling the CUDA sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cupy_convt3d import _loader
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
        "fill_bias.cu",
        "finish_sums.cu",
        "pack_depth_to_space.cu",
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
