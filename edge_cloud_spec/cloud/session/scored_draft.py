"""The draft that the target scores for a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...decoding.draft import Draft

Source = Literal["robot", "cloud", "grammar"]

OWN_TOKENS = 4  # of a draft by the cloud's own draft model, where the robot does not say
MAX_OWN_TOKENS = 16  # of such a draft, or forced by the grammar, since that holds up all others
EMPTY = Draft(())  # nothing drafted: the target alone


@dataclass(frozen=True)
class ScoredDraft:
    """The draft that the target scores, and what its verdict is for.

    Its first ``given`` nodes are of its ``source``: a robot, the cloud's own draft model, which
    drafted for ``draft_s``, or what the grammar forces; the others were looked up.
    ``awaited``: a robot drafted for this very prefix and waits for the verdict.
    """

    draft: Draft
    given: int = 0
    awaited: bool = False
    exits: bool = False  # whether early exits may predict the verdict
    source: Source = "robot"
    draft_s: float = 0.0
    open_at: int | None = None
    patience_s: float = 0.0  # of its robot; 0: it did not say
    row_only: bool = False  # the robot draws the next token itself, and wants P for that

    @property
    def complete(self) -> bool:
        """Whether the verdict carries the accepted tokens: the robot did not draft all of them."""
        return not self.awaited or self.given < len(self.draft)

    def as_drafted(self, path: tuple[int, ...], token: int) -> tuple[tuple[int, ...], int]:
        """A predicted path and the token after it, up to the first node that is not the robot's."""
        for depth, node in enumerate(path):
            if node >= self.given:
                return path[:depth], self.draft.tokens[node]
        return path, token
