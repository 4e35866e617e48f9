"""How KernelBench judges and times a model, in float32 (its eval.py and timing.py)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Model = Callable[[torch.Tensor], torch.Tensor]

SEED = 42
TRIALS = 5
TOLERANCE = 1e-4  # absolute and relative

WARM_UPS = 3
TIMED_TRIALS = 100
FLUSH_BYTES = 256 * 1024 * 1024


def trial_seeds(seed: int = SEED, trials: int = TRIALS) -> list[int]:
    """Return the seed of the inputs of each trial."""
    torch.manual_seed(seed)
    return [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(trials)]


@dataclass
class Verdict:
    """What the trials of a model showed so far."""

    trials: int = 0
    passed: int = 0
    #: The largest error in units of the tolerance: above 1 a trial fails, and so it does for NaN.
    worst: float = 0.0

    def add(self, expected: torch.Tensor, y: torch.Tensor) -> None:
        """Count a trial: equal shapes, and `torch.allclose` on all outputs."""
        self.trials += 1
        if y.shape != expected.shape:
            self.worst = float("inf")
            return
        # Sample by sample, as the temporaries of a whole result can take several GB.
        samples = list(zip(expected, y, strict=True))
        self.passed += all(torch.allclose(*s, atol=TOLERANCE, rtol=TOLERANCE) for s in samples)
        for one, other in samples:
            share = ((one - other).abs() / (TOLERANCE + TOLERANCE * other.abs())).max().item()
            if math.isnan(share) or share > self.worst:  # a NaN stays: nothing is above it
                self.worst = share


def judge(
    reference: Model,
    model: Model,
    draw: Callable[[], torch.Tensor],
    device: str = "cpu",
    seconds: float = float("inf"),
) -> Verdict:
    """Return the verdict on a model, of fewer trials if the seconds are over before."""
    end = time.monotonic() + seconds
    verdict = Verdict()
    for seed in trial_seeds():
        torch.manual_seed(seed)
        x = draw().to(device)
        with torch.no_grad():
            verdict.add(reference(x), model(x))
        if time.monotonic() > end:
            break
    return verdict


def mean_ms(model: Model, x: torch.Tensor) -> float:
    """Return the mean time of a call on torch's current stream, with a cold L2 cache."""
    for _ in range(WARM_UPS):
        model(x)
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    times = []
    for _ in range(TIMED_TRIALS + 1):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.empty(FLUSH_BYTES // 8, dtype=torch.int64, device="cuda").fill_(42)
        begin.record()
        model(x)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sum(times[1:]) / TIMED_TRIALS  # the first is discarded
