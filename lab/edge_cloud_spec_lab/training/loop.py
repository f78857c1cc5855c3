"""The training loop shared by all training, and its learning rate schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PROGRESS_REPORT_S = 20.0  # between two lines about it
LONGEST_STEP_S = 15.0  # seconds that a step counts, so that a pause of the machine does not
RATE_FLOOR = 0.03  # of the learning rate, as a share of its peak


def falling(progress: float, flat: float = 0.0) -> float:
    """The learning rate as a share of its peak: constant until ``flat``, then half a cosine."""
    fall = min(1.0, max(0.0, progress - flat) / (1 - flat))
    return RATE_FLOOR + (1 - RATE_FLOOR) * 0.5 * (1 + math.cos(math.pi * fall))


def run_stage(
    name: str,
    progress: Callable[[float, int], float],
    step: Callable[[float], None],
    report: Callable[[], str],
) -> None:
    """Call ``step(progress)`` until progress reaches 1; ``progress`` maps seconds and steps to
    0..1."""
    spent, steps, reported = 0.0, 0, time.monotonic()
    print(f"{name}: 0%", flush=True)
    while (share := progress(spent, steps)) < 1.0:
        begun = time.monotonic()
        step(share)
        now = time.monotonic()
        spent += min(now - begun, LONGEST_STEP_S)
        steps += 1
        if now - reported > PROGRESS_REPORT_S:
            print(
                f"{name}: {share:.0%}, {spent / 60:.1f} min, step {steps}, {report()}", flush=True
            )
            reported = now


def descend(
    optimizers: Sequence[torch.optim.Optimizer], loss: Tensor, rate: float, longest: float
) -> None:
    """Take a step at learning rate ``rate``, with the gradient's norm clipped to ``longest``."""
    torch.autograd.backward(loss)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], longest)
    for group in groups:
        group["lr"] = rate
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
