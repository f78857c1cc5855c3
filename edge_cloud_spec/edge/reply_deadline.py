"""How long the cloud may take to reply, and when to come again to a verifier that has no room."""

from __future__ import annotations

from random import Random

JITTER = 0.25  # of a wait, at most


def spread(wait_s: float, random: Random) -> float:
    """This wait (s) or up to ``JITTER`` of it longer: robots that were refused together do not come
    back together."""
    return wait_s * (1.0 + JITTER * random.random())


class ReplyDeadline:
    """When the decode times out, and when a verifier without room is to be asked again; both in s.

    ``deadline`` is None while no reply is due; only a reply moves it. ``retry_at`` is None unless
    the decode is refused: it is set by ``refused`` and cleared by ``asked_again``.
    """

    def __init__(self, seconds: float, nonce: int = 0) -> None:
        """nonce: the decode's, drawn at random."""
        self.deadline: float | None = None
        self.retry_at: float | None = None
        self._seconds = seconds
        self._random = Random(nonce)
        self._loss = ""  # why the link was lost last

    @property
    def next(self) -> float | None:
        """The earlier of ``deadline`` and ``retry_at``, s; None without both."""
        times = (self.deadline, self.retry_at)
        return min((time for time in times if time is not None), default=None)

    def owed(self, now: float) -> None:
        """Start the deadline of a reply at ``now`` (s), unless one is running."""
        if self.deadline is None:
            self.deadline = now + self._seconds

    def left(self, now: float) -> float:
        """The time that is left for a reply, s."""
        return self._seconds if self.deadline is None else max(0.0, self.deadline - now)

    def answered(self) -> None:
        """A reply came: no other is due."""
        self.deadline = None

    def lost(self, reason: str, now: float) -> None:
        """The link is lost: a new one is due."""
        self._loss = reason
        self.owed(now)

    def refused(self, retry_after_s: float, now: float) -> float:
        """The verifier has no room for so long; returns ``retry_at``, which is a little later."""
        self.retry_at = now + spread(retry_after_s, self._random)
        return self.retry_at

    def asked_again(self) -> None:
        """The decode is opened again: it is not refused any more."""
        self.retry_at = None

    def is_over(self, now: float) -> bool:
        """Whether the decode has timed out."""
        return self.deadline is not None and now >= self.deadline

    def retries(self, now: float) -> bool:
        """Whether it is time to ask a verifier again that had no room."""
        return self.retry_at is not None and now >= self.retry_at

    @property
    def why(self) -> str:
        """The timeout as a sentence for the user."""
        loss = f" ({self._loss})" if self._loss else ""
        return f"the cloud has not answered for {self._seconds:g} s; check the link{loss}"
