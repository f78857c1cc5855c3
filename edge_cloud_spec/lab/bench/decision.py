"""``bench decision``: the time to accept or reject a draft, on one core.

First from the target's logits, for one session and for a batch: every trial judges the same drafts
twice, all in float64 (``full``), as a row's definition reads, and as the cloud does it. Then from
probability rows, in percentiles for each rule and support: only the decision is timed there, not
the models' passes nor the conversion of logits to rows. Every row is a new object each time, so no
sum is cached. A trial counts when every drafted token was judged: most are accepted, since Q is
close to P. numpy does all of this in one thread; ``cpu_ms_p50`` is that thread's own CPU time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...decoding.accept import Acceptance, accept, follow, rejection
from ...decoding.draft import Draft
from ...decoding.noise import Purpose, gumbel, uniform
from ...decoding.policy import GREEDY, SamplingPolicy
from ...decoding.propose import coupled_token
from ...decoding.random_source import SeededRandomSource
from ...decoding.target_rows import LogitRows, TargetRow
from ...decoding.token_distribution import TokenDistribution, distribution_of
from ...decoding.token_distribution import TokenDistribution as Distribution
from ...errors import UserError
from ..harness.power_law import PowerLaw, power_law_pair
from ..harness.scripted.model import mix
from .command import Options, Row

TAIL = "typical"
VERDICT_NOISE = 0.5  # of the draft model's logits
BATCH = 16  # sessions in a pass
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
        """The token of the coupled rule after a node."""
        return coupled_token(self.logits[node + 1], policy, position)

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        """P after a node."""
        row = distribution_of(self.logits[node + 1], policy)
        return FullRow(row.probabilities, row.ids)


class FullRow(TokenDistribution):
    """P, of which each step becomes a float64 row of its own."""

    def residual(self, draft: TokenDistribution) -> TokenDistribution:
        """max(0, P - Q), not normalized; P itself if that is zero everywhere."""
        weights = np.maximum(self.shares.copy() - draft.over(self.ids), 0.0)
        return FullRow(weights, self.ids) if weights.any() else self


class Verdicts(SeededRandomSource):
    """A seeded source that accepts every drafted token (``stands``) or none."""

    def __init__(self, seed: int, *, stands: bool) -> None:
        super().__init__(seed)
        self._stands = stands

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        """Whether a drafted token stands: as all of them do."""
        return self._stands


class FullVerdicts(Verdicts):
    """Draws by one cumulative sum of the whole row."""

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """An index by one cumulative sum."""
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
    pair = power_law_pair(TAIL, vocab, seed, VERDICT_NOISE)
    for rule, shape, temperature in RULES:
        policy = SamplingPolicy(temperature, seed=seed) if temperature else GREEDY
        for outcome in ("all accepted", "first rejected"):
            for sessions in (1, BATCH):
                chosen = [
                    _judged(pair, rule, shape, policy, tokens, mix(seed, index), outcome)
                    for index in range(sessions)
                ]
                full, ours = _verdict_times(rule, chosen, trials, outcome == "all accepted")
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


def _verdict_times(
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


NOISE = 0.1  # of the draft model's logits: it is nearly always right
POOL = 16  # pairs of rows, of which a trial takes as many as it needs
CASES = (
    ("coupled", "truncated"),
    ("rejection", "dense"),
    ("coupled", "dense"),
    ("rejection", "truncated"),
)

Rows = list[Distribution]


OPTIONS: Options = {
    "--vocab": {"type": int, "default": 151_936, "help": "(default %(default)s)"},
    "--tokens": {"type": int, "default": 8, "help": "of a draft (default %(default)s)"},
    "--support": {"type": int, "default": 50, "help": "where truncated (%(default)s)"},
    "--trials": {"type": int, "default": 300, "help": "(default %(default)s)"},
    "--verdicts": {"type": int, "default": 7, "help": "trials of each (%(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a verdict's rule, draft, outcome and batch; then one a rule and support of rows."""
    if (
        args.verdicts < 1
        or not 1 <= args.tokens < POOL
        or args.trials < 1
        or not 1 <= args.support <= args.vocab
    ):
        raise UserError(f"--tokens must be 1 to {POOL - 1}, --support 1 to --vocab")
    rows = []
    for row in verdict_rows(args.vocab, args.tokens, args.verdicts, args.seed):
        print(
            f"{row['rule']}, {row['draft']}, {row['outcome']}, {row['sessions']} sessions: "
            f"{row['ratio']:.2f} of the time in float64",
            flush=True,
        )
        rows.append(row)
    for rule, support in CASES:
        kept = args.support if support == "truncated" else 0
        policy = SamplingPolicy(1.0, top_k=kept, seed=args.seed)
        times = _times(rule, *_pool(args.vocab, policy), args.tokens, args.trials)
        ms, cpu_ms = (1e3 * np.array(column) for column in zip(*times, strict=True))
        print(f"{rule}, {support} rows: {len(ms)} decisions", flush=True)
        rows.append(
            {
                "rule": rule,
                "tokens": args.tokens,
                "vocab": args.vocab,
                "support": kept or args.vocab,
                "ms_p50": float(np.percentile(ms, 50)),
                "ms_p99": float(np.percentile(ms, 99)),
                "cpu_ms_p50": float(np.percentile(cpu_ms, 50)),
                "trials": len(ms),
            }
        )
    return rows


def _pool(vocab: int, policy: SamplingPolicy) -> tuple[Rows, Rows]:
    """Rows Q and P after the same prefixes."""
    draft, target = power_law_pair(TAIL, vocab, policy.seed, NOISE)
    states = [mix(policy.seed, number) for number in range(POOL)]
    return (
        [distribution_of(draft.row(state), policy) for state in states],
        [distribution_of(target.row(state), policy) for state in states],
    )


def _times(
    rule: str, draft_rows: Rows, target_rows: Rows, tokens: int, trials: int
) -> list[tuple[float, float]]:
    """Seconds, and the thread's CPU seconds, of decisions in which every token was judged."""
    decide = _reject if rule == "rejection" else _follow
    times: list[tuple[float, float]] = []
    trial = 0
    while len(times) < trials:
        indices = [(trial + step) % POOL for step in range(tokens + 1)]
        decision = decide(
            [_fresh(draft_rows[at]) for at in indices[:-1]],
            [_fresh(target_rows[at]) for at in indices],
            trial,
        )
        started, cpu_started = time.perf_counter(), time.thread_time()
        acceptance = decision()
        elapsed = time.perf_counter() - started, time.thread_time() - cpu_started
        if len(acceptance.path) >= tokens - 1:
            times.append(elapsed)
        trial += 1
    return times


def _fresh(row: Distribution) -> Distribution:
    return Distribution(row.probabilities, row.ids)


def _reject(draft_rows: Rows, target_rows: Rows, seed: int) -> Callable[[], Acceptance]:
    """Speculative sampling of a chain drawn from Q."""
    random_source = SeededRandomSource(seed)
    tokens = [
        _fresh(row).draw(random_source, Purpose.DRAFT, position)
        for position, row in enumerate(draft_rows)
    ]
    draft = Draft(tuple(tokens), rows=tuple(draft_rows))
    return partial(rejection, draft, lambda node: target_rows[node + 1], 0, random_source)


def _follow(draft_rows: Rows, target_rows: Rows, seed: int) -> Callable[[], Acceptance]:
    """The coupled rule over a chain of the draft model's own tokens."""
    draft = Draft(_coupled(draft_rows, seed))
    return partial(
        follow, draft, lambda node: _coupled_token(target_rows[node + 1], seed, node + 1)
    )


def _coupled(rows: Sequence[Distribution], seed: int) -> tuple[int, ...]:
    return tuple(_coupled_token(row, seed, position) for position, row in enumerate(rows))


def _coupled_token(row: Distribution, seed: int, position: int) -> int:
    """``coupled_token`` from probabilities; costs what the row's support has tokens."""
    ids = np.arange(len(row.probabilities)) if row.ids is None else row.ids
    with np.errstate(divide="ignore"):
        return int(ids[(np.log(row.probabilities) + gumbel(seed, position, ids)).argmax()])
