"""``bench ablations``: the gain and the cost of early exits and lookup drafts.

A row has the same figure with a part and without it; ``cost`` is the time of the part divided by
that of the target's passes, on one thread. The answers are the target's greedy ones to simulated
views.

- ``exits``: the share of rounds whose verdict an exit predicts, by the depth of the target's layers
  within which it does.
- ``lookup``: tokens per pass if each draft is a tree from earlier answers, by its nodes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from re import Pattern

import numpy as np
from numpy.typing import NDArray

from edge_cloud_spec.decoding.accept import ExitPrediction, follow
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.decoding.shape import chain
from edge_cloud_spec.decoding.suffix_index import SuffixIndex
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.instruction import instruction_pattern
from edge_cloud_spec.lookup import pattern_of
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.exits import ExitPredictor, Exits, shape_of
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import text_tokens
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.request import Request
from edge_cloud_spec.share import path_of

from .command import Options, Row
from .decodes import emitted_tokens, local_rounds
from .models import crop_alike
from .options import check_counts
from .requests import sample_requests

ABLATION_ANSWER_TOKENS = 64  # of an answer: any that is in the grammar is whole
WANTED_EXIT_SHARE = 0.6  # the share of the target's layers within which a prediction is wanted
LOOKUP_TREE_NODES = (8, 16, 32)  # of a looked-up tree
SUFFIXES = 2**18  # that are kept of earlier answers

Tokens = tuple[int, ...]

OPTIONS: Options = {
    "--requests": {"type": int, "default": 100, "help": "with pictures (%(default)s)"},
    "--gamma": {"type": int, "default": 4, "help": "draft length (%(default)s)"},
    "--target": {"default": str(EMBEDDED / "target")},
    "--drafter": {"default": str(EMBEDDED / "drafter")},
    "--exits": {"type": path_of, "help": "folder (default: exits/ of the target)"},
}


@dataclass(frozen=True)
class ExitRound:
    """A round: the exits' predictions as (layer, tokens), the verdict, and the times of a pass with
    and without exits, s."""

    predictions: tuple[tuple[int, Tokens], ...]
    verdict: Tokens
    with_s: float
    without_s: float

    def predicted(self, layers: float) -> bool:
        """Whether an exit after at most ``layers`` layers predicted the verdict's tokens."""
        return any(at <= layers and tokens == self.verdict for at, tokens in self.predictions)


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per part and case."""
    check_counts(args, "requests", "gamma")
    target, drafter = load(args.target, threads=1), load(args.drafter, threads=1)
    crop_alike(drafter, target)
    exits = Exits.load(args.exits or path_of(args.target) / "exits", target)
    if exits is None:
        raise UserError("the target has no exits: make some with edge-cloud-spec train exits")
    requests = sample_requests(args.seed, args.requests)
    answers = [list(exit_rounds(target, drafter, exits, args.gamma, each)) for each in requests]
    rounds = [each for answer in answers for each in answer]
    rows = exit_rows(rounds, exits, shape_of(target.transformer)["num_hidden_layers"])
    emitted = [tuple(t for each in answer for t in each.verdict) for answer in answers]
    pass_s = float(np.mean([each.without_s / 2 for each in rounds]))
    known = instruction_pattern(args.target)
    return rows + [
        lookup_row(target, known, requests, emitted, nodes, pass_s) for nodes in LOOKUP_TREE_NODES
    ]


def exit_rounds(
    target: Vlm, drafter: Vlm, exits: Exits, gamma: int, request: Request
) -> Iterator[ExitRound]:
    """All rounds of one answer, with chains of ``gamma`` tokens."""
    spec = target.spec(ABLATION_ANSWER_TOKENS)
    session, draft_session = (vlm.open(vlm.prompt(request, spec)) for vlm in (target, drafter))
    predictions: list[ExitPrediction] = []
    seconds = {True: 0.0, False: 0.0}

    def score(draft: Draft) -> NDArray[np.float32]:
        """Two passes with exits between two without, so that both see the same warm machine."""
        length, last, first = len(session.tokens), session.tokens[-1:], session.known_row
        seconds.update({True: 0.0, False: 0.0})
        for with_exits in (False, True, True, False):
            if length:  # so that the last token is computed again
                session.truncate(length - 1)
                session.extend(last)
            predictor = None
            begun = time.perf_counter()
            if with_exits:
                predictions.clear()
                predictor = ExitPredictor(
                    exits,
                    draft,
                    GREEDY,
                    length,
                    predictions.append,
                    first=first,
                    end_tokens=spec.end_ids,
                )
            logits = session.forward(draft.tokens, draft.parents, predictor)
            seconds[with_exits] += time.perf_counter() - begun
        return logits

    for each in local_rounds(session, draft_session, spec, "greedy", GREEDY, chain(gamma), score):
        predicted = tuple(
            (p.layer, emitted_tokens(each.draft, p.path, p.token, spec)) for p in predictions
        )
        yield ExitRound(predicted, each.emitted, seconds[True], seconds[False])


def exit_rows(rounds: Sequence[ExitRound], exits: Exits, layers: int) -> list[Row]:
    """A row per depth: the requested one, and those of the exits."""
    cost = float(np.median([each.with_s / each.without_s - 1 for each in rounds]))
    return [
        {
            "part": "exits",
            "of": f"within {depth:.2g} of the layers",
            "without": 0.0,
            "with": float(np.mean([each.predicted(depth * layers) for each in rounds])),
            "cost": cost,
            "counted": len(rounds),
        }
        for depth in sorted({WANTED_EXIT_SHARE, *(layer / layers for layer in exits.adapters)})
    ]


def lookup_row(
    target: Vlm,
    known: Pattern[str] | None,
    requests: Sequence[Request],
    emitted: Sequence[Tokens],
    nodes: int,
    pass_s: float,
) -> Row:
    """How many passes these answers take with lookup trees; each is learned when complete.

    known: the pattern of instructions (``instruction_pattern``).
    """
    index, passes, lookup_s = SuffixIndex(SUFFIXES), 0, 0.0
    for request, answer in zip(requests, emitted, strict=True):
        pattern, asked = pattern_of(request.text, known)
        words = text_tokens(target, asked)
        done = 0
        while done < len(answer):
            begun = time.thread_time()
            draft = index.look_up(pattern, answer[:done], nodes, nodes, words)
            lookup_s += time.thread_time() - begun
            done += 1 + accepted(draft, answer[done:])  # the token after it is the target's
            passes += 1
        index.add(pattern, answer, words)
    return {
        "part": "lookup",
        "of": f"trees of {nodes} nodes",
        "without": 1.0,
        "with": sum(map(len, emitted)) / passes,
        "cost": lookup_s / passes / pass_s,
        "counted": passes,
    }


def accepted(draft: Draft, own: Sequence[int]) -> int:
    """How many of the target's next tokens a path of the draft has."""
    after = [*own, -1]  # what follows its end is never drafted
    return len(follow(draft, lambda node: after[len(draft.path(node))]).path)
