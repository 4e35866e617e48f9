"""The gradients in the GPU benchmark: ours in every algorithm and precision, and torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_timing import Effort, Flush, flushed_times, summary
from benchmarks.gpu_workload import (
    EDGES,
    TOLERANCE,
    Workload,
    device_operands,
    ends,
    integer_operands,
    load_workload,
    products,
    uniform,
)
from cupy_convt3d import conv_transpose3d_grad_input, conv_transpose3d_grad_weight
from cupy_convt3d._choice_gradient import Gradient

Row = dict[str, Any]


@dataclass(frozen=True)
class GradientVariant:
    """One way to compute a gradient with the package."""

    gradient: Gradient
    algorithm: str
    precision: str = "ieee"

    library = "cupy_convt3d"

    @property
    def label(self) -> str:
        """The name in the results."""
        return f"{self.gradient} {self.algorithm} {self.precision}"

    def bind(self, workload: Workload, x: Any, weight: Any, grad: Any) -> Callable[[], Any]:
        """Return the call that is checked and timed."""
        keywords: dict[str, Any] = {
            **workload.settings,
            "algorithm": self.algorithm,
            "precision": self.precision,
        }
        if self.gradient == "grad_input":
            return lambda: conv_transpose3d_grad_input(grad, weight, x.shape, **keywords)
        return lambda: conv_transpose3d_grad_weight(x, grad, weight.shape, **keywords)


@dataclass(frozen=True)
class TorchGradient:
    """torch's own gradient, through cuDNN where torch likes."""

    gradient: Gradient
    tf32: bool

    library = "torch"

    @property
    def label(self) -> str:
        """The name in the results."""
        return f"{self.gradient} eager{' tf32' if self.tf32 else ''}"

    def bind(self, workload: Workload, x: Any, weight: Any, grad: Any) -> Callable[[], Any]:
        """Set torch's flags and return the call, on torch tensors of the same memory."""
        import torch

        torch.backends.cudnn.allow_tf32 = self.tf32
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.benchmark = False
        x, weight, grad = (torch.from_dlpack(a) for a in (x, weight, grad))
        p = workload.problem
        of_input = self.gradient == "grad_input"

        def call() -> Any:
            found = torch.ops.aten.convolution_backward(
                grad,
                x,
                weight,
                None,
                p.stride,
                p.padding,
                p.dilation,
                True,
                p.output_padding,
                p.groups,
                (of_input, not of_input, False),
            )
            return found[0 if of_input else 1]

        return call


AnyGradient = GradientVariant | TorchGradient

#: In the order of importance.
GRADIENTS: tuple[GradientVariant, ...] = (
    GradientVariant("grad_input", "auto"),
    GradientVariant("grad_weight", "auto"),
    GradientVariant("grad_input", "auto", "bf16x3"),
    GradientVariant("grad_weight", "auto", "bf16x3"),
    GradientVariant("grad_input", "gather"),
    GradientVariant("grad_weight", "direct"),
)
TORCH_GRADIENTS = (
    TorchGradient("grad_input", tf32=False),
    TorchGradient("grad_weight", tf32=False),
    TorchGradient("grad_input", tf32=True),
    TorchGradient("grad_weight", tf32=True),
)


@dataclass(frozen=True)
class CheckGradient:
    """Compare a gradient with its definition on small problems, exactly."""

    variant: GradientVariant
    dtype: str
    estimate_s: float = 15.0
    limit_s: float = 90.0

    def row(self) -> Row:
        """Return what identifies the task in the results."""
        return {"kind": "check", "variant": self.variant.label, "dtype": self.dtype}

    def run(self, row: Row) -> None:
        """Add the names of the problems with a wrong result."""
        import cupy
        import numpy as np

        from tests.reference import gradient_reference

        which = 0 if self.variant.gradient == "grad_input" else 1
        row["wrong"] = []
        for name in EDGES:
            workload = load_workload(name)
            p = workload.problem
            x, weight, _ = integer_operands(workload, np.dtype(self.dtype))
            rng = np.random.default_rng(1)
            grad = rng.integers(-1, 2, p.y_shape).astype(self.dtype)
            exact = gradient_reference(x, weight, grad, p.stride, p.padding, p.groups, p.dilation)[
                which
            ]
            arrays = [cupy.asarray(a) for a in (x, weight, grad)]
            found = self.variant.bind(workload, *arrays)().get()
            if not np.array_equal(found, exact.astype(self.dtype)):
                row["wrong"].append(name)
        row["checked"] = len(EDGES)


@dataclass(frozen=True)
class MeasureGradient:
    """Check and time one gradient of one problem, in float32."""

    problem: str
    variant: AnyGradient
    effort: Effort
    tiny: bool = False
    estimate_s: float = 8.0
    limit_s: float = 60.0

    def row(self) -> Row:
        """Return what identifies the task in the results."""
        return {
            "kind": "gradient",
            "problem": self.problem,
            "library": self.variant.library,
            "variant": self.variant.label,
            "protocol": "flushed",
        }

    def run(self, row: Row) -> None:
        """Add accuracy, and times."""
        import cupy

        workload = load_workload(self.problem, self.tiny)
        row["multiply_adds"] = products(workload)
        x, weight, _ = device_operands(workload).arrays
        # Of both signs: sums of positive numbers alone hide an error of the other sign.
        grad = uniform(workload.problem.y_shape, -1.0, 1.0, 4)
        call = self.variant.bind(workload, x, weight, grad)
        first = cupy.from_dlpack(call())
        row.update(gradient_accuracy(self.variant.gradient, workload, x, weight, grad, first))
        if self.variant.library == "cupy_convt3d":
            row["same_bits"] = bool(cupy.array_equal(first, call()))
        del first
        row.update(summary(flushed_times(call, Flush(self.effort), self.effort)))


def gradient_accuracy(
    gradient: Gradient, workload: Workload, x: Any, weight: Any, grad: Any, found: Any
) -> Row:
    """Return how far a gradient is from float64 on the CPU, over the largest exact value.

    Of the input: first and last sample, first and last channel of each group. Of the weights: the
    first and last channels of each group.
    """
    import numpy as np

    p = workload.problem
    in_channels, out_channels = ends(p.in_channels_per_group), ends(p.out_channels_per_group)
    grouped_in = (p.groups, p.in_channels_per_group)
    keywords = workload.settings

    def some(array: Any, per_group: int, kept: list[int], samples: list[int]) -> Any:
        """Return some samples and some channels of every group of a tensor, in float64."""
        volume = array.shape[2:]
        parts = [
            array[n].reshape(p.groups, per_group, *volume)[:, kept].get().astype(np.float64)
            for n in samples
        ]
        return np.stack(parts).reshape(len(samples), -1, *volume)

    weight_in = weight.get().astype(np.float64).reshape(*grouped_in, *weight.shape[1:])
    weight_in = weight_in[:, in_channels].reshape(-1, *weight.shape[1:])
    if gradient == "grad_input":
        samples = ends(p.batch)
        every = list(range(p.out_channels_per_group))
        exact = conv_transpose3d_grad_input(
            some(grad, p.out_channels_per_group, every, samples),
            weight_in,
            (len(samples), len(weight_in), *p.input),
            **keywords,
        )
        values = some(found, p.in_channels_per_group, in_channels, samples)
    else:
        everything = list(range(p.batch))
        exact = conv_transpose3d_grad_weight(
            some(x, p.in_channels_per_group, in_channels, everything),
            some(grad, p.out_channels_per_group, out_channels, everything),
            (len(weight_in), len(out_channels), *p.kernel),
            **keywords,
        )
        values = found.get().astype(np.float64).reshape(*grouped_in, *weight.shape[1:])
        values = values[:, in_channels][:, :, out_channels].reshape(exact.shape)
    error = np.abs(values - exact)
    scale = float(np.abs(exact).max())
    return {
        "max_error": float(error.max()),
        "largest": scale,
        # A comparison that is false for NaN.
        "within_gate": bool(error.max() <= TOLERANCE * scale),
    }


@dataclass(frozen=True)
class CheckTorchOperators:
    """Compare the operators on CUDA tensors of torch with the functions on CuPy arrays, bit by bit.

    On torch's current stream and on another one, by automatic differentiation, and captured in a
    CUDA graph.
    """

    estimate_s: float = 30.0
    limit_s: float = 120.0

    def row(self) -> Row:
        """Return what identifies the task in the results."""
        return {"kind": "check", "variant": "torch operators", "dtype": "float32"}

    def run(self, row: Row) -> None:
        """Add the names of the ways that gave other bits."""
        import cupy
        import torch

        from cupy_convt3d.torch import conv_transpose3d

        workload = load_workload("kb1-58", tiny=True)
        x, weight, _ = device_operands(workload).arrays
        grad = uniform(workload.problem.y_shape, -1.0, 1.0, 4)
        expected = [
            GradientVariant(gradient, "auto").bind(workload, x, weight, grad)()
            for gradient in ("grad_input", "grad_weight")
        ]
        tensors = [torch.from_dlpack(a) for a in (x, weight)]
        grad_tensor = torch.from_dlpack(grad)

        def differentiate() -> list[Any]:
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            conv_transpose3d(*leaves, None, **workload.settings).backward(grad_tensor)
            return [leaf.grad for leaf in leaves]

        def on_another_stream() -> list[Any]:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found = differentiate()
            torch.cuda.current_stream().wait_stream(stream)
            return found

        def in_a_graph() -> list[Any]:
            on_another_stream()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = differentiate()
            graph.replay()
            return found

        row["wrong"] = []
        ways = {"backward": differentiate, "stream": on_another_stream, "graph": in_a_graph}
        for name, way in ways.items():
            found = [cupy.from_dlpack(tensor) for tensor in way()]
            torch.cuda.synchronize()
            if not all(map(cupy.array_equal, found, expected)):
                row["wrong"].append(name)
        row["checked"] = len(ways)


def gradient_checks(torch_cuda: bool) -> Iterator[CheckGradient | CheckTorchOperators]:
    """Return the checks of the gradients, the most important first."""
    for variant in GRADIENTS:
        yield CheckGradient(variant, "float32")
    if torch_cuda:
        yield CheckTorchOperators()


def gradient_times(
    problem: str, effort: Effort, tiny: bool, torch_cuda: bool
) -> Iterator[MeasureGradient]:
    """Return the measurements of one problem, the most important first."""
    for variant in (*GRADIENTS, *(TORCH_GRADIENTS if torch_cuda else ())):
        yield MeasureGradient(problem, variant, effort, tiny)
