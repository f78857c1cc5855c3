"""Whether a client may have one more session, and when a refused one is to come again.

State without I/O; times are steady, in s. A robot that is refused is told how long it takes until
a place is free for it: by Little's law one of N places is free after the N-th part of the time that
sessions last, and robots that were refused before come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...wire.channel import MAX_RETRY_S

SHORTEST_S = 0.05  # a refused robot does not come again before
RECENT = 0.1  # weight of the session that ended last, in the mean of how long they last


@dataclass(frozen=True)
class Refusal:
    """Why there is no room (``reason``: which bound), and when to try again."""

    reason: str
    text: str
    retry_after_s: float


class Turnover:
    """How long sessions last, and who waits for a place."""

    def __init__(self) -> None:
        self._mean_s = 0.0  # 0: none has ended
        self._due: dict[str, float] = {}  # when each refused client comes again

    def ended(self, lasted_s: float) -> None:
        """A session was over after so long."""
        recent = RECENT if self._mean_s else 1.0
        self._mean_s += recent * (lasted_s - self._mean_s)

    def admitted(self, client: str) -> None:
        """This client has its place."""
        self._due.pop(client, None)

    def wait_s(self, client: str, ages: Sequence[float], now: float) -> float:
        """When this client is to come again, where places are held since so long (s).

        A client that comes again early or often gets no other place in the line.
        """
        self._due = {other: due for other, due in self._due.items() if due > now}
        before = sum(other != client for other in self._due)
        lasts_s = self._mean_s or max(ages, default=0.0)
        wait = (before + 1) * lasts_s / max(1, len(ages))
        wait = min(max(wait, SHORTEST_S), MAX_RETRY_S)
        if client not in self._due:
            self._due[client] = now + wait
        return max(SHORTEST_S, self._due[client] - now)
