"""The operators in torch.compile and torch.export: one graph, symbolic sizes, no recompiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import cupy_convt3d
import cupy_convt3d.torch
from cupy_convt3d.torch import ConvTranspose3d

GEOMETRY = {"stride": (2, 1, 2), "groups": 2, "output_padding": (1, 1, 0), "dilation": (1, 2, 3)}
#: Sizes that no other axis has: torch takes equal ones for the same symbol.
SHAPES = [(7, 4, 5, 11, 9), (8, 4, 12, 10, 13), (5, 4, 9, 7, 8)]


def layer() -> ConvTranspose3d:
    torch.manual_seed(0)
    return ConvTranspose3d(4, 6, (2, 3, 2), **GEOMETRY)


def functions() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    module = layer()
    weight, bias = module.weight.detach(), module.bias.detach()

    def sized(x: torch.Tensor) -> torch.Tensor:
        depth, height, width = x.shape[2:]
        return module(x, output_size=(2 * depth, height + 5, 2 * width + 2))

    def gradients(x: torch.Tensor) -> torch.Tensor:
        y = cupy_convt3d.torch.conv_transpose3d(x, weight, **GEOMETRY)
        grad_x = cupy_convt3d.conv_transpose3d_grad_input(y, weight, x.shape, **GEOMETRY)
        grad_weight = cupy_convt3d.conv_transpose3d_grad_weight(x, y, weight.shape, **GEOMETRY)
        return grad_x * grad_weight.sum() + cupy_convt3d.conv_transpose3d_grad_bias(y).sum()

    return {
        "module": module,
        "function": lambda x: cupy_convt3d.torch.conv_transpose3d(x, weight, bias, **GEOMETRY),
        "top-level": lambda x: cupy_convt3d.conv_transpose3d(x, weight, bias, **GEOMETRY),
        "unbatched": lambda x: module(x[0]),
        "output-size": sized,
        "gradients": gradients,
    }


@pytest.mark.parametrize("name", list(functions()))
def test_compiled_once_for_all_sizes(name: str) -> None:
    torch._dynamo.reset()
    function = functions()[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for seed, shape in enumerate(SHAPES):
        results = []
        for call in (function, compiled):
            torch.manual_seed(seed)
            x = torch.randn(shape, requires_grad=True)
            y = call(x)
            y.sin().sum().backward()
            results.append((y.detach(), x.grad))
        # The same operators: not even rounding differs, but in the sums of torch around them.
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        counts.append(counter.frame_count)
    assert counts[0] > 0
    assert counts == [counts[0]] * len(SHAPES)


def test_compiled_code_refuses_what_eager_code_refuses() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        cupy_convt3d.torch.conv_transpose3d, backend="aot_eager", fullgraph=True, dynamic=True
    )
    x, weight = torch.zeros(1, 2, 3, 4, 5), torch.zeros(2, 2, 2, 2, 2)
    with pytest.raises(Exception, match="weight must have the dtype of x, float32, got"):
        compiled(x, weight.double())
    with pytest.raises(Exception, match="weight must have 5 axes, got 4 with shape"):
        compiled(x, weight[0])
    with pytest.raises(ValueError, match="output_padding must be smaller than stride or dilation"):
        compiled(x, weight, None, 1, 0, 1)
    with pytest.raises(ValueError, match="weight must have C_in = 2 entries on axis 0, got 3"):
        compiled(x, torch.zeros(3, 2, 2, 2, 2))


def test_compiled_under_autocast() -> None:
    torch._dynamo.reset()
    module = layer()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x = torch.randn(SHAPES[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, expected = compiled(x), module(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


def test_export_with_symbolic_sizes() -> None:
    module = layer()
    sizes = ({0: torch.export.Dim("n"), 2: torch.export.Dim("d"), 4: torch.export.Dim("w")},)
    program = torch.export.export(module, (torch.randn(SHAPES[0]),), dynamic_shapes=sizes)
    nodes = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert nodes == [torch.ops.cupy_convt3d.conv_transpose3d.default]
    x = torch.randn(2, 4, 6, 11, 8)
    torch.testing.assert_close(program.module()(x), module(x), rtol=0, atol=0)


def test_traces_hold_the_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    weight = torch.randn(4, 3, 2, 2, 2)

    def call(x: torch.Tensor) -> torch.Tensor:
        return cupy_convt3d.conv_transpose3d(x, weight, stride=2)

    traced: Any = make_fx(call)(torch.randn(1, 4, 2, 3, 4))
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.cupy_convt3d.conv_transpose3d.default]
    x = torch.randn(1, 4, 2, 3, 4)
    torch.testing.assert_close(traced(x), call(x), rtol=0, atol=0)
