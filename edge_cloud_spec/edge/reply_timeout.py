"""The deadline of the cloud's reply, and when to retry a verifier without room."""

from __future__ import annotations

from random import Random

JITTER = 0.25  # largest relative addition to a wait


def spread(wait_s: float, random: Random) -> float:
    """This wait (s) plus a random part of up to ``JITTER``, so that refused robots do not all
    return at once."""
    return wait_s * (1.0 + JITTER * random.random())


class ReplyTimeout:
    """When the decode times out, and when to retry a verifier without room; both in s.

    ``deadline`` is None while no reply is due; only a reply moves it. ``retry_at`` is set by
    ``refused`` and cleared by ``asked_again``.
    """

    def __init__(self, seconds: float, nonce: int = 0) -> None:
        """nonce: the decode's random number, which seeds the jitter."""
        self.deadline: float | None = None
        self.retry_at: float | None = None
        self._seconds = seconds
        self._random = Random(nonce)
        self._loss = ""  # why the link was last lost

    @property
    def next(self) -> float | None:
        """The earlier of ``deadline`` and ``retry_at``, s; None if neither is set."""
        if self.deadline is None or self.retry_at is None:
            return self.deadline if self.retry_at is None else self.retry_at
        return min(self.deadline, self.retry_at)

    def owed(self, now: float) -> None:
        """Start the deadline of a reply at ``now`` (s), unless one is running."""
        if self.deadline is None:
            self.deadline = now + self._seconds

    def left(self, now: float) -> float:
        """The time left for a reply, s."""
        return self._seconds if self.deadline is None else max(0.0, self.deadline - now)

    def answered(self) -> None:
        """Clear the deadline: a reply came."""
        self.deadline = None

    def lost(self, reason: str, now: float) -> None:
        """Record a lost link; starts the deadline unless it runs."""
        self._loss = reason
        self.owed(now)

    def refused(self, retry_after_s: float, now: float) -> float:
        """Record that the verifier has no room; returns ``retry_at``, ``retry_after_s`` from now or
        a bit later."""
        self.retry_at = now + spread(retry_after_s, self._random)
        return self.retry_at

    def asked_again(self) -> None:
        """Clear ``retry_at``: the decode is opened again."""
        self.retry_at = None

    def is_over(self, now: float) -> bool:
        """Whether the decode has timed out."""
        return self.deadline is not None and now >= self.deadline

    def retries(self, now: float) -> bool:
        """Whether it is time for another attempt at a verifier that had no room."""
        return self.retry_at is not None and now >= self.retry_at

    @property
    def why(self) -> str:
        """The timeout as a sentence for the user."""
        loss = f" ({self._loss})" if self._loss else ""
        return f"the cloud has not answered for {self._seconds:g} s; check the link{loss}"
