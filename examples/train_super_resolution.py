"""Train a network that doubles the resolution of a brain MRI volume, through ConvTranspose3d.

The volume is averaged over 2x2x2 voxels, and the network learns to undo that: it adds what it
infers from the neighbourhood to a trilinear interpolation. Its up-sampling layer is the 2x2x2
transposed convolution with stride 2 that decoders of 3-D segmentation networks use, here with the
gradients of this package. It learns from the back half of the head and is compared with the
interpolation on the front half, which it has not seen.

The volume comes with nibabel. Needs torch, nibabel and matplotlib; runs on torch's CUDA device if
it finds one. Run: python examples/train_super_resolution.py [--steps 250] [picture.png]
"""

from __future__ import annotations

import argparse
from importlib.resources import as_file, files

import nibabel
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

from cupy_convt3d.torch import ConvTranspose3d


class SuperResolution(nn.Module):
    """Interpolation, and a correction from a small convolutional network."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.correction = nn.Sequential(
            nn.Conv3d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(channels, channels, 3, padding=1),
            nn.ReLU(),
            ConvTranspose3d(channels, channels, 2, stride=2),
            nn.ReLU(),
            nn.Conv3d(channels, 1, 3, padding=1),
        )

    def forward(self, coarse: torch.Tensor) -> torch.Tensor:
        """Return the volume at twice the resolution on each axis."""
        return interpolate(coarse) + self.correction(coarse)


def interpolate(coarse: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(coarse, scale_factor=2, mode="trilinear")


def load_volume() -> torch.Tensor:
    """Return the head (axes to the right, front and top) with intensities up to 1."""
    with as_file(files("nibabel") / "tests" / "data" / "example4d.nii.gz") as path:
        image = nibabel.as_closest_canonical(nibabel.load(path))
        volume = image.get_fdata(dtype=np.float32)[32:96, :, :, 0]  # without the air beside it
    return torch.from_numpy(volume / volume.max())


def train(network: nn.Module, coarse: torch.Tensor, fine: torch.Tensor, steps: int) -> list[float]:
    """Fit the network to pairs of volumes, mirrored at random; return the loss of each step."""
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    losses = []
    for _ in range(steps):
        mirrored = [axis for axis in (2, 3, 4) if torch.rand(()) < 0.5]
        result = network(coarse.flip(mirrored))
        loss = functional.mse_loss(result, fine.flip(mirrored))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def draw(losses: list[float], volumes: dict[str, torch.Tensor], path: str) -> None:
    """Draw the loss of each step, and the same axial plane of each volume."""
    figure = Figure(figsize=(13, 6), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(2, 3))
    ax = upper.subplots()
    ax.semilogy(range(1, len(losses) + 1), losses)
    ax.set(xlabel="step", ylabel="mean squared error", title="training, back half of the head")
    ax.grid(alpha=0.3)
    for ax, (name, volume) in zip(lower.subplots(1, len(volumes)), volumes.items(), strict=True):
        plane = volume[0, 0, :, :, volume.shape[-1] // 2].cpu()
        ax.imshow(plane.T, cmap="gray", vmin=0, vmax=0.7, origin="lower", interpolation="nearest")
        ax.set(title=name, xticks=[], yticks=[])
    lower.suptitle("front half, not trained on: axial plane")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", default="train_super_resolution.png")
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    volume = load_volume()[None, None].to(device)
    back, front = volume.chunk(2, dim=3)
    coarse_back, coarse_front = (functional.avg_pool3d(half, 2) for half in (back, front))
    network = SuperResolution().to(device)
    losses = train(network, coarse_back, back, options.steps)
    print(f"{device}: loss {losses[0]:.2e} in step 1, {losses[-1]:.2e} in step {options.steps}")

    with torch.no_grad():
        volumes = {
            "input": coarse_front,
            "trilinear interpolation": interpolate(coarse_front),
            "network": network(coarse_front),
            "target": front,
        }
    for name in ("trilinear interpolation", "network"):
        error = functional.mse_loss(volumes[name], front).sqrt()
        print(f"front half, {name}: root mean square error {error:.4f} of the largest intensity")
    draw(losses, volumes, options.picture)
    print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
