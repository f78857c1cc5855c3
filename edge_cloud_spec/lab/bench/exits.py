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

from ...decoding.accept import accept
from ...decoding.draft import Draft
from ...decoding.policy import SamplingPolicy
from ...decoding.propose import ProposalConfig
from ...decoding.random_source import SeededRandomSource
from ...decoding.shape import Branch, chain
from ...decoding.target_rows import LogitRows
from ...errors import UserError
from ...models import EMBEDDED
from ...models.draft_model import DraftModel
from ...models.exits import ExitPrediction, Exits, shape_of
from ...models.load import load
from ...models.prompt import PromptSpec, Request
from ...models.session import Session
from ...models.vlm import Vlm
from ...share import rules_text
from .command import Options, Row
from .models import crop_alike
from .requests import sample_requests

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


@dataclass(frozen=True)
class ExitsBench:
    """Both models, and the target's exits."""

    target: Vlm
    drafter: Vlm
    exits: Exits
    spec: PromptSpec
    gamma: int

    def rounds(self, request: Request, rule: str, policy: SamplingPolicy) -> Iterator[ExitRound]:
        """All rounds of one answer."""
        session, draft_session = (
            vlm.open(vlm.prompt(request, self.spec)) for vlm in (self.target, self.drafter)
        )
        drafter = DraftModel(draft_session, ProposalConfig(rule, policy), self.spec.end_ids)
        emitted: Tokens = ()
        while len(emitted) < MAX_TOKENS and not self._ended(emitted):
            draft = drafter.finished(Branch(emitted, chain(self.gamma))).draft
            predictions, logits, with_s, without_s = self._timed(session, draft, rule, policy)
            random_source = SeededRandomSource(policy.seed)
            rows = LogitRows(logits)
            acceptance = accept(rule, draft, rows, policy, len(emitted), random_source)
            verdict = self._tokens(draft, acceptance.path, acceptance.token)
            predicted = tuple(
                (each.layer, self._tokens(draft, each.path, each.token)) for each in predictions
            )
            yield ExitRound(predicted, verdict, with_s, without_s)
            assert acceptance.token is not None
            session.commit(acceptance.path)
            session.extend((acceptance.token,))
            emitted += verdict

    def _timed(
        self, session: Session, draft: Draft, rule: str, policy: SamplingPolicy
    ) -> tuple[list[ExitPrediction], NDArray[np.float32], float, float]:
        """Predictions, logits [1 + n, V], and seconds of two passes with exits, two without."""
        length = session.length
        last = session.tokens[-1:]
        first = session.known_row
        seconds = {True: 0.0, False: 0.0}
        predictions: list[ExitPrediction] = []
        for with_exits in (False, True, True, False):
            if length:  # so that the last token is computed again
                session.truncate(length - 1)
                session.extend(last)
            predictions = [] if with_exits else predictions
            begun = time.perf_counter()
            predictor = None
            if with_exits:
                predictor = self.exits.predictor(
                    draft,
                    rule,
                    policy,
                    length,
                    predictions.append,
                    first=first,
                    end_tokens=self.spec.end_ids,
                )
            logits = session.forward(draft.tokens, draft.parents, predictor)
            seconds[with_exits] += time.perf_counter() - begun
        return predictions, logits, seconds[True], seconds[False]

    def _tokens(self, draft: Draft, path: Sequence[int], token: int | None) -> Tokens:
        """The emitted tokens, up to an end token."""
        tokens = [draft.tokens[node] for node in path] + ([] if token is None else [token])
        ends = [count for count, each in enumerate(tokens, 1) if each in self.spec.end_ids]
        return tuple(tokens[: ends[0] if ends else None])

    def _ended(self, emitted: Tokens) -> bool:
        return bool(emitted) and emitted[-1] in self.spec.end_ids


def run(args: argparse.Namespace) -> list[Row]:
    """A row a rule and depth."""
    if args.requests < 1 or args.gamma < 1 or not args.temperature > 0:
        raise UserError("--requests and --gamma must be 1 or more, --temperature above 0")
    bench = _bench(args)
    requests = sample_requests(args.seed, args.requests)
    rows: list[Row] = []
    for rule, temperature in (("greedy", 0.0), ("coupled", args.temperature)):
        rounds: list[ExitRound] = []
        for index, request in enumerate(requests):
            policy = SamplingPolicy(temperature, seed=args.seed + index)
            rounds += bench.rounds(request, rule, policy)
            if (index + 1) % PROGRESS_EVERY == 0 or index + 1 == len(requests):
                print(f"{rule}: {index + 1} of {len(requests)}, {_summary(rounds)}", flush=True)
        rows += _rows(bench, rule, temperature, rounds)
    return rows


def _bench(args: argparse.Namespace) -> ExitsBench:
    target, drafter = load(args.target, threads=args.threads), load(args.drafter)
    crop_alike(drafter, target)
    folder = args.exits or Path(args.target) / "exits"
    exits = Exits.load(folder, target)
    if exits is None:
        raise UserError(f"{folder} holds no exits: make some with edge-cloud-spec train exits")
    return ExitsBench(target, drafter, exits, target.spec(rules_text(), MAX_TOKENS), args.gamma)


def _rows(
    bench: ExitsBench, rule: str, temperature: float, rounds: Sequence[ExitRound]
) -> list[Row]:
    count = shape_of(bench.target.transformer)["num_hidden_layers"]
    depths = {DEPTH: DEPTH * count, **{layer / count: layer for layer in bench.exits.adapters}}
    return [
        {
            "rule": rule,
            "temperature": temperature,
            "depth": depth,
            "hit": _hit(rounds, depths[depth]),
            "verify_ratio": _ratio(rounds),
            "verify_ms": float(np.median([each.without_s for each in rounds]) / 2 * 1e3),
            "exits": sum(layer <= depths[depth] for layer in bench.exits.adapters),
            "guesses": float(np.mean([len(each.predictions) for each in rounds])),
            "rounds": len(rounds),
        }
        for depth in sorted(depths)
    ]


def _hit(rounds: Sequence[ExitRound], layers: float) -> float:
    return float(np.mean([each.predicted(layers) for each in rounds]))


def _ratio(rounds: Sequence[ExitRound]) -> float:
    return float(np.median([each.with_s / each.without_s for each in rounds]))


def _summary(rounds: Sequence[ExitRound]) -> str:
    return f"hit {_hit(rounds, np.inf):.3f}, verify ratio {_ratio(rounds):.3f}"
