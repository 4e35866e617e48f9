"""Double the resolution of an MRI volume by trilinear interpolation, as a transposed convolution.

A transposed convolution lays a copy of its kernel around every voxel of the coarse volume, scaled
by the voxel's intensity, and sums the copies on the fine grid. Linear interpolation is just that:
each voxel contributes a tent, which falls to 0 at the centres of its neighbours. So the up-sampling
layer of a segmentation network's decoder, with these fixed weights instead of learned ones, is a
trilinear resampler. Its adjoint, divided by 8, averages a fine volume down to the coarse grid.

At factor 2 the centres of the fine voxels lie 1/4 and 3/4 of a coarse voxel from those of the
coarse ones. There the tent is [1, 3, 3, 1] / 4 along each axis: the kernel, with stride 2 and
padding 1. At the border, where a neighbour is missing, the edge voxel is repeated: the volume grows
by one voxel on every side, and padding 1 + 2 crops the two fine voxels that this adds there.

The volume comes with nibabel; scipy.ndimage.zoom checks the result. The intensities are integers
and the weights multiples of 1/64, so float32 holds every sum exactly.

Needs nibabel, scipy and matplotlib. Run: python examples/upsample_volume.py [picture.png]
"""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from typing import Any

import nibabel
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import ndimage

from cupy_convt3d import conv_transpose3d

Volume = NDArray[np.float32]


def load_volume() -> tuple[Volume, tuple[float, ...]]:
    """Return the volume (axes to the right, front and top) and its voxel size in mm."""
    with as_file(files("nibabel") / "tests" / "data" / "anatomical.nii") as path:
        image = nibabel.as_closest_canonical(nibabel.load(path))
        return image.get_fdata(dtype=np.float32), image.header.get_zooms()


def array_library() -> tuple[Any, str]:
    """Return the module to make arrays with, and what runs on them."""
    try:
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except (ImportError, RuntimeError):  # CUDARuntimeError: no driver or no device
        return np, "NumPy path, no CUDA device found"
    return cupy, f"CUDA kernel on {device}"


def upsample(volume: Any, xp: Any) -> Any:
    """Return the volume at twice the resolution on each axis, of the same library."""
    tent = xp.asarray([0.25, 0.75, 0.75, 0.25], dtype=volume.dtype)
    weight = tent[:, None, None] * tent[:, None] * tent
    padded = xp.pad(volume, 1, mode="edge")
    return conv_transpose3d(padded[None], weight[None, None], stride=2, padding=3)[0]


def draw(before: Volume, after: Volume, voxel: tuple[float, ...], path: str) -> None:
    """Draw the same three planes of both volumes, at the same scale and window."""
    planes = (
        ("axial", 2, "left \N{RIGHTWARDS ARROW} right", "back \N{RIGHTWARDS ARROW} front"),
        ("coronal", 1, "left \N{RIGHTWARDS ARROW} right", "bottom \N{RIGHTWARDS ARROW} top"),
        ("sagittal", 0, "back \N{RIGHTWARDS ARROW} front", "bottom \N{RIGHTWARDS ARROW} top"),
    )
    low, high = np.percentile(before, (1, 99.8))
    extents = [n * size for n, size in zip(before.shape, voxel, strict=True)]
    figure = Figure(figsize=(11, 7.4), layout="constrained")
    axes = figure.subplots(2, 3, width_ratios=[extents[0], extents[0], extents[1]])
    for row, (name, volume, factor) in enumerate((("before", before, 1), ("after", after, 2))):
        size = " \N{MULTIPLICATION SIGN} ".join(f"{mm / factor:g}" for mm in voxel)
        for ax, (plane, axis, horizontal, vertical) in zip(axes[row], planes, strict=True):
            index = before.shape[axis] // 2 * factor
            width, height = (mm for a, mm in enumerate(extents) if a != axis)
            image = ax.imshow(
                volume.take(index, axis).T,
                cmap="gray",
                vmin=low,
                vmax=high,
                origin="lower",
                interpolation="nearest",
                extent=(0, width, 0, height),
            )
            ax.set(xlabel=f"{horizontal} (mm)", ylabel=f"{vertical} (mm)", anchor="S")
            ax.set_title(f"{plane}, {name}: {size} mm")
    figure.colorbar(image, ax=axes, label="intensity", shrink=0.6, panchor=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "upsample_volume.png"
    volume, voxel = load_volume()
    xp, ran = array_library()
    fine = upsample(xp.asarray(volume), xp)
    fine = fine if xp is np else xp.asnumpy(fine)
    print(f"{ran}: {volume.shape} to {fine.shape}")

    # grid_mode: voxels are cells, not points, so both volumes cover the same space.
    expected = ndimage.zoom(volume.astype(np.float64), 2, order=1, mode="nearest", grid_mode=True)
    difference = np.abs(fine - expected).max() / np.ptp(volume)
    assert difference < 4 * np.finfo(np.float32).eps
    print(f"largest difference to scipy.ndimage.zoom: {difference:.1e} of the intensity range")

    draw(volume, fine, voxel, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
