"""The events that a session handles, and the effects that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...decoding.accept import ExitPrediction
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

EMPTY = Draft(())  # the target alone, without drafts
UNSAID_S = 1.0  # the reply timeout of a robot that does not state one


@dataclass
class DuePass:
    """Effect: run the target over this draft, then return a Scored event.

    The first ``given`` nodes are by ``source``: a robot, the cloud's own draft model (``draft_s``:
    its time), or the grammar, which forces them; the last ``beside`` ones are those that a head of
    the target added to a robot's, the last of the ``drafted`` tokens of its chain; the others are
    from a lookup. ``awaited``: a robot drafted for this very prefix and waits for the verdict.

    The worker sets the rest: ``rows``, the tokens that the pass computes (0 if the draft was scored
    with its prompt); ``arrived``, since when it is due, s; ``began``, when a target elsewhere was
    asked, s (None: not yet); ``ran_again``, whether it was repeated for lack of memory.
    """

    draft: Draft
    given: int = 0
    awaited: bool = False
    exits: bool = False  # whether early exits may predict the verdict
    source: Source = "robot"
    draft_s: float = 0.0
    open_at: int | None = None
    reply_timeout_s: float = 0.0  # the robot's; 0: unknown
    beside: int = 0
    drafted: int = 0
    row_only: bool = False  # the robot draws the next token itself, and needs P
    rows: int = 0
    arrived: float = 0.0
    began: float | None = None
    ran_again: bool = False

    @property
    def deadline(self) -> float:
        """When the robot needs the verdict, s."""
        return self.arrived + (self.reply_timeout_s or UNSAID_S)

    @property
    def complete(self) -> bool:
        """Whether the verdict must carry the accepted tokens: the robot did not draft all of
        them."""
        return not self.awaited or self.given < len(self.draft)

    def as_drafted(self, path: tuple[int, ...], token: int) -> tuple[tuple[int, ...], int]:
        """Cut a predicted path and the token after it at the first node that the robot did not
        draft."""
        for depth, node in enumerate(path):
            if node >= self.given:
                return path[:depth], self.draft.tokens[node]
        return path, token


@dataclass(frozen=True)
class Propose:
    """Effect: let the cloud's draft model draft ``length`` tokens after the prefix, then return
    Proposed.

    ``needed``: if drafting fails, the session faults; else it continues without a draft.
    """

    prefix: tuple[int, ...]
    length: int
    needed: bool = True


@dataclass(frozen=True)
class Commit:
    """Effect: commit these nodes of the scored draft, then extend by these tokens, which the next
    pass computes."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Scored:
    """Event: the target's logits after the prefix and after each node of the draft.

    ``verify_s``: the pass's duration; ``queue_s``: how long it waited before; in seconds.
    """

    rows: TargetRows
    verify_s: float = 0.0
    queue_s: float = 0.0


@dataclass(frozen=True)
class Proposed:
    """Event: the draft of the cloud's draft model, and its time in seconds.

    The draft is empty if the model ``failed``, or gave way to waiting robots.
    """

    draft: Draft
    draft_s: float = 0.0
    failed: bool = False


Effect = DuePass | Propose | Commit | ServerMessage
Event = DraftMessage | Generate | Resume | Close | RowRequest | Scored | ExitPrediction | Proposed
