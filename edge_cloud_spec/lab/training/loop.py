"""What all training shares: the loop, its learning rate, and checkpoints from which it goes on."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError

REPORT_S = 20.0  # between two lines about it
FLOOR = 0.03  # of the learning rate, as a share of its peak


def falling(progress: float, flat: float = 0.0) -> float:
    """The learning rate as a share of its peak: flat until then, and then half a cosine."""
    fall = min(1.0, max(0.0, progress - flat) / (1 - flat))
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * fall))


def write_whole(path: Path, content: object) -> None:
    """Save with torch, so that the file is there with all its content or not at all."""
    part = path.with_suffix(".part")
    torch.save(content, part)
    part.replace(path)


class Trainer:
    """Counts steps and seconds by stage, and keeps them with the state of what is trained.

    ``kept``: modules and optimizers by name. ``source`` tells this training from others.
    """

    kept: dict[str, Any]

    def __init__(self, checkpoint: Path, source: str) -> None:
        self.checkpoint, self._source = checkpoint, source
        self.steps: Counter[str] = Counter()
        self.spent: defaultdict[str, float] = defaultdict(float)  # s

    def resume(self) -> bool:
        """Continue from the checkpoint; False where there is none, UserError: it is another's."""
        if not self.checkpoint.exists():
            return False
        stored = torch.load(self.checkpoint, weights_only=True)
        if stored["of"] != self._source:
            raise UserError(
                f"{self.checkpoint} is of another target or of other options: choose another --out"
            )
        for name, each in self.kept.items():
            each.load_state_dict(stored[name])
        self.steps.update(stored["steps"])
        self.spent.update(stored["spent"])
        return True

    def save(self) -> None:
        """Write the checkpoint."""
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = {name: each.state_dict() for name, each in self.kept.items()}
        counts = {"steps": dict(self.steps), "spent": dict(self.spent)}
        write_whole(self.checkpoint, {"of": self._source, **counts, **state})

    def run_stage(
        self,
        name: str,
        progress: Callable[[], float],
        step: Callable[[float], None],
        report: Callable[[], str],
    ) -> None:
        """Steps, each from the progress so far, until that is 1."""
        if progress() >= 1.0:
            return
        print(f"{name}: {progress():.0%}", flush=True)
        reported = time.monotonic()
        while (share := progress()) < 1.0:
            begun = time.monotonic()
            step(share)
            now = time.monotonic()
            self.spent[name] += min(now - begun, 15.0)
            self.steps[name] += 1
            if now - reported > REPORT_S:
                minutes = f"{self.spent[name] / 60:.1f} min, step {self.steps[name]}"
                print(f"{name}: {share:.0%}, {minutes}, {report()}", flush=True)
                self.save()
                reported = now
        self.save()


def descend(
    optimizers: Sequence[torch.optim.Optimizer], loss: Tensor, rate: float, longest: float
) -> None:
    """A step down the gradient of the loss, which is cut to the longest norm."""
    torch.autograd.backward(loss)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], longest)
    for group in groups:
        group["lr"] = rate
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
