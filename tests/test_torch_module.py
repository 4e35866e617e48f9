"""ConvTranspose3d in the place of torch's: alone, and by convert() in whole models."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from monai.networks.nets import UNet

import cupy_convt3d.torch
from cupy_convt3d.torch import ConvTranspose3d, convert

CONFIGURATIONS = [
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": (1, 2, 2), "stride": (1, 2, 2), "bias": False},
    {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    {"kernel_size": (3, 2, 1), "dilation": (2, 1, 3), "output_padding": (1, 0, 2)},
]


def both(**configuration: Any) -> tuple[torch.nn.ConvTranspose3d, ConvTranspose3d]:
    """Return torch's module and ours, drawn with the same seed."""
    torch.manual_seed(0)
    theirs = torch.nn.ConvTranspose3d(4, 6, **configuration)
    torch.manual_seed(0)
    return theirs, ConvTranspose3d(4, 6, **configuration)


def test_what_is_public() -> None:
    assert cupy_convt3d.torch.__all__ == ["ConvTranspose3d", "conv_transpose3d", "convert"]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_a_module_is_torchs(configuration: dict[str, Any]) -> None:
    theirs, ours = both(**configuration)
    x = torch.randn(2, 4, 3, 4, 5)
    results = []
    for module in (theirs, ours):
        y = module(x)
        y.square().sum().backward()
        results.append([y, *(p.grad for p in module.parameters())])
    # Sums of at most 864 products of size 1 in float32.
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours(x[0]), results[1][0][0], rtol=1e-6, atol=1e-6)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_the_state_is_compatible_both_ways(configuration: dict[str, Any]) -> None:
    theirs, ours = both(**configuration)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    torch.manual_seed(1)
    fresh = torch.nn.ConvTranspose3d(4, 6, **configuration)
    ours.load_state_dict(fresh.state_dict())
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(theirs.state_dict(), fresh.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("configuration", "size"),
    [
        ({"kernel_size": 3, "stride": 2, "padding": 1}, (6, 7, 10)),
        ({"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}, (5, 8, 9)),
        ({"kernel_size": 2, "stride": 3, "dilation": 2}, (9, 14, 17)),
    ],
)
def test_output_size(configuration: dict[str, Any], size: tuple[int, ...]) -> None:
    theirs, ours = both(**configuration)
    x = torch.randn(2, 4, 3, 4, 5)
    y = ours(x, output_size=size)
    assert y.shape[2:] == size
    torch.testing.assert_close(y, theirs(x, output_size=size), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(x, output_size=(2, 6, *size)), y)
    torch.testing.assert_close(ours(x[0], list(size)), y[0], rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="output_size must be between"):
        ours(x, output_size=(3, 3, 3))


def test_constructor_errors_are_torchs() -> None:
    with pytest.raises(ValueError, match="zeros"):
        ConvTranspose3d(2, 2, 2, padding_mode="circular")
    with pytest.raises(ValueError, match="precision must be None or one of ieee, bf16x3, tf32"):
        ConvTranspose3d(2, 2, 2, precision="fp32")


def test_precision_is_shown_copied_and_saved_with_the_module() -> None:
    layer = ConvTranspose3d(2, 2, 2, precision="tf32")
    assert repr(layer).endswith("stride=(1, 1, 1), precision='tf32')")
    assert copy.deepcopy(layer).precision == "tf32"
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert (type(loaded), loaded.precision) == (ConvTranspose3d, "tf32")


def test_precision_reaches_the_operator_and_its_derivatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cupy_convt3d.torch import _operators

    seen = []
    checked = _operators._checked_settings
    monkeypatch.setattr(
        _operators, "_checked_settings", lambda *a: (seen.append(a[7]), checked(*a))[1]
    )
    layer = ConvTranspose3d(2, 2, 2, precision="bf16x3")
    layer(torch.randn(1, 2, 2, 2, 2, requires_grad=True)).sum().backward()
    assert seen == ["bf16x3"] * 3


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    shared = torch.nn.ConvTranspose3d(3, 3, 2)
    return torch.nn.Sequential(
        torch.nn.ConvTranspose3d(2, 3, 2, stride=2),
        torch.nn.Sequential(torch.nn.ReLU(), shared),
        shared,
        torch.nn.ConvTranspose2d(2, 2, 2),
    )


def test_convert_replaces_every_module_and_nothing_else() -> None:
    before = model()
    parameters = dict(before.named_parameters())
    state = {name: value.clone() for name, value in before.state_dict().items()}
    after = convert(before)
    assert after is before
    kinds = {name: type(module) for name, module in after.named_modules(remove_duplicate=False)}
    assert kinds["0"] is kinds["1.1"] is kinds["2"] is ConvTranspose3d
    assert kinds["3"] is torch.nn.ConvTranspose2d
    assert after[2] is after[1][1]
    assert all(parameters[name] is value for name, value in after.named_parameters())
    torch.testing.assert_close(dict(after.state_dict()), state, rtol=0, atol=0)


def test_convert_keeps_hooks_mode_and_dtype() -> None:
    layer = torch.nn.ConvTranspose3d(2, 3, 2).double().eval()
    layer.weight.requires_grad_(False)
    calls: list[str] = []
    layer.register_forward_hook(lambda *_: calls.append("forward"))
    converted = convert(layer)
    assert type(converted) is ConvTranspose3d
    y = converted(torch.zeros(1, 2, 2, 2, 2, dtype=torch.float64))
    assert y.dtype == torch.float64
    assert calls == ["forward"]
    assert not converted.training
    assert not converted.weight.requires_grad


def test_convert_twice_changes_nothing() -> None:
    once = convert(model(), precision="tf32")
    kinds = [type(module) for module in once.modules()]
    twice = convert(once)
    assert [type(module) for module in twice.modules()] == kinds
    assert twice[0].precision == "tf32"


def test_convert_leaves_subclasses() -> None:
    class Scaled(torch.nn.ConvTranspose3d):
        def forward(self, input: Any, output_size: Any = None) -> Any:
            return 2 * super().forward(input, output_size)

    assert type(convert(Scaled(2, 2, 2))) is Scaled


def test_convert_errors() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got Tensor"):
        convert(torch.zeros(1))
    layer = torch.nn.ConvTranspose3d(2, 2, 2)
    with pytest.raises(ValueError, match="precision must be None or one of ieee, bf16x3, tf32"):
        convert(layer, precision="fp32")
    assert type(layer) is torch.nn.ConvTranspose3d


def unet() -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return a small 3-D U-Net of MONAI, and a converted copy of it."""
    torch.manual_seed(0)
    network = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=(4, 8, 16),
        strides=(2, 2),
        num_res_units=1,
    )
    converted = convert(copy.deepcopy(network))
    kinds = [type(module) for module in converted.modules()]
    assert kinds.count(ConvTranspose3d) == 2
    assert torch.nn.ConvTranspose3d not in kinds
    return network, converted


def batch(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 1, 16, 24, 16, generator=generator, dtype=dtype)
    target = (x.roll(1, 2) + x.roll(-1, 3) > 0).long()[:, 0]
    return x, target


def rounding_limit(dtype: torch.dtype) -> float:
    """Return how much two computations may differ, relative to the largest value.

    Both add products in an order of their own: the rounding errors of at most 12288 terms, half of
    epsilon each, grow by the square root of their number, and add up through 10 layers.
    """
    return float(12288**0.5 * 10 * torch.finfo(dtype).eps / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_converted_unet_gives_the_same(dtype: torch.dtype) -> None:
    results, gradients = [], []
    for network in unet():
        x, target = batch(dtype)
        y = network.to(dtype)(x)
        torch.nn.functional.cross_entropy(y, target).backward()
        results.append(y)
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    for theirs, ours in (results, gradients):
        assert (theirs - ours).abs().max() <= rounding_limit(dtype) * theirs.abs().max()


def losses(network: torch.nn.Module, steps: int, dtype: torch.dtype | None = None) -> list[float]:
    x, target = batch()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(network(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_converted_unet_trains_alike() -> None:
    theirs, ours = (losses(network, 20) for network in unet())
    assert theirs[-1] < 0.8 * theirs[0]
    # A step adds the difference of its gradients; descent does not multiply it.
    for step, (a, b) in enumerate(zip(theirs, ours, strict=True), start=1):
        assert abs(a - b) <= step * rounding_limit(torch.float32) * a


def test_a_converted_unet_trains_alike_under_autocast() -> None:
    theirs, ours = (losses(network, 5, torch.bfloat16) for network in unet())
    assert theirs[-1] < theirs[0]
    # Where the float32 sums of the two differ, their bfloat16 results can, in 10 layers, by 2**-8.
    for a, b in zip(theirs, ours, strict=True):
        assert abs(a - b) <= 10 * 2.0**-8 * a


def test_arrays_of_other_libraries_are_refused() -> None:
    layer = ConvTranspose3d(4, 6, 3)
    with pytest.raises(TypeError, match="x must be a torch tensor, got a ndarray"):
        layer(torch.ones(1, 4, 2, 2, 2).numpy())
