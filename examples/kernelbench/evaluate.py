"""Evaluate the models of this folder with KernelBench's published protocol.

On a GPU each model is judged and timed, in two precisions, beside torch in eager mode; README.md
describes the protocol. ``--cpu`` judges the NumPy path. ``--simulated`` judges the kernels through
CuPy arrays, on reduced shapes: for a simulated device, or a torch without CUDA. The exit status is
1 if a model fails.

Run: python examples/kernelbench/evaluate.py [--cpu | --simulated] [--problems 58 61 ...]
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
from problems import PROBLEMS, Problem
from protocol import SEED, TRIALS, Model, Verdict, judge, mean_ms
from torch import nn

from cupy_convt3d import conv_transpose3d

#: Those within the tolerance.
PRECISIONS = ("ieee", "bf16x3")


def build(problem: Problem, precision: str = PRECISIONS[0]) -> tuple[nn.Module, nn.Module]:
    """Return the reference and the model, each with the parameters that the seed gives it."""
    torch.manual_seed(SEED)
    reference = problem.reference()
    torch.manual_seed(SEED)
    return reference, problem.submission(precision)


class Stopwatch:
    """A model on the CPU that counts the seconds of its calls."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.seconds = 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Call the model."""
        begin = time.perf_counter()
        y = self._model(x)
        self.seconds += time.perf_counter() - begin
        return y


def through_cupy(layer: nn.ConvTranspose3d, precision: str) -> Model:
    """Return a model that computes a layer on CuPy's device."""
    import cupy

    weight = cupy.asarray(layer.weight.detach().numpy())

    def model(x: torch.Tensor) -> torch.Tensor:
        y = conv_transpose3d(
            cupy.asarray(x.numpy()),
            weight,
            None,
            layer.stride,
            layer.padding,
            layer.output_padding,
            layer.groups,
            layer.dilation,
            precision=precision,
        )
        return torch.from_numpy(cupy.asnumpy(y))

    return model


def fits_in_memory(problem: Problem) -> bool:
    """Return whether input, results and a temporary take less than half of the memory."""
    x = torch.empty(problem.x_shape, device="meta")
    y = problem.reference().to("meta")(x)
    return x.nbytes + 3 * y.nbytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2


def row(problem: Problem, what: str, verdict: Verdict, *times: float) -> bool:
    """Print a row of the table; return whether the model passed."""
    good = verdict.passed == TRIALS
    gate = f"{verdict.passed} of {TRIALS}" + ("" if good else ", FAILED")
    columns = "".join(f"{t:16.3f}" for t in times)
    print(f"{problem.number:7}  {what:9}  {gate:14}  {verdict.worst:11.4f}{columns}", flush=True)
    return good


def head(*times: str) -> None:
    """Print the head of the table."""
    print("worst error: as a share of the tolerance of 1e-4, absolute and relative")
    columns = "".join(f"{t:>16}" for t in times)
    print(f"problem  precision  {'trials passed':14}  worst error{columns}")


def evaluate_on_cpu(problems: list[Problem], minutes: float) -> bool:
    """Judge the NumPy path beside torch on the CPU; return whether nothing failed."""
    print(f"NumPy path; reference: torch {torch.__version__}, {torch.get_num_threads()} threads")
    head("ours (s)", "torch (s)")
    end = time.monotonic() + 60 * minutes
    good = True
    for problem in problems:
        if not fits_in_memory(problem):
            print(f"{problem.number:7}  not run: it may need more than half of the memory")
            continue
        reference, model = map(Stopwatch, build(problem))
        verdict = judge(reference, model, problem.draw, seconds=end - time.monotonic())
        if verdict.passed == verdict.trials < TRIALS:
            print(f"{problem.number:7}  not judged: {minutes:g} minutes were over")
            continue
        seconds = (model.seconds, reference.seconds)
        good &= row(problem, "float32", verdict, *(s / verdict.trials for s in seconds))
    return good


def evaluate_through_cupy(problems: list[Problem]) -> bool:
    """Judge the kernels beside torch on the CPU; return whether nothing failed."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"CuPy arrays on {name}; reference: torch {torch.__version__} on the CPU")
    head()
    good = True
    for problem in problems:
        for precision in PRECISIONS:
            reference, model = build(problem)
            ours = through_cupy(model.conv_transpose3d, precision)
            good &= row(problem, precision, judge(reference, ours, problem.draw))
    return good


def evaluate_on_gpu(problems: list[Problem]) -> bool:
    """Judge and time the models beside torch on the GPU; return whether nothing failed."""
    cudnn = torch.backends.cudnn
    print(
        f"{torch.cuda.get_device_name()}; reference: torch {torch.__version__}, "
        f"CUDA {torch.version.cuda}, cuDNN {cudnn.version()}, without TF32; times: means in ms"
    )
    head("ours", "eager", "eager with TF32")
    good = True
    for problem in problems:
        reference = build(problem)[0].cuda()
        torch.manual_seed(SEED)
        x = problem.draw().cuda()
        cudnn.allow_tf32 = True
        eager_tf32 = mean_ms(reference, x)
        cudnn.allow_tf32 = False
        eager = mean_ms(reference, x)
        for precision in PRECISIONS:
            model = build(problem, precision)[1].cuda()
            verdict = judge(reference, model, problem.draw, "cuda")
            good &= row(problem, precision, verdict, mean_ms(model, x), eager, eager_tf32)
    return good


def main() -> int:
    numbers = [problem.number for problem in PROBLEMS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cpu", action="store_true", help="the NumPy path")
    where.add_argument("--simulated", action="store_true", help="CuPy arrays, reduced shapes")
    parser.add_argument("--problems", nargs="+", type=int, choices=numbers, default=numbers)
    parser.add_argument("--reduced", action="store_true", help="one sample of few rows")
    parser.add_argument("--minutes", type=float, default=10, help="of --cpu; default 10")
    options = parser.parse_args()

    problems = [problem for problem in PROBLEMS if problem.number in options.problems]
    if options.reduced or options.simulated:
        problems = [problem.reduced() for problem in problems]
    if options.cpu:
        good = evaluate_on_cpu(problems, options.minutes)
    elif options.simulated:
        good = evaluate_through_cupy(problems)
    elif torch.cuda.is_available():
        good = evaluate_on_gpu(problems)
    else:
        parser.error("torch finds no CUDA device: use --cpu, or --simulated with CuPy")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
