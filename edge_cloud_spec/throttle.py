"""Limits the lines of a log per second, so that it stays readable and its pipe does not fill."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable

from .lru_cache import LruCache

MAX_KINDS = 1024  # whose last time is kept
EVERY_S = 1.0
LONGEST_S = 60.0
RECENT_PROBLEM_S = 30.0  # that a problem is told
LINES = 5  # of a log a second at most: a reader that does not read is not to block the robot
_DIFFERS = re.compile("request [0-9a-z]+|[0-9]+")  # by which two lines of one problem may differ


class Throttle:
    """At most ``most`` lines of a kind per second; the next line counts those left out.

    While a kind continues, its period doubles, up to ``longest_s``.
    """

    def __init__(self, most: int = 1, longest_s: float = EVERY_S) -> None:
        self._most, self._longest_s = most, longest_s
        self._kinds: LruCache[Hashable, tuple[float, int, int, float]] = LruCache(MAX_KINDS)

    def admit(self, kind: Hashable, now: float) -> int | None:
        """Whether to write this line: how many were left out since the last one; None: leave it
        out.

        ``now`` is monotonic, s.
        """
        begun, written, left_out, every_s = self._kinds.get(kind, (-math.inf, 0, 0, EVERY_S))
        if now - begun >= every_s:
            goes_on = now - begun < 2 * every_s
            every_s = min(2 * every_s, self._longest_s) if goes_on else EVERY_S
            begun, written = now, 0
        if written >= self._most:
            self._kinds[kind] = (begun, written, left_out + 1, every_s)
            return None
        self._kinds[kind] = (begun, written + 1, 0, every_s)
        return left_out


def with_more(text: str, left_out: int) -> str:
    """The line, with the number of similar lines left out."""
    return f"{text} ({left_out} more of these)" if left_out else text


class Reports:
    """Counts problems, remembers the last one for ``RECENT_PROBLEM_S``, and logs some of them.

    ``log`` writes a line. One problem, whatever its figures, is written ever more seldom while it
    goes on, and all together at most ``LINES`` a second.
    """

    def __init__(self, log: Callable[[str], object]) -> None:
        self.count = 0
        self._log, self._of_kind, self._of_all = log, Throttle(longest_s=LONGEST_S), Throttle(LINES)
        self.clear()

    def clear(self) -> None:
        """Forget the last problem."""
        self._last = ("", 0.0)  # replaced as one: threads share it

    def recent(self, now: float) -> str:
        """The last problem while it is recent, else empty."""
        text, at = self._last
        return text if now - at < RECENT_PROBLEM_S else ""

    def add(self, problem: str, now: float) -> None:
        """Record a problem at ``now`` (monotonic s)."""
        self.count += 1
        self._last = (problem, now)
        left_out = self._of_kind.admit(_DIFFERS.sub("", problem), now)
        if left_out is not None and (others := self._of_all.admit("", now)) is not None:
            self._log(with_more(problem, max(left_out, others)))
