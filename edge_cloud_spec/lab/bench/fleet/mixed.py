"""Whether answers depend on who else is in the pass, or on an eviction before it.

Chains, trees, pushed drafts, early exits and sessions that the cloud decodes itself, at one worker
with memory for a few of them, each beside itself alone at a worker with one session in a pass.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from statistics import fmean

from ....cloud.model_thread.sessions import WorkerLimits
from ....cloud.model_thread.worker import Worker
from ....decoding.policy import GREEDY, SamplingPolicy
from ....models import EMBEDDED
from ....models.exits import Exits
from ....models.load import load
from ....models.prompt import Request
from ....models.vlm import Vlm
from ....share import rules_text
from ....wire.messages import Open, Verdict
from ...harness.fleet.embedded import MAX_TOKENS, session_bytes
from ..chi_square import compare
from ..command import Row
from ..requests import sample_requests
from .equality import Answer, Replay, replay

PICTURES = 16  # sessions that ask about one share what comes before their own words
ROOM = 3  # sessions that there is memory for
COUPLED = 0.8  # temperature
SAMPLED = SamplingPolicy(12.0, top_k=4)  # four likely tokens at each place
SAMPLED_TOKENS = 1  # of an answer that is compared by distribution
TOGETHER = 50  # of the sessions that are compared so
LIKELY = 1e-4  # a p-value below it is no chance
BATCH_ROWS = 64  # less than a prompt, so that prompts are read between passes


def mixed_rows(args: argparse.Namespace) -> list[Row]:
    """A row of answers, token by token, and a row of answers under ``rejection``."""
    target = load(EMBEDDED / "target", threads=1)
    exits = Exits.load(EMBEDDED / "target" / "exits", target)
    requests = sample_requests(args.seed, min(PICTURES, args.mixed))
    room = ROOM * session_bytes(requests[:1], target)

    def worker(alone: bool) -> Worker:
        held = WorkerLimits(sessions=1 << 20, batch_rows=BATCH_ROWS, kv_bytes=room)
        limits = replace(held, batch=1, kv_bytes=0) if alone else held
        ticks = count()  # what is chosen for a pass depends on times, and must not on a machine's
        spec = target.spec(rules_text(), MAX_TOKENS)
        return Worker(target, spec, None, limits, lambda: next(ticks) / 1e3, exits)

    openings = mixed_openings(target, requests, args.mixed, args.seed)
    rows = [tokens_row(worker, openings, args.seed)]
    if args.samples:
        opening = replace(openings[0], max_tokens=SAMPLED_TOKENS)
        rows.append(rejection_row(worker, opening, args.samples, args.seed))
    common = {"harness": "embedded", "server": "batched", "passes": "free", "robots": args.mixed}
    return [{**common, **row} for row in rows]


def mixed_openings(
    target: Vlm, requests: Sequence[Request], sessions: int, seed: int
) -> list[Open]:
    """Greedy and coupled in turns, answers of any length; every other one wants predictions."""
    openings = []
    for number in range(sessions):
        request = requests[number % len(requests)]
        samples = (number // 2 + number // len(requests)) % 2
        coupled = SamplingPolicy(COUPLED, seed=seed + number)
        opening = Open(
            number,
            request.instruction,
            request.jpeg,
            request.order,
            coupled if samples else GREEDY,
            "coupled" if samples else "greedy",
            max_tokens=1 + (17 * number + seed) % MAX_TOKENS,
            tokenizer_digest=target.tokenizer_digest,
            draft_identity="replayed",
            predictions=number % 2 == 0,
        )
        openings.append(opening)
    return openings


def tokens_row(worker: Callable[[bool], Worker], openings: Sequence[Open], seed: int) -> Row:
    """How many answers equal those alone to the last token; ``passed`` only where all was mixed.

    worker: another one each time, one session in a pass with memory for all (True), or not.
    """
    alone = worker(True)
    own: list[Answer] = []
    for number, opening in enumerate(openings):
        own += replay(alone, [opening], [None], seed).answers
        if number % 50 == 49:
            print(f"{number + 1} answers alone", file=sys.stderr)
    tight = worker(False)
    drafted = [None if n % 7 == 6 else tokens for n, (tokens, _) in enumerate(own)]
    together = replay(tight, openings, drafted, seed)
    same = [a == b for a, b in zip(together.answers, own, strict=True)].count(True)
    mixture = mixture_of(together, tight)
    return {
        "rule": "greedy, coupled",
        "sessions": len(openings),
        "equal_answers": same,
        "tokens": sum(len(tokens) for tokens, _ in own),
        "evictions_alone": alone.kv_memory.evictions,
        **mixture,
        "equal": same == len(openings),
        "passed": same == len(openings)
        and not alone.kv_memory.evictions
        and min(mixture.values()) > 0
        and mixture["batch_max"] > 1,
    }


def mixture_of(replayed: Replay, worker: Worker) -> dict[str, float]:
    """What happened; a part that did not is 0."""
    memory = worker.kv_memory
    return {
        "verify_passes": len(replayed.batches),
        "batch_mean": fmean(replayed.batches),
        "batch_max": max(replayed.batches),
        "chains": replayed.chains,
        "trees": replayed.trees,
        "pushed": replayed.pushed,
        "generated": replayed.rounds - replayed.chains - replayed.trees,
        "predictions": replayed.predictions,
        "evictions": memory.evictions,
        "restored_rows": memory.restored_rows,
    }


def rejection_row(worker: Callable[[bool], Worker], opening: Open, samples: int, seed: int) -> Row:
    """Answers of many seeds, batched and alone, by chi-square.

    ``wrong_p_value`` is the same test of a rule that draws from P, not from the residual, after a
    rejection: it must be told from the target.
    """
    greedy = replay(worker(True), [replace(opening, policy=GREEDY, rule="greedy")], [None], seed)
    own = greedy.answers[0][0]

    def sampled(alone: bool, first: int) -> list[tuple[tuple[int, ...], Verdict]]:
        found: list[tuple[tuple[int, ...], Verdict]] = []
        model = worker(alone)
        for start in range(first, first + samples, TOGETHER):
            openings = [
                replace(opening, nonce=n, rule="rejection", policy=replace(SAMPLED, seed=n))
                for n in range(start, min(start + TOGETHER, first + samples))
            ]
            drafts: list[Sequence[int] | None] = [None if alone else own] * len(openings)
            replayed = replay(model, openings, drafts, start, wrong=0.0)
            found += zip((t for t, _ in replayed.answers), replayed.openers, strict=True)
        return found

    alone, together = sampled(True, seed), sampled(False, seed + samples)
    other = sampled(True, seed + 2 * samples)
    wrong = [
        tokens if verdict.path else drawn
        for (tokens, verdict), (drawn, _) in zip(together, other, strict=True)
    ]
    expected = [tokens for tokens, _ in alone]
    test = compare([tokens for tokens, _ in together], expected)
    control = compare(wrong, expected)
    return {
        "rule": "rejection",
        "sessions": samples,
        "rejected": sum(not verdict.path for _, verdict in together),
        "chi_square": test.chi_square,
        "freedom": test.freedom,
        "p_value": test.p_value,
        "wrong_p_value": control.p_value,
        "equal": test.p_value > LIKELY,
        "passed": test.p_value > LIKELY > control.p_value,
    }
