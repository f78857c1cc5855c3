"""The events that a session handles, and the effects that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...decoding.draft import Draft
from ...decoding.target_rows import TargetRows
from ...wire.messages import (
    Close,
    DraftMessage,
    Generate,
    Resume,
    RowRequest,
    ServerMessage,
)

Source = Literal["robot", "cloud", "grammar", "target"]

EMPTY = Draft(())  # nothing drafted: the target alone
UNSAID_S = 1.0  # who does not say how long it can wait is served as if it had said this


@dataclass
class DuePass:
    """Run the target over this draft; a Scored event is due. It says what the verdict is for.

    Its first ``given`` nodes are of its ``source``: a robot, the cloud's own draft model, which
    drafted for ``draft_s``, or what the grammar forces; the others were looked up.
    ``awaited``: a robot drafted for this very prefix and waits for the verdict.

    The worker sets the rest: the ``rows`` that the pass computes (none of a draft that was scored
    with its prompt), since when it is due, when a target elsewhere was asked for it (s; None: not
    yet), and whether memory was short for it once.
    """

    draft: Draft
    given: int = 0
    awaited: bool = False
    exits: bool = False  # whether early exits may predict the verdict
    source: Source = "robot"
    draft_s: float = 0.0
    open_at: int | None = None
    reply_timeout_s: float = 0.0  # of its robot; 0: it did not say
    row_only: bool = False  # the robot draws the next token itself, and wants P for that
    rows: int = 0
    arrived: float = 0.0
    began: float | None = None
    ran_again: bool = False

    @property
    def deadline(self) -> float:
        """When its robot needs the verdict, s."""
        return self.arrived + (self.reply_timeout_s or UNSAID_S)

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


@dataclass(frozen=True)
class Propose:
    """Let the cloud's own drafter draft this many tokens after the prefix; Proposed is due.

    ``needed``: else the answer goes on without it where it fails.
    """

    prefix: tuple[int, ...]
    length: int
    needed: bool = True


@dataclass(frozen=True)
class Commit:
    """Commit these nodes of the scored draft, then extend by these tokens."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Extend:
    """Extend the prefix by these tokens; the next pass computes them."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    """Send this to the robot."""

    message: ServerMessage


@dataclass(frozen=True, eq=False)
class Scored:
    """The target's rows after the prefix and each node of the draft.

    ``verify_s`` is how long the pass took, ``queue_s`` how long it waited to begin; in seconds.
    """

    rows: TargetRows
    verify_s: float = 0.0
    queue_s: float = 0.0


@dataclass(frozen=True)
class Predicted:
    """An early exit of the pass under way predicts its verdict."""

    path: tuple[int, ...]
    token: int
    confidence: float


@dataclass(frozen=True)
class Proposed:
    """The draft of the cloud's own drafter (empty: it ``failed``, or was in others' way), and how
    long it took in seconds."""

    draft: Draft
    draft_s: float = 0.0
    failed: bool = False


Effect = DuePass | Propose | Commit | Extend | Reply
Event = DraftMessage | Generate | Resume | Close | RowRequest | Scored | Predicted | Proposed
