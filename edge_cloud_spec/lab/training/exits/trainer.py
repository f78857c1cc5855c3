"""Training of early exits: adapters that learn the last layer's distribution (FSD section 3).

They learn from rows of the target's own answers; the target stays as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import UserError
from ....models.exits import Adapter, Exits
from ....models.vlm import Vlm
from .data import REPORT_INTERVAL, Rows, write_whole

BATCH = 512  # rows of a step
PEAK_RATE = 3e-3
WARMUP = 50  # steps
WEIGHT_DECAY = 0.01
HELD_OUT = 0.1  # of the rows, the last ones
MAX_HELD_OUT = 4096
MIN_SHARE = 1e-6  # of the target's tokens: a rarer one is not on the shortlist


def frequent_tokens(rows: Rows, count: int, vocabulary: int) -> tuple[int, ...]:
    """The ``count`` most frequent tokens (0: all) of the target, by their mean probability."""
    if not count:
        return tuple(range(vocabulary))
    mass = torch.zeros(vocabulary).index_add(0, rows.ids.flatten(), rows.shares.flatten())
    likely = (mass / len(rows)).topk(min(count, vocabulary))
    return tuple(sorted(likely.indices[likely.values > MIN_SHARE].tolist()))


class ExitTrainer:
    """Adapters in training; owns their weights, optimizer, data order and checkpoint."""

    def __init__(
        self,
        vlm: Vlm,
        layers: Sequence[int],
        rank: int,
        tokens: Sequence[int],
        rows: Rows,
        seed: int,
        checkpoint: Path,
    ) -> None:
        torch.manual_seed(seed)
        adapters = {layer: Adapter(rows.hidden.shape[-1], rank) for layer in layers}
        self.exits = Exits(vlm, adapters, tokens, torch.float32)
        self.steps, self.spent = 0, 0.0
        self._device = vlm.transformer.device
        self._modules = nn.ModuleList(adapters[layer] for layer in layers).requires_grad_()
        self._optimizer = torch.optim.AdamW(
            self._modules.parameters(), PEAK_RATE, (0.9, 0.98), weight_decay=WEIGHT_DECAY
        )
        self._rng = np.random.default_rng((seed, 0xE73))
        self._checkpoint = checkpoint
        self._source = f"{vlm.identity} {layers} rank {rank}, {len(tokens)} tokens"
        place = torch.full((vlm.vocabulary,), -1)
        place[list(tokens)] = torch.arange(len(tokens))
        self._rows, self._places = rows, place[rows.ids]  # [N, TOP] among the tokens, or -1
        held_out = min(MAX_HELD_OUT, math.ceil(HELD_OUT * len(rows)))
        self._learned = len(rows) - held_out

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one; UserError: it is of another training."""
        if not self._checkpoint.exists():
            return
        stored = torch.load(self._checkpoint, weights_only=True)
        if stored["of"] != self._source:
            raise UserError(
                f"{self._checkpoint} is of another target, --layers, --rank or shortlist: choose "
                "another --out"
            )
        self._modules.load_state_dict(stored["adapters"])
        self._optimizer.load_state_dict(stored["optimizer"])
        self.steps, self.spent = stored["steps"], stored["spent"]
        self._rng = np.random.default_rng((self.steps, 0xE73))

    def save(self) -> None:
        """Write the checkpoint."""
        kept = {"adapters": self._modules.state_dict(), "optimizer": self._optimizer.state_dict()}
        progress = {"of": self._source, "steps": self.steps, "spent": self.spent}
        write_whole(self._checkpoint, {**progress, **kept})

    def run(self, seconds: float) -> None:
        """Train until ``seconds`` are spent, those of earlier runs included."""
        reported = time.monotonic()
        while self.spent < seconds:
            begun = time.monotonic()
            self._step(self.spent / seconds)
            now = time.monotonic()
            self.spent += now - begun
            if now - reported > REPORT_INTERVAL:
                share = min(1.0, self.spent / seconds)
                print(f"training: {share:.0%}, step {self.steps}, {self.report()}", flush=True)
                self.save()
                reported = now
        self.save()

    def measure(self) -> dict[int, tuple[float, float]]:
        """By layer: the exit's loss on held-out rows, and on what share of them it agrees.

        It agrees where its likeliest token is the target's.
        """
        chosen = np.arange(self._learned, len(self._rows))
        with torch.no_grad():
            found = [self._loss_and_agreement(each, chosen) for each in range(len(self._modules))]
        layers = self.exits.adapters
        return {
            at: (float(loss), float(hit)) for at, (loss, hit) in zip(layers, found, strict=True)
        }

    def report(self) -> str:
        """The figures of ``measure`` as one line."""
        exits = [
            f"{at} layers {hit:.3f} (loss {loss:.3f})" for at, (loss, hit) in self.measure().items()
        ]
        return "agreement after " + ", ".join(exits)

    def _step(self, progress: float) -> None:
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        rate = PEAK_RATE * min(1.0, (self.steps + 1) / WARMUP) * (0.03 + 0.97 * fall)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        chosen = self._rng.integers(self._learned, size=BATCH)
        loss = torch.stack(
            [self._loss_and_agreement(each, chosen)[0] for each in range(len(self._modules))]
        ).sum()
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        self.steps += 1

    def _loss_and_agreement(self, each: int, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
        """KL(final pass || exit) of one exit on these rows, and its share of agreement."""
        rows = torch.from_numpy(chosen)
        layer = list(self.exits.adapters)[each]
        hidden = self._rows.hidden[rows, each].to(self._device)
        places = self._places[rows].to(self._device)
        shares = self._rows.shares[rows].to(self._device) * (places >= 0)
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=1e-9)  # sum 1 over those
        log_exit = F.log_softmax(self.exits.logits(layer, hidden), -1)
        log_exit_top = log_exit.gather(-1, places.clamp(min=0))
        divergence = (shares * (shares.clamp(min=1e-9).log() - log_exit_top)).sum(-1)
        return divergence.mean(), (log_exit.argmax(-1) == places[:, 0]).float().mean()
