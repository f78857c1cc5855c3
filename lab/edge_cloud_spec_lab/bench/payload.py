"""``bench payload``: serialized bytes a round, up and down.

A row for each preset that drafts on a robot, and each rule. Robot and cloud are a loopback pair:
all messages of a round count as they are encoded, the resampled token and the request for a dense
row included; the framing of gRPC, TLS and TCP does not. Presets that draft on predictions send
more: ``bench pipelines`` has their bytes.

The models have no weights but a stated tail. The target's logits are -s ln(rank), so that P falls
as rank^-s (Zipf), with the tokens in another order after each prefix. The draft model's are the
same plus normal noise, drawn for each token and each prefix alone. At temperature 1 and 151,936
tokens, with noise 1:

| tail | s | perplexity | mass outside the likeliest 32 | acceptance |
|---|---|---|---|---|
| sharp | 3 | 2.0 | 0.0004 | 0.85 |
| typical | 2 | 5.1 | 0.019 | 0.74 |
| heavy | 1.25 | 163 | 0.34 | 0.64 |

``heavy`` keeps 0.85 of its mass in 1 % of 32,000 tokens, as TSLT's figure 3 shows it of a real
model. What real pairs have and these have not: rows of several sharpnesses in one answer, and a
draft model that errs alike on like tokens.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_cloud_spec.decoding.policy import RULES, SamplingPolicy, temperature_of
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.presets import load_preset, preset_names

from ..harness.loopback import LoopbackPair
from ..harness.scripted.model import FakeVlm, mix
from .command import Options, Row
from .options import check_counts

TAILS = {"sharp": 3.0, "typical": 2.0, "heavy": 1.25}
PAYLOAD_CHAIN_TOKENS = 4
POOL = 8  # rows that are drawn; a prefix has one of them, rolled, so no two are equal in practice


class PowerLaw(FakeVlm):
    """A model with logits [V] of one tail; with ``noise`` 0 it is the target of this seed."""

    def __init__(self, exponent: float, vocabulary: int, seed: int, noise: float = 0.0) -> None:
        self.vocabulary = vocabulary
        rng = np.random.default_rng((seed, vocabulary, 0x7A))
        logits = (-exponent * np.log(np.arange(1, vocabulary + 1))).astype(np.float32)
        self._rows = [rng.permutation(logits) for _ in range(POOL)]
        self._noise = [
            np.float32(noise) * rng.standard_normal(vocabulary, np.float32)
            for _ in range(POOL if noise else 0)
        ]

    def start(self, prompt: int) -> int:
        """The state after the prompt, which is a number."""
        return mix(prompt, 0)

    def after(self, state: int, token: int) -> int:
        """The state one token later."""
        return mix(state, token + 3)

    def row(self, state: int) -> NDArray[np.float32]:
        """Logits float32 [V] after the prefix with this state."""
        row = _rolled(self._rows, mix(state, 1))
        return row + _rolled(self._noise, mix(state, 2)) if self._noise else row


def _rolled(rows: list[NDArray[np.float32]], state: int) -> NDArray[np.float32]:
    return np.roll(rows[state % len(rows)], (state >> 8) % len(rows[0]))


@dataclass
class RoundBytes:
    """Serialized bytes of each round, and how many of its drafted tokens were accepted.

    ``down`` excludes the dense P that a robot requests when a sparse residual does not suffice;
    those are counted in ``fallbacks``. ``rejections``: rounds whose verdict rejected all candidates
    at one position.
    """

    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    fallbacks: int = 0
    accepted: int = 0
    rejections: int = 0

    def add_round(self, pair: LoopbackPair) -> None:
        """Run one round of the pair and count it."""
        up, down, dense = pair.up_bytes, pair.down_bytes, pair.row_bytes
        pair.round()
        fallback = pair.row_bytes - dense
        self.up.append(pair.up_bytes - up)
        self.down.append(pair.down_bytes - down - fallback)
        self.fallbacks += fallback > 0
        draft, verdict = pair.draft, pair.verdict
        assert draft is not None and verdict is not None
        self.accepted += len(verdict.path)
        self.rejections += bool(list(draft.children(verdict.path[-1] if verdict.path else -1)))

    def row(self) -> Row:
        """Means, maxima and counts."""
        return {
            "rounds": len(self.up),
            "up_bytes_mean": statistics.fmean(self.up),
            "up_bytes_max": max(self.up),
            "down_bytes_mean": statistics.fmean(self.down),
            "down_bytes_max": max(self.down),
            "acceptance": self.accepted / (self.accepted + self.rejections),
            "rejections": self.rejections,
            "fallbacks": self.fallbacks,
        }


OPTIONS: Options = {
    "--vocab": {"type": int, "default": 151_936, "help": "(default %(default)s)"},
    "--rounds": {"type": int, "default": 24, "help": "of each row (default %(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per preset and rule."""
    check_counts(args, "vocab", "rounds")
    models = pair_of_tail("typical", args.vocab, args.seed)
    rows = []
    for name in preset_names():
        preset = load_preset(name)
        if not (preset.drafts_on_robot and preset.verified) or preset.speculation.predicts:
            continue
        if preset.draft_length:
            preset = replace(preset, draft_length=PAYLOAD_CHAIN_TOKENS)
        for rule in RULES:
            policy = SamplingPolicy(temperature_of(rule, 1.0), seed=args.seed)
            measured = measure(preset, rule, policy, models, args.rounds)
            rows.append({"preset": name, "rule": rule, **measured, "exact": preset.exact})
    return rows


def pair_of_tail(
    tail: str, vocabulary: int, seed: int, noise: float = 1.0
) -> tuple[PowerLaw, PowerLaw]:
    """The draft model and the target with the tail of this name."""
    exponent = TAILS[tail]
    return PowerLaw(exponent, vocabulary, seed, noise), PowerLaw(exponent, vocabulary, seed)


def measure(
    preset: Preset,
    rule: str,
    policy: SamplingPolicy,
    models: tuple[PowerLaw, PowerLaw],
    rounds: int,
) -> Row:
    """Run ``rounds`` rounds with the two models; returns their row."""
    sessions: Any = tuple(model.open(policy.seed) for model in models)
    pair = LoopbackPair(preset, rule, policy, sessions, models[1].vocabulary)
    totals = RoundBytes()
    for _ in range(rounds):
        totals.add_round(pair)
    return totals.row()
