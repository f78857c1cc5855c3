"""``bench decision``: the time to accept or reject a draft from probability rows, on one core.

In percentiles for each rule and support: only the decision is timed, not the models' passes nor the
conversion of logits to rows. Every row is a new object each time, so no sum is cached. A trial
counts when every drafted token was judged: most are accepted, since Q is close to P. numpy does all
of this in one thread; ``cpu_ms_p50`` is that thread's own CPU time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...decoding.accept import Acceptance, follow, rejection
from ...decoding.draft import Draft
from ...decoding.noise import Purpose, gumbel
from ...decoding.policy import SamplingPolicy
from ...decoding.random_source import SeededRandomSource
from ...decoding.token_distribution import TokenDistribution as Distribution
from ...decoding.token_distribution import distribution_of
from ...errors import UserError
from ..harness.power_law import power_law_pair
from ..harness.scripted.model import mix
from .command import Options, Row

TAIL = "typical"
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
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a rule and support of its rows."""
    if not 1 <= args.tokens < POOL or args.trials < 1 or not 1 <= args.support <= args.vocab:
        raise UserError(f"--tokens must be 1 to {POOL - 1}, --support 1 to --vocab")
    rows = []
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
