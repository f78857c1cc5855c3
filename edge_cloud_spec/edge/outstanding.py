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
    """On a draft, which was drawn as ``drawn``; the cloud's pass over it ends at ``due`` (s)."""

    message: DraftMessage
    drawn: Draft
    due: float

    def settled(self, verdict: Verdict) -> tuple[int, tuple[int, ...] | None]:
        """How many tokens were drafted, and what the verdict settles; None: not on this draft."""
        draft, last = self.message.draft, _last(verdict)
        if verdict.tokens:  # repeated, and complete in itself
            return len(draft), verdict.tokens + last
        accepted = draft.path_tokens(verdict.path)
        return len(draft), None if accepted is None else accepted + last


@dataclass(frozen=True)
class AwaitedTokens:
    """The cloud goes on alone until the answer has ``message.until`` tokens (0: to its end)."""

    message: Generate

    def settled(self, verdict: Verdict) -> tuple[int, tuple[int, ...]]:
        """How many tokens the cloud drafted itself, and what the verdict settles."""
        return verdict.drafted, verdict.tokens + _last(verdict)


@dataclass(frozen=True)
class AwaitedRow:
    """All of P at a rejected place, where its short form ended before a token was drawn."""

    rejection: Rejection

    @property
    def message(self) -> RowRequest:
        """As it is sent."""
        return RowRequest(self.rejection.base)


Request = AwaitedVerdict | AwaitedTokens | AwaitedRow


def _last(verdict: Verdict) -> tuple[int, ...]:
    """The recovered or bonus token, where there is one."""
    return () if verdict.token is None else (verdict.token,)


class Outstanding:
    """The open request: ``ask`` opens one where none is open, ``answered`` closes it.

    Nothing open means that the robot drafts, and that the cloud owes nothing.
    """

    def __init__(self, deadline: ReplyDeadline) -> None:
        self.request: Request | None = None
        self._deadline = deadline

    def ask(self, request: Request, now: float) -> None:
        """From here on the cloud owes the reply to this."""
        assert self.request is None, "one request at a time"
        self.request = request
        self._deadline.owed(now)

    def ask_again(self, now: float) -> None:
        """It owes the same reply still."""
        self._deadline.owed(now)

    def pending(self) -> list[Action]:
        """What to send again where the link broke: all that is asked for."""
        return [] if self.request is None else [Send(self.request.message)]

    def answered(self) -> None:
        """The reply came."""
        self.request = None
        self._deadline.answered()

    def void(self) -> None:
        """What was asked for is not wanted any more; whether anything is owed stays as it is."""
        self.request = None
