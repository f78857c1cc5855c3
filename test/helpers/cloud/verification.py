"""One session's state machine, and the messages that drive it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from edge_cloud_spec.cloud.session.drafts import LEAST_PASSES, ServerDrafting
from edge_cloud_spec.cloud.session.events import EMPTY, DuePass, Effect, Event, Scored
from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.lookup import AnswerLookup
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.wire.messages import DraftMessage, Fault, Open, ServerMessage, Verdict

BASE = PrefixDigest(0, 77)
VOCABULARY = 10
END = 9
OPENING = Open(1, CLAUSES.request("x", b""), GREEDY, "greedy", draft_identity="d", lookup=True)
PAUSE = object()
DRAFTED = DuePass(Draft((1, 2)), given=2, source="cloud")
LOOKED_UP = DuePass(Draft((1, 2), looked_up=2))
BARE = DuePass(EMPTY)
ROW = TokenDistribution(np.full(VOCABULARY, 0.1, np.float32))


def session(rule: str = "greedy", max_tokens: int = 50, draft_length: int = 3) -> CloudSession:
    policy = GREEDY if rule == "greedy" else SamplingPolicy(1.0)
    payload = "dense" if rule == "rejection" else "ids"
    opening = Open(1, CLAUSES.request("find", b""), policy, rule, payload=payload)
    return opened(replace(opening, draft_length=draft_length), max_tokens)


def measured(drafted: int, looked_up: int, bare: int = 1, **more: Any) -> ServerDrafting:
    """Tokens of passes of a second each, by source."""
    own = ServerDrafting(**more)
    sources = (DRAFTED, drafted), (LOOKED_UP, looked_up), (BARE, bare)
    for judged, tokens in sources * LEAST_PASSES:
        own.report(judged, tokens, 1.0)
    return own


def says(*tokens: int) -> Scored:
    """Logits whose argmax are these tokens, row by row."""
    logits = np.zeros((len(tokens), VOCABULARY), np.float32)
    logits[range(len(tokens)), tokens] = 5
    return Scored(LogitRows(logits), verify_s=0.1, queue_s=0.2)


def draft(*tokens: int, base: PrefixDigest = BASE, round_: int = 0) -> DraftMessage:
    return DraftMessage(base, Draft(tokens), round_)


def verdict_of(effects: list) -> Verdict:
    (said,) = [effect for effect in effects if isinstance(effect, Verdict)]
    return said


def cloud_of(
    lookup: AnswerLookup | None = None,
    opening: Open = OPENING,
    server_drafting: ServerDrafting | None = None,
) -> CloudSession:
    """A session whose robot drafts, and may have looked up; the cloud may have a draft model."""
    return opened(opening, lookup=lookup, server_drafting=server_drafting)


def play(cloud: CloudSession, *steps: tuple[Any, ...]) -> list[Effect]:
    """Tell the session each event; what follows is as each step says. Returns the last effects.

    PAUSE: its stream is lost. A step is an event and what is to be scored next: the tokens of a
    chain (none: the target alone), a draft, None for nothing; or a proposal, a reply or a fault's
    code. Then, if it has more, the fields of the verdict that is sent.
    """
    effects: list[Effect] = []
    for number, (event, expected, *fields) in enumerate(steps):
        if event is PAUSE:
            cloud.pause()
            continue
        effects = cloud.handle(event)
        assert said_of(effects, event, expected), (number, event, expected, effects)
        for name, value in (fields[0] if fields else {}).items():
            assert getattr(verdict_of(effects), name) == value, (number, name)
    return effects


def said_of(effects: list[Effect], event: Event, expected: Any) -> bool:
    """Whether these effects are what the step expects."""
    replies = [effect for effect in effects if isinstance(effect, ServerMessage)]
    faults = [message.code for message in replies if isinstance(message, Fault)]
    if isinstance(expected, str):
        return faults == [expected]
    draft = next((effect.draft for effect in effects if isinstance(effect, DuePass)), None)
    if expected is None:
        return draft is None and (isinstance(event, Scored) or not effects)
    if isinstance(expected, tuple):
        return draft is not None and (draft.tokens, draft.parents) == (expected, None)
    if isinstance(expected, Draft):
        found = draft and (draft.tokens, draft.parents, draft.looked_up)
        return found == (expected.tokens, expected.parents, expected.looked_up)
    return effects[-1:] == [expected]


def split_opening(residual: Split) -> Open:
    """A request whose robot draws the token after a rejection itself."""
    return replace(
        OPENING,
        policy=SamplingPolicy(1.0),
        rule="rejection",
        payload="probabilities",
        split=residual,
        lookup=False,
    )


def opened(
    opening: Open, max_tokens: int = 50, vocabulary: int = VOCABULARY, **more: Any
) -> CloudSession:
    """A session of this request."""
    return CloudSession(
        "s", opening, BASE, end_tokens=(END,), max_tokens=max_tokens, vocabulary=vocabulary, **more
    )
