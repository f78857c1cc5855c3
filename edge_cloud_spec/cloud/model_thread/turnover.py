"""When a robot that was refused may try again."""

from __future__ import annotations

from collections.abc import Sequence

from ...wire.channel import MAX_PAUSE_S

SHORTEST_S = 0.05  # least wait of a refused robot, s
LAST_SESSION_WEIGHT = 0.1  # weight of the last ended session in the mean duration


class Turnover:
    """How long sessions last, and which clients wait for one. No I/O; times are monotonic, s.

    A refused robot is told how long it takes until a session is free for it: by Little's law one of
    N ends after the N-th part of a session's mean duration, and robots refused earlier come first.
    """

    def __init__(self) -> None:
        self._mean_s = 0.0  # mean duration; 0: none has ended
        self._due: dict[str, float] = {}  # when each refused client may retry

    def ended(self, lasted_s: float) -> None:
        """Count a session that ended after this time (s)."""
        recent = LAST_SESSION_WEIGHT if self._mean_s else 1.0
        self._mean_s += recent * (lasted_s - self._mean_s)

    def admitted(self, client: str) -> None:
        """Remove an admitted client from the queue."""
        self._due.pop(client, None)

    def wait_s(self, client: str, ages: Sequence[float], now: float) -> float:
        """After how many seconds this refused client should try again.

        ``ages``: how long each current session has lasted, s. A client that tries again early or
        often keeps its place in the queue.
        """
        self._due = {other: due for other, due in self._due.items() if due > now}
        before = sum(other != client for other in self._due)
        lasts_s = self._mean_s or max(ages, default=0.0)
        wait = (before + 1) * lasts_s / max(1, len(ages))
        wait = min(max(wait, SHORTEST_S), MAX_PAUSE_S)
        if client not in self._due:
            self._due[client] = now + wait
        return max(SHORTEST_S, self._due[client] - now)
