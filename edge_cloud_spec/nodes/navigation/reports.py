"""What the navigator reports: all of it counted, the last for the diagnostics, a few logged."""

from __future__ import annotations

from collections.abc import Callable

from ...throttle import Throttle, with_more
from ..health.health import RecentProblem

LIFETIME_S = 30.0  # that a problem is told
LINES = 5  # of the log a second at most: a reader that does not read is not to block the robot


class Reports:
    """``log`` writes a line; ``count`` is how many reports there were. Used under a lock."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self.count = 0
        self._log, self._throttle, self._last = log, Throttle(LINES), RecentProblem(LIFETIME_S)

    def add(self, text: str, now: float) -> None:
        """A report came at ``now`` (steady seconds)."""
        self.count += 1
        self._last.report(text, now)
        left_out = self._throttle.admit("", now)
        if left_out is not None:
            self._log(with_more(text, left_out))

    def recent(self, now: float) -> str:
        """The last one; empty where it is long ago."""
        return self._last.text(now)
