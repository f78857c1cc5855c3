"""One session's state machine, and the messages that drive it."""

from __future__ import annotations

import numpy as np

from edge_cloud_spec.cloud.session.events import Reply, Score, Scored
from edge_cloud_spec.cloud.session.own_drafting import OwnDrafting
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.lookup import AnswerLookup
from edge_cloud_spec.wire.messages import DraftMessage, Open, Verdict

BASE = PrefixDigest(0, 77)
VOCABULARY = 10
END = 9
OPENING = Open(1, "x", b"", "action first", GREEDY, "greedy", draft_identity="d", lookup=True)
ROW = TokenDistribution(np.full(VOCABULARY, 0.1, np.float32))


def session(rule: str = "greedy", max_tokens: int = 50) -> Verification:
    policy = GREEDY if rule == "greedy" else SamplingPolicy(1.0)
    payload = "dense" if rule == "rejection" else "ids"
    opening = Open(1, "find", b"", "action first", policy, rule, payload=payload, draft_length=3)
    return Verification(
        "s", opening, BASE, end_tokens=(END,), max_tokens=max_tokens, vocabulary=VOCABULARY
    )


def says(*tokens: int) -> Scored:
    """Logits whose argmax are these tokens, row by row."""
    logits = np.zeros((len(tokens), VOCABULARY), np.float32)
    logits[range(len(tokens)), tokens] = 5
    return Scored(LogitRows(logits), verify_s=0.1, queue_s=0.2)


def draft(*tokens: int, base: PrefixDigest = BASE, round_: int = 0) -> DraftMessage:
    return DraftMessage(base, Draft(tokens), round_)


def stale(cloud: Verification) -> int:
    """Messages that named a prefix where the answer was not; they changed nothing."""
    return cloud.counters.late + cloud.counters.ignored


def verdict_of(actions: list) -> Verdict:
    (said,) = [
        a.message for a in actions if isinstance(a, Reply) and isinstance(a.message, Verdict)
    ]
    return said


def cloud_of(
    lookup: AnswerLookup | None = None, opening: Open = OPENING, own: OwnDrafting | None = None
) -> Verification:
    """A session whose robot drafts, and may have looked up; own: the cloud has a draft model."""
    return Verification(
        "s",
        opening,
        BASE,
        end_tokens=(END,),
        max_tokens=50,
        vocabulary=VOCABULARY,
        lookup=lookup,
        own=own,
    )


def scored(actions: list) -> Draft | None:
    """The draft of the next pass."""
    return next((action.draft for action in actions if isinstance(action, Score)), None)


def same(found: Draft | None, *tokens: int) -> bool:
    return found is not None and found.tokens == tokens and found.parents is None
