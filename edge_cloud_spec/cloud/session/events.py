"""The events that the verification of a session handles, and the actions that it returns."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Score:
    """Run the target over this draft; a Scored event is due.

    ``patience_s``: how long its robot can wait; 0: it did not say.
    """

    draft: Draft
    patience_s: float = 0.0


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
    layer: int


@dataclass(frozen=True)
class Proposed:
    """The draft of the cloud's own drafter (empty: it ``failed``, or was in others' way), and how
    long it took in seconds."""

    draft: Draft
    draft_s: float = 0.0
    failed: bool = False


Action = Score | Propose | Commit | Extend | Reply
Event = DraftMessage | Generate | Resume | Close | RowRequest | Scored | Predicted | Proposed
