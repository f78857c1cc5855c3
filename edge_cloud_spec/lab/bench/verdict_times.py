"""Times of whole verdicts: from the target's logits to the accepted path and the token after it.

Every trial judges the same drafts twice, one way after the other: all in float64 (``full``), as a
row's definition reads, and as the cloud does it. Robots' rows of Q are new in each trial, with
their sums known, since a cloud sums them when they arrive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...decoding.accept import accept
from ...decoding.draft import Draft
from ...decoding.noise import Purpose, uniform
from ...decoding.policy import GREEDY, SamplingPolicy
from ...decoding.propose import coupled_token
from ...decoding.random_source import SeededRandomSource
from ...decoding.target_rows import LogitRows, TargetRow
from ...decoding.token_distribution import TokenDistribution, distribution_of
from ..harness.power_law import PowerLaw, power_law_pair
from ..harness.scripted.model import mix
from .command import Row

TAIL = "typical"
NOISE = 0.5  # of the draft model's logits
BATCH = 16  # sessions in a pass
FLOOR = 0.5  # of the time in float64
RULES = (
    ("greedy", "chain", 0.0),
    ("coupled", "chain", 1.0),
    ("coupled", "chain", 0.7),
    ("rejection", "chain", 1.0),
    ("rejection", "values", 1.0),
    ("rejection", "tree", 1.0),
)
TREE_WIDTH = 2  # children of each node of a tree


@dataclass(frozen=True, eq=False)
class FullRows:
    """Logits float32 [1 + n, V], of which each row that is asked for becomes float64 whole."""

    logits: NDArray[np.float32]

    def token(self, node: int, policy: SamplingPolicy, position: int) -> int:
        """See ``TargetRows``."""
        return coupled_token(self.logits[node + 1], policy, position)

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        """See ``TargetRows``."""
        row = distribution_of(self.logits[node + 1], policy)
        return FullRow(row.probabilities, row.ids)


class FullRow(TokenDistribution):
    """P, of which each step becomes a float64 row of its own."""

    def residual(self, draft: TokenDistribution) -> TokenDistribution:
        """See ``TokenDistribution``."""
        weights = np.maximum(self.shares.copy() - draft.over(self.ids), 0.0)
        return FullRow(weights, self.ids) if weights.any() else self


class Verdicts(SeededRandomSource):
    """Every drafted token stands, or none does; draws are by seed."""

    def __init__(self, seed: int, *, stands: bool) -> None:
        super().__init__(seed)
        self._stands = stands

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        """See ``RandomSource``."""
        return self._stands


class FullVerdicts(Verdicts):
    """Draws by one cumulative sum of the whole row."""

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """See ``RandomSource``."""
        cumulative = np.cumsum(weights, dtype=np.float64)
        point = uniform(self._seed, purpose, position, trial=trial) * cumulative[-1]
        return int(np.searchsorted(cumulative, point, side="right"))


@dataclass(frozen=True, eq=False)
class Judged:
    """A draft and the target's logits along it."""

    draft: Draft
    logits: NDArray[np.float32]
    policy: SamplingPolicy


def verdict_rows(vocab: int, tokens: int, trials: int, seed: int) -> Iterator[Row]:
    """A row a rule, shape, temperature, outcome and number of sessions."""
    pair = power_law_pair(TAIL, vocab, seed, NOISE)
    for rule, shape, temperature in RULES:
        policy = SamplingPolicy(temperature, seed=seed) if temperature else GREEDY
        for outcome in ("all accepted", "first rejected"):
            for sessions in (1, BATCH):
                chosen = [
                    _judged(pair, rule, shape, policy, tokens, mix(seed, index), outcome)
                    for index in range(sessions)
                ]
                full, ours = _times(rule, chosen, trials, outcome == "all accepted")
                ratio = float(np.median(ours[:, 1]) / np.median(full[:, 1]))
                yield {
                    "rule": rule,
                    "draft": shape,
                    "temperature": temperature,
                    "outcome": outcome,
                    "sessions": sessions,
                    "tokens": tokens,
                    "vocab": vocab,
                    "ms_p50": float(1e3 * np.median(ours[:, 0])),
                    "full_ms_p50": float(1e3 * np.median(full[:, 0])),
                    "cpu_ms_p50": float(1e3 * np.median(ours[:, 1])),
                    "full_cpu_ms_p50": float(1e3 * np.median(full[:, 1])),
                    "ratio": ratio,
                    "trials": trials,
                }


def _times(
    rule: str, chosen: Sequence[Judged], trials: int, stands: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds, and the thread's CPU seconds, of each trial [trials, 2]; full, then the cloud's."""
    times: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    for trial in range(trials):
        for column, full in zip(times, (True, False), strict=True):
            drafts = [_arrived(each.draft) for each in chosen]
            source = (FullVerdicts if full else Verdicts)(trial, stands=stands)
            started, cpu_started = time.perf_counter(), time.thread_time()
            for each, draft in zip(chosen, drafts, strict=True):
                rows = FullRows(each.logits) if full else LogitRows(each.logits)
                accept(rule, draft, rows, each.policy, 0, source)
            column.append((time.perf_counter() - started, time.thread_time() - cpu_started))
    return np.array(times[0]), np.array(times[1])


def _arrived(draft: Draft) -> Draft:
    if draft.rows is None:
        return draft
    rows = tuple(TokenDistribution(row.probabilities, row.ids) for row in draft.rows)
    for row in rows:
        _ = row.total  # the check of a draft that arrives has it
    return Draft(draft.tokens, draft.parents, rows, draft.values)


def _judged(
    pair: tuple[PowerLaw, PowerLaw],
    rule: str,
    shape: str,
    policy: SamplingPolicy,
    tokens: int,
    state: int,
    outcome: str,
) -> Judged:
    """A draft of this many tokens; under greedy and coupled all are the target's, or none is."""
    drafter, target = pair
    parents = [-1, *range(tokens - 1)]
    if shape == "tree":
        parents = [node // TREE_WIDTH - 1 for node in range(tokens)]
    states = [mix(state, node) for node in range(tokens + 1)]
    logits = np.stack([target.row(each) for each in states])
    if rule == "rejection":
        rows = [
            distribution_of(drafter.row(states[parent + 1]), policy)
            for parent in range(-1, tokens)
            if parent in parents
        ]
        inner = sorted(set(parents))
        likely = {
            parent: np.argsort(-row.probabilities)[:TREE_WIDTH]
            for parent, row in zip(inner, rows, strict=True)
        }
        drafted = tuple(
            int(likely[parent][node % TREE_WIDTH if shape == "tree" else 0])
            for node, parent in enumerate(parents)
        )
        if shape == "values":
            return Judged(Draft(drafted, values=(0.5,) * tokens), logits, policy)
        return Judged(
            Draft(drafted, tuple(parents) if shape == "tree" else None, tuple(rows)), logits, policy
        )
    own = [coupled_token(logits[position], policy, position) for position in range(tokens)]
    if outcome == "first rejected":
        own = [(token + 1) % target.vocabulary for token in own]
    return Judged(Draft(tuple(own)), logits, policy)
