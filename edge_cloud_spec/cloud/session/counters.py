"""Counters of the messages that a verifier received, and of its verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...decoding.draft import Draft


@dataclass
class AnswerCounts:
    """Counts over all verdicts, and over refused requests."""

    tokens: int = 0  # tokens added by verdicts
    drafts: int = 0  # verified drafts that were not empty
    # drafted tokens (all branches) and accepted ones by source; lookup nodes count as "lookup"
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    # Accepted tokens by position in the draft, from 0.
    accepted_at: Counter[int] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)  # complete answers by finish reason
    refused: Counter[str] = field(default_factory=Counter)  # refused sessions by limit


@dataclass
class Counters:
    """Counts of messages. Each received draft is in ``drafts`` and in one of the next five, or
    waits."""

    drafts: int = 0
    verified: int = 0  # scored by the target
    repeated: int = 0  # for a prefix that has a verdict, which was sent again
    late: int = 0  # for an outdated prefix, or from a robot that has left
    unused: int = 0  # pushed for a prefix that the answer did not reach, or twice for one
    refused: int = 0
    verdicts: int = 0  # without repeated ones
    answers: AnswerCounts = field(default_factory=AnswerCounts)

    def count_verdict(
        self,
        draft: Draft,
        source: str,
        path: Sequence[int],
        tokens: int,
        finish: str,
        beside: int = 0,
    ) -> None:
        """Count a verdict that accepts this path of the draft and adds ``tokens`` tokens to the
        answer.

        source: who drafted the nodes that are neither from a lookup nor, as the last ``beside``
        ones, from a head of the target.
        """
        self.verdicts += 1
        answers = self.answers
        answers.tokens += tokens
        answers.drafts += bool(len(draft))
        looked_up = sum(node >= draft.drafted for node in path)
        answers.drafted[source] += draft.drafted
        answers.drafted["lookup"] += draft.looked_up - beside
        by_head = sum(node >= len(draft) - beside for node in path)
        answers.accepted[source] += len(path) - looked_up
        answers.accepted["lookup"] += looked_up - by_head
        if beside:
            answers.drafted["cloud"] += beside
            answers.accepted["cloud"] += by_head
        answers.accepted_at.update(range(len(path)))
        if finish:
            answers.finished[finish] += 1

    def count_left(self, kind: str) -> None:
        """Count a dropped message of this kind, whose robot has left."""
        self.drafts += kind == "draft"
        self.late += kind == "draft"
