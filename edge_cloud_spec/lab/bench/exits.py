"""``bench exits``: how often an early exit predicts the verdict, and what the exits cost.

Prints the hit rate by depth and the verify pass's time with exits over that without. Rounds are of
the draft model's chains over held-out views. Each pass is timed without and with the exits, then
with and without, so that both see the same machine and warm caches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...decoding.draft import Draft
from ...decoding.policy import SamplingPolicy
from ...errors import UserError
from ...models import EMBEDDED
from ...models.exits import ExitPrediction, Exits, shape_of
from ...models.load import load
from ...models.prompt import Request
from ...models.vlm import Vlm
from ...share import rules_text
from .command import Options, Row
from .decodes import emitted_tokens, local_rounds, sample_cases
from .models import crop_alike

DEPTH = 0.6  # the share of the target's layers within which a prediction is wanted
MAX_TOKENS = 48
PROGRESS_EVERY = 25  # requests

Tokens = tuple[int, ...]


OPTIONS: Options = {
    "--requests": {"type": int, "default": 100, "help": "with pictures (%(default)s)"},
    "--gamma": {"type": int, "default": 4, "help": "draft length (%(default)s)"},
    "--temperature": {"type": float, "default": 0.8, "help": "of coupled (%(default)s)"},
    "--target": {"default": str(EMBEDDED / "target")},
    "--drafter": {"default": str(EMBEDDED / "drafter")},
    "--exits": {"type": Path, "help": "folder (default: exits/ of the target)"},
    "--threads": {"type": int, "default": 1, "help": "of torch (default %(default)s)"},
}


@dataclass(frozen=True)
class ExitRound:
    """What the exits predicted, as (layer, tokens), the verdict, and seconds of two passes each."""

    predictions: tuple[tuple[int, Tokens], ...]
    verdict: Tokens
    with_s: float
    without_s: float

    def predicted(self, layers: float) -> bool:
        """Whether an exit after so many layers at most gave the verdict's tokens."""
        return any(at <= layers and tokens == self.verdict for at, tokens in self.predictions)


def run(args: argparse.Namespace) -> list[Row]:
    """A row a rule and depth."""
    if args.requests < 1 or args.gamma < 1 or not args.temperature > 0:
        raise UserError("--requests and --gamma must be 1 or more, --temperature above 0")
    target, drafter = load(args.target, threads=args.threads), load(args.drafter)
    crop_alike(drafter, target)
    folder = args.exits or Path(args.target) / "exits"
    exits = Exits.load(folder, target)
    if exits is None:
        raise UserError(f"{folder} holds no exits: make some with edge-cloud-spec train exits")
    rows: list[Row] = []
    for rule, temperature in (("greedy", 0.0), ("coupled", args.temperature)):
        rounds: list[ExitRound] = []
        for number, case in enumerate(sample_cases(args.seed, args.requests, temperature), 1):
            rounds += _rounds(target, drafter, exits, rule, args.gamma, *case)
            if number % PROGRESS_EVERY == 0:
                print(f"{rule}: {number} of {args.requests}", flush=True)
        count = shape_of(target.transformer)["num_hidden_layers"]
        rows += _rows(rule, temperature, count, tuple(exits.adapters), rounds)
    return rows


def _rounds(
    target: Vlm,
    drafter: Vlm,
    exits: Exits,
    rule: str,
    gamma: int,
    request: Request,
    policy: SamplingPolicy,
) -> Iterator[ExitRound]:
    """All rounds of one answer."""
    spec = target.spec(rules_text(), MAX_TOKENS)
    session, draft_session = (vlm.open(vlm.prompt(request, spec)) for vlm in (target, drafter))
    predictions: list[ExitPrediction] = []
    seconds = {True: 0.0, False: 0.0}

    def score(draft: Draft) -> NDArray[np.float32]:
        """Two passes with exits and two without; the logits of the last."""
        length, last, first = session.length, session.tokens[-1:], session.known_row
        seconds.update({True: 0.0, False: 0.0})
        for with_exits in (False, True, True, False):
            if length:  # so that the last token is computed again
                session.truncate(length - 1)
                session.extend(last)
            predictor = None
            begun = time.perf_counter()
            if with_exits:
                predictions.clear()
                predictor = exits.predictor(
                    draft,
                    rule,
                    policy,
                    length,
                    predictions.append,
                    first=first,
                    end_tokens=spec.end_ids,
                )
            logits = session.forward(draft.tokens, draft.parents, predictor)
            seconds[with_exits] += time.perf_counter() - begun
        return logits

    for each in local_rounds(session, draft_session, spec, rule, policy, gamma, score):
        predicted = tuple(
            (p.layer, emitted_tokens(each.draft, p.path, p.token, spec)) for p in predictions
        )
        yield ExitRound(predicted, each.emitted, seconds[True], seconds[False])


def _rows(
    rule: str, temperature: float, layers: int, exits: Sequence[int], rounds: Sequence[ExitRound]
) -> list[Row]:
    depths = {DEPTH: DEPTH * layers, **{layer / layers: layer for layer in exits}}
    return [
        {
            "rule": rule,
            "temperature": temperature,
            "depth": depth,
            "hit": float(np.mean([each.predicted(depths[depth]) for each in rounds])),
            "verify_ratio": float(np.median([each.with_s / each.without_s for each in rounds])),
            "verify_ms": float(np.median([each.without_s for each in rounds]) / 2 * 1e3),
            "exits": sum(layer <= depths[depth] for layer in exits),
            "guesses": float(np.mean([len(each.predictions) for each in rounds])),
            "rounds": len(rounds),
        }
        for depth in sorted(depths)
    ]
