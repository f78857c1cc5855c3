"""What the cloud is asked for: one request at a time, and how long its reply may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..wire.messages import DraftMessage, Generate, RowRequest, Verdict
from .events import Action, Send
from .reply_deadline import ReplyDeadline
from .resampling import Rejection


@dataclass(frozen=True)
class AwaitedVerdict:
    """The verdict on a draft is awaited; the cloud's pass over it ends at about ``due`` (s).

    ``drawn`` is the draft with the rows of Q that it was drawn from, which may not be sent.
    """

    message: DraftMessage
    drawn: Draft
    due: float


@dataclass(frozen=True)
class AwaitedTokens:
    """The cloud generates alone, until the answer has ``alone.until`` tokens (0: to its end)."""

    message: Generate


@dataclass(frozen=True)
class AwaitedRow:
    """The dense row P at a rejected place is awaited: its short form gave no token."""

    rejection: Rejection

    @property
    def message(self) -> RowRequest:
        """The request as it is sent."""
        return RowRequest(self.rejection.base)


Request = AwaitedVerdict | AwaitedTokens | AwaitedRow


def settled_by(verdict: Verdict, draft: Draft | None) -> tuple[int, tuple[int, ...] | None]:
    """How many tokens were tested, and those that the verdict settles; ``draft``: ours, if any.

    A verdict that carries its accepted tokens is complete in itself, whatever was asked for: the
    cloud judged other tokens than ours, or says it again. Another one names nodes of the draft.
    None: it is not on this draft.
    """
    last = () if verdict.token is None else (verdict.token,)
    drafted = 0 if draft is None else len(draft)
    if verdict.alone:
        drafted = verdict.drafted
    if len(verdict.tokens) == len(verdict.path):
        return verdict.drafted or drafted, verdict.tokens + last
    accepted = None if draft is None else draft.path_tokens(verdict.path)
    return drafted, None if accepted is None else accepted + last


class Outstanding:
    """The open request: ``ask`` opens one where none is open, ``answered`` closes it.

    While none is open the robot drafts, and no reply is due.
    """

    def __init__(self, deadline: ReplyDeadline) -> None:
        self.request: Request | None = None
        self._deadline = deadline

    def patience_s(self, now: float) -> float:
        """How long the robot can wait for a reply to what it asks now, s."""
        return self._deadline.left(now)

    def ask(self, request: Request, now: float) -> None:
        """Open this request; its reply is due from ``now`` on (s)."""
        assert self.request is None, "one request at a time"
        self.request = request
        self._deadline.owed(now)

    def ask_again(self, now: float) -> None:
        """The open request's reply is still due; from ``now`` on (s) where it was not."""
        self._deadline.owed(now)

    def pending(self) -> list[Action]:
        """What to send again after a lost link: the open request."""
        return [] if self.request is None else [Send(self.request.message)]

    def hand_over(self, here: PrefixDigest | None) -> None:
        """Another verifier gets the open request; all that it knows of us is the prefix ``here``.

        ValueError where there is a request and no prefix.
        """
        request = self.request
        if isinstance(request, AwaitedVerdict):
            self.request = replace(request, message=replace(request.message, resampled=None))
        elif isinstance(request, AwaitedRow):
            if here is None:
                raise ValueError("a row is awaited where no token is verified")
            self.request = AwaitedRow(replace(request.rejection, base=here))

    def answered(self) -> None:
        """The reply arrived."""
        self.request = None
        self._deadline.answered()

    def cancel(self) -> None:
        """Drop the open request; the deadline stays as it is."""
        self.request = None
