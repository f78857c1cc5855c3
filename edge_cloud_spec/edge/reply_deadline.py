"""How long the cloud may leave a message unanswered."""

from __future__ import annotations


class ReplyDeadline:
    """``deadline`` is when it ends, None while the cloud owes nothing; only an answer moves it."""

    def __init__(self, seconds: float) -> None:
        self.deadline: float | None = None
        self._seconds = seconds
        self._trouble = ""  # why the link was lost last

    def owed(self, now: float) -> None:
        """From here on the cloud owes an answer, if it did not already."""
        if self.deadline is None:
            self.deadline = now + self._seconds

    def answered(self) -> None:
        """The cloud owes nothing."""
        self.deadline = None

    def lost(self, reason: str, now: float) -> None:
        """The link is gone: a new one is owed."""
        self._trouble = reason
        self.owed(now)

    def is_over(self, now: float) -> bool:
        """Whether the decode is to be given up."""
        return self.deadline is not None and now >= self.deadline

    @property
    def why(self) -> str:
        """What to tell the user then."""
        trouble = f" ({self._trouble})" if self._trouble else ""
        return f"the cloud has not answered for {self._seconds:g} s; check the link{trouble}"
