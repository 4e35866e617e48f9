"""What the GPU benchmark runs: every algorithm and precision of ours, every mode of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cupy_convt3d import ConvTranspose3dPlan, conv_transpose3d

REAL = ("float32", "float16", "bfloat16", "float64")
ALL = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Variant:
    """One way to call the package; ``planned``: by a `ConvTranspose3dPlan` made before."""

    algorithm: str
    precision: str = "ieee"
    dtypes: tuple[str, ...] = ALL
    planned: bool = False

    library = "cupy_convt3d"

    @property
    def label(self) -> str:
        """The name in the results."""
        return f"{self.algorithm} {self.precision}" + (" plan" if self.planned else "")

    @property
    def deterministic(self) -> bool:
        """Whether two calls must give the same bits."""
        return self.algorithm != "scatter"

    @property
    def meets_gate(self) -> bool:
        """Whether float32 results must be within KernelBench's tolerance: not those of TF32."""
        return self.precision != "tf32"

    def bind(self, x: Any, weight: Any, bias: Any, settings: dict[str, Any]) -> Callable[[], Any]:
        """Return the call that is checked and timed."""
        keywords: dict[str, Any] = {**settings, "algorithm": self.algorithm}
        if self.precision != "ieee":
            keywords["precision"] = self.precision
        if self.planned:
            plan = ConvTranspose3dPlan(weight, bias, **keywords)
            return lambda: plan(x)
        return lambda: conv_transpose3d(x, weight, bias, **keywords)


#: In the order of importance: the time of a run may end before the last of them.
VARIANTS: tuple[Variant, ...] = (
    Variant("auto"),
    Variant("auto", "bf16x3", ("float32",)),
    Variant("implicit_gemm", dtypes=REAL),
    Variant("implicit_gemm", "bf16x3", ("float32",)),
    Variant("implicit_gemm", "tf32", ("float32",)),
    Variant("implicit_gemm", dtypes=("float32",), planned=True),
    Variant("implicit_gemm", "bf16x3", ("float32",), planned=True),
    Variant("gather"),
    Variant("scatter"),
)


@dataclass(frozen=True)
class TorchVariant:
    """One mode of ``torch.nn.functional.conv_transpose3d``."""

    label: str
    tf32: bool
    benchmark: bool = False
    channels_last: bool = False
    compiled: bool = False

    library = "torch"
    deterministic = False
    meets_gate = False

    def bind(self, x: Any, weight: Any, bias: Any, settings: dict[str, Any]) -> Callable[[], Any]:
        """Set torch's flags and return the call; operands are torch tensors on a CUDA device."""
        import torch

        torch.backends.cudnn.allow_tf32 = self.tf32
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.benchmark = self.benchmark
        if self.channels_last:
            x = x.to(memory_format=torch.channels_last_3d)
            weight = weight.to(memory_format=torch.channels_last_3d)
        function = torch.nn.functional.conv_transpose3d
        if self.compiled:
            torch.compiler.reset()
            function = torch.compile(function)
        return lambda: function(x, weight, bias, **settings)


#: The two that every problem is compared with, and the others.
TORCH_EAGER = (TorchVariant("eager", tf32=False), TorchVariant("eager tf32", tf32=True))
TORCH_MODES = (
    TorchVariant("benchmark", tf32=False, benchmark=True),
    TorchVariant("benchmark tf32", tf32=True, benchmark=True),
    TorchVariant("channels_last_3d tf32", tf32=True, channels_last=True),
)
TORCH_COMPILED = (
    TorchVariant("compile", tf32=False, compiled=True),
    TorchVariant("compile tf32", tf32=True, compiled=True),
)
