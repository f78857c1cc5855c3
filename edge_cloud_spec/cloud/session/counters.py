"""What became of the messages that a verifier received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...decoding.draft import Draft


@dataclass
class AnswerCounts:
    """What verdicts were about, and what was refused."""

    tokens: int = 0  # that verdicts settled
    drafts: int = 0  # that were judged, not empty
    # tokens of these, of all branches, and the accepted ones, by their source; some are looked up
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)  # by the place in the draft, from 0
    finished: Counter[str] = field(default_factory=Counter)  # answers, by how they ended
    refused: Counter[str] = field(default_factory=Counter)  # sessions, by the bound in the way


@dataclass
class Counters:
    """Counts. Each of the ``drafts`` received is one of the next five, or pushed and waiting."""

    drafts: int = 0
    judged: int = 0  # scored by the target
    repeated: int = 0  # for a prefix that has its verdict, which was sent again
    late: int = 0  # for a prefix that is passed or being judged, or from a robot that has left
    unused: int = 0  # pushed for a prefix that the answer did not reach, or a second time for one
    refused: int = 0
    verdicts: int = 0  # each counted once, however often it was sent
    ignored: int = 0  # other messages that name a prefix where the answer is not

    def __post_init__(self) -> None:
        self.answers = AnswerCounts()

    def count_verdict(
        self, draft: Draft, source: str, path: Sequence[int], tokens: int, finish: str
    ) -> None:
        """Count a verdict that accepts this path of the draft and settles so many tokens.

        source: who drafted the nodes that were not looked up.
        """
        self.verdicts += 1
        answers = self.answers
        answers.tokens += tokens
        answers.drafts += bool(len(draft))
        looked_up = sum(node >= draft.drafted for node in path)
        answers.drafted[source] += draft.drafted
        answers.drafted["lookup"] += draft.looked_up
        answers.accepted[source] += len(path) - looked_up
        answers.accepted["lookup"] += looked_up
        answers.accepted_at.update(range(len(path)))
        if finish:
            answers.finished[finish] += 1

    def count_left(self, kind: str) -> None:
        """A message of this kind was dropped, since its robot has left."""
        self.drafts += kind == "draft"
        self.late += kind == "draft"

    @property
    def accounted(self) -> int:
        """The sum of these five: all ``drafts``, once there are no sessions."""
        return self.judged + self.repeated + self.late + self.unused + self.refused
