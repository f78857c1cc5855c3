"""How long the cloud may take to reply."""

from __future__ import annotations


class ReplyDeadline:
    """``deadline`` (s) is None while no reply is due; only a reply moves it."""

    def __init__(self, seconds: float) -> None:
        self.deadline: float | None = None
        self._seconds = seconds
        self._loss = ""  # why the link was lost last

    def owed(self, now: float) -> None:
        """A reply is due from ``now`` on (s), unless one was already."""
        if self.deadline is None:
            self.deadline = now + self._seconds

    def left(self, now: float) -> float:
        """How long a reply to what is asked now may take, s."""
        return self._seconds if self.deadline is None else max(0.0, self.deadline - now)

    def answered(self) -> None:
        """No reply is due."""
        self.deadline = None

    def lost(self, reason: str, now: float) -> None:
        """The link is lost: a new one is due."""
        self._loss = reason
        self.owed(now)

    def is_over(self, now: float) -> bool:
        """Whether the decode has timed out."""
        return self.deadline is not None and now >= self.deadline

    @property
    def why(self) -> str:
        """The timeout as a sentence for the user."""
        loss = f" ({self._loss})" if self._loss else ""
        return f"the cloud has not answered for {self._seconds:g} s; check the link{loss}"
