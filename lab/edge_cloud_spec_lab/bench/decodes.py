"""Decodes for several suites: over gRPC in turn, or in this process round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_cloud_spec.decoding.accept import accept
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.propose import ProposalConfig
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.shape import Branch, Shape
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.models.drafter import DraftSession
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.request import Picture, Request, with_pictures

from .requests import sample_requests

T = TypeVar("T")
Case = tuple[Request, SamplingPolicy]
Decode = Callable[[Request, SamplingPolicy], T]
Score = Callable[[Draft], NDArray[np.float32]]


def sample_cases(seed: int, count: int, temperature: float = 0.0) -> list[Case]:
    """Requests, each with its own picture and seed."""
    return [
        (request, SamplingPolicy(temperature, seed=seed + number))
        for number, request in enumerate(sample_requests(seed, count))
    ]


def in_turn(decodes: Mapping[str, Decode[T]], cases: Sequence[Case]) -> dict[str, list[T]]:
    """Decode every case by each function in turn, so that all see the same load of this machine.

    The first case is a warm-up without a result. Cloud and robot cache the last pictures and
    prompts by the picture's bytes, so each decode gets different bytes: some are appended after the
    picture's end.
    """
    found: dict[str, list[T]] = {name: [] for name in decodes}
    for number, (request, policy) in enumerate(cases):
        for place, (name, decode) in enumerate(decodes.items()):
            result = decode(_padded(request, bytes([place, not number])), policy)
            if number:
                found[name].append(result)
    return found


def _padded(request: Request, behind: bytes) -> Request:
    padded = with_pictures(request.messages, lambda p: Picture.of(p.data + behind, p.size))
    return replace(request, messages=padded)


def acceptance(done: Iterable[Outcome]) -> float | None:
    """The share of tested drafted tokens that were accepted; None if there are none."""
    stats = [outcome.stats for outcome in done]
    tested = sum(each.tested for each in stats)
    return sum(each.accepted for each in stats) / tested if tested else None


def cache_hits(done: Iterable[Outcome]) -> float | None:
    """The share of rounds whose draft was ready when the previous verdict came; None if there are
    none.

    An answer's first round does not count.
    """
    rounds = (each for outcome in done for each in outcome.stats.rounds)
    ready = [not each.waited for each in rounds if each.drafted and each.base]
    return sum(ready) / len(ready) if ready else None


@dataclass(frozen=True)
class LocalRound:
    """A draft, how many of its tokens were accepted, and the tokens that the round emitted."""

    draft: Draft
    accepted: int
    emitted: tuple[int, ...]


def local_rounds(
    target: Session,
    draft_session: DraftSession,
    spec: PromptSpec,
    rule: str,
    policy: SamplingPolicy,
    shape: Shape,
    score: Score | None = None,
) -> Iterator[LocalRound]:
    """Decode an answer with drafts of this shape, by two sessions after the prompt; yields its
    rounds.

    score: the target's pass over a draft, logits [1 + n, V] (by default the session's ``forward``).
    """
    drafter = DraftModel(draft_session, ProposalConfig(rule, policy), spec.end_ids)
    answer: tuple[int, ...] = ()
    while len(answer) < spec.max_tokens and not (answer and answer[-1] in spec.end_ids):
        draft = drafter.finished(Branch(answer, shape)).draft
        logits = score(draft) if score else target.forward(draft.tokens, draft.parents)
        source = SeededRandomSource(policy.seed)
        verdict = accept(rule, draft, LogitRows(logits), policy, len(answer), source)
        assert verdict.token is not None
        target.commit(verdict.path)
        target.extend((verdict.token,))
        emitted = emitted_tokens(draft, verdict.path, verdict.token, spec)
        yield LocalRound(draft, len(verdict.path), emitted)
        answer += emitted


def emitted_tokens(
    draft: Draft, path: Sequence[int], token: int | None, spec: PromptSpec
) -> tuple[int, ...]:
    """Accepted nodes and the token after them, up to an end token."""
    tokens = [draft.tokens[node] for node in path] + ([] if token is None else [token])
    ends = [count for count, each in enumerate(tokens, 1) if each in spec.end_ids]
    return tuple(tokens[: ends[0] if ends else None])
