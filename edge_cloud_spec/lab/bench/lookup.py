"""``bench lookup``: what looking up earlier answers gives and costs.

First the embedded target's answers in simulated rooms, told again in their order: tokens a pass by
the nodes of a looked-up tree, with and without the instructions' words in the index. Then the time
of a lookup in an index of many answers: those that were given, with some words replaced, so that
no two need be alike. Then what a hostile robot can make of both. Times are the thread's own CPU
time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from ...decoding.accept import follow
from ...decoding.draft import MAX_NODES, Draft
from ...decoding.suffix_index import MAX_TOKEN, SuffixIndex
from ...errors import UserError
from ...instruction import instruction_pattern
from ...lookup import pattern_of
from ...models.load import load
from ...models.prompt import instruction_tokens
from ..sim.room import make_room
from . import drive
from .command import Options, Row
from .options import check_counts


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer, and the tokens of its instruction."""

    pattern: str
    words: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Replayed:
    """What the passes of a replay came to."""

    passes: int
    tokens: int
    proposed: int  # tokens that the drafts held

    @property
    def tokens_per_pass(self) -> float:
        """1 is what no draft gives."""
        return self.tokens / self.passes


def replay(
    said: Sequence[RecordedAnswer], index: SuffixIndex, nodes: int, with_words: bool
) -> Replayed:
    """The passes that greedy answers take with trees of so many nodes; ``index`` learns from each.

    with_words: the index knows the instructions' words.
    """
    passes = proposed = 0
    for answer in said:
        words = answer.words if with_words else ()
        done = 0
        while done < len(answer.tokens):
            room = len(answer.tokens) - done - 1  # the token after the draft is the target's
            draft = index.look_up(answer.pattern, answer.tokens[:done], nodes, nodes, words)
            done += 1 + min(room, _accepted(draft, answer.tokens[done:]))
            passes += 1
            proposed += len(draft)
        index.add(answer.pattern, answer.tokens, words)
    return Replayed(passes, sum(len(answer.tokens) for answer in said), proposed)


def _accepted(draft: Draft, own: Sequence[int]) -> int:
    """How many of the target's own next tokens a path of the draft has."""
    after = [*own, -1]  # what follows its end is never drafted
    return len(follow(draft, lambda node: after[len(draft.path(node))]).path)


REPLACED = 0.05  # of the words of the answers that fill an index
LOOKUPS = 2000
DEPTH = 16
HOSTILE: dict[str, Callable[[Random], list[int]]] = {
    "one token again and again": lambda rng: [7] * 4096,
    "a new token each time": lambda rng: rng.sample(range(MAX_TOKEN), 4096),
    "all pairs of 64 tokens": lambda rng: [t for a in range(64) for b in range(64) for t in (a, b)],
    "the largest ids": lambda rng: [MAX_TOKEN - rng.randrange(3) for _ in range(4096)],
}


OPTIONS: Options = {
    **drive.OPTIONS,
    "--scenes": drive.OPTIONS["--scenes"] | {"default": 25},
    "--presets": drive.OPTIONS["--presets"] | {"default": "cloud_ar"},
    "--nodes": {"default": "8,16,32", "help": "of a tree (default %(default)s)"},
    "--answers": {"type": int, "default": 100_000, "help": "in the index that is timed"},
    "--suffixes": {"type": int, "default": 2**18, "help": "it holds at most"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a rule, source and number of nodes; then one a number of nodes; then one an attack."""
    try:
        budgets = [int(number) for number in args.nodes.split(",")]
    except ValueError:
        raise UserError(f"--nodes {args.nodes}: give whole numbers with commas") from None
    if min(budgets) < 1 or max(budgets) > MAX_NODES:
        raise UserError(f"--nodes {args.nodes}: a tree has 1 to {MAX_NODES}")
    check_counts(args, "answers", "suffixes")
    target, known = load(args.target, threads=1), instruction_pattern(args.target)
    said: dict[str, list[RecordedAnswer]] = {}
    for room in sorted(drive.drive_rooms(args), key=lambda run: run.room):
        instruction = make_room(room.room).instruction
        pattern = pattern_of(args.order, instruction, known)
        words = instruction_tokens(target, instruction)
        answers = [RecordedAnswer(pattern, words, answer) for answer in room.answers]
        said.setdefault(f"{room.preset}, {room.rule}", []).extend(answers)
    rows = [_replayed(run, said[run], args, nodes) for run in said for nodes in budgets]
    every = [answer for answers in said.values() for answer in answers]
    rows += _timed(every, args, budgets)
    return rows + [_attacked(name, args, max(budgets)) for name in HOSTILE]


def _replayed(
    run: str, said: Sequence[RecordedAnswer], args: argparse.Namespace, nodes: int
) -> Row:
    with_words = replay(said, SuffixIndex(args.suffixes), nodes, with_words=True)
    without = replay(said, SuffixIndex(args.suffixes), nodes, with_words=False)
    return {
        "what": "replay",
        "of": run,
        "nodes": nodes,
        "tokens_per_pass": with_words.tokens_per_pass,
        "without_words": without.tokens_per_pass,
        "tokens": with_words.tokens,
        "proposed_per_pass": with_words.proposed / with_words.passes,
        "answers": len(said),
    }


def _timed(
    said: Sequence[RecordedAnswer], args: argparse.Namespace, budgets: Sequence[int]
) -> list[Row]:
    rng = Random(args.seed)
    known = sorted({token for answer in said for token in answer.tokens})
    index = SuffixIndex(args.suffixes)
    started = time.thread_time()
    for _ in range(args.answers):
        answer = rng.choice(said)
        tokens = [t if rng.random() > REPLACED else rng.choice(known) for t in answer.tokens]
        index.add(answer.pattern, tokens, answer.words)
    add_ms = 1e3 * (time.thread_time() - started) / args.answers
    rows = []
    for nodes in budgets:
        times = []
        for _ in range(LOOKUPS):
            answer = rng.choice(said)
            prefix = answer.tokens[: rng.randrange(len(answer.tokens))]
            begun = time.thread_time()
            index.look_up(answer.pattern, prefix, nodes, DEPTH, answer.words)
            times.append(1e3 * (time.thread_time() - begun))
        rows.append(_times("lookup", "earlier answers", args.answers, nodes, times, add_ms, index))
    return rows


def _attacked(name: str, args: argparse.Namespace, nodes: int) -> Row:
    """Long answers, instructions and prefixes; ``passed``: the memory is what it was."""
    rng = Random(args.seed)
    index = SuffixIndex(args.suffixes)
    bound = index.nbytes
    times, add_ms = [], 0.0
    for number in range(20):
        tokens = HOSTILE[name](rng)
        begun = time.thread_time()
        index.add(f"{number}" * 4096, tokens, tokens)
        add_ms += 1e3 * (time.thread_time() - begun) / 20
        for _ in range(20):
            begun = time.thread_time()
            index.look_up(f"{number}" * 4096, tokens[: rng.randrange(4096)], nodes, nodes, tokens)
            times.append(1e3 * (time.thread_time() - begun))
    row = _times("hostile", name, 20, nodes, times, add_ms, index)
    return {**row, "passed": index.nbytes == bound}


def _times(
    what: str,
    of: str,
    answers: int,
    nodes: int,
    times: Sequence[float],
    add_ms: float,
    index: SuffixIndex,
) -> Row:
    return {
        "what": what,
        "of": of,
        "nodes": nodes,
        "ms_p50": float(np.percentile(times, 50)),
        "ms_p99": float(np.percentile(times, 99)),
        "add_ms": add_ms,
        "bytes": index.nbytes,
        "answers": answers,
    }
