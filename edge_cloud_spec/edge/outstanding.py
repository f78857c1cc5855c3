"""What the cloud is asked for: one request at a time, and how long its reply may take."""

from __future__ import annotations

from dataclasses import dataclass

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

    def settled(self, verdict: Verdict) -> tuple[int, tuple[int, ...] | None]:
        """How many tokens were drafted, and those that the verdict settles.

        None: it is not a verdict on this draft.
        """
        draft, last = self.message.draft, _last(verdict)
        if verdict.tokens:  # repeated, and complete in itself
            return len(draft), verdict.tokens + last
        accepted = draft.path_tokens(verdict.path)
        return len(draft), None if accepted is None else accepted + last


@dataclass(frozen=True)
class AwaitedTokens:
    """The cloud generates alone until the answer has ``message.until`` tokens (0: to its end)."""

    message: Generate

    def settled(self, verdict: Verdict) -> tuple[int, tuple[int, ...]]:
        """How many tokens the cloud drafted itself, and those that the verdict settles."""
        return verdict.drafted, verdict.tokens + _last(verdict)


@dataclass(frozen=True)
class AwaitedRow:
    """The dense row P at a rejected place is awaited: its short form gave no token."""

    rejection: Rejection

    @property
    def message(self) -> RowRequest:
        """The request as it is sent."""
        return RowRequest(self.rejection.base)


Request = AwaitedVerdict | AwaitedTokens | AwaitedRow


def _last(verdict: Verdict) -> tuple[int, ...]:
    """The recovered or bonus token, where there is one."""
    return () if verdict.token is None else (verdict.token,)


class Outstanding:
    """The open request: ``ask`` opens one where none is open, ``answered`` closes it.

    While none is open the robot drafts, and no reply is due.
    """

    def __init__(self, deadline: ReplyDeadline) -> None:
        self.request: Request | None = None
        self._deadline = deadline

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

    def answered(self) -> None:
        """The reply arrived."""
        self.request = None
        self._deadline.answered()

    def cancel(self) -> None:
        """Drop the open request; the deadline stays as it is."""
        self.request = None
