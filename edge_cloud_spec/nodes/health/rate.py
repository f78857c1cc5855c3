"""How fast a count grows: bytes per second, of bytes so far."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 5.0


@dataclass
class Rate:
    """Over the last ``WINDOW_S``; to be asked about once a second."""

    _seen: deque[tuple[float, float]] = field(default_factory=deque)  # when (s), and the count

    def per_second(self, count: float, now: float) -> float:
        """Growth per second up to now; ``count`` never shrinks. 0 before the second look."""
        while len(self._seen) > 1 and now - self._seen[1][0] >= WINDOW_S:
            self._seen.popleft()
        self._seen.append((now, count))
        begun, first = self._seen[0]
        return (count - first) / (now - begun) if now > begun else 0.0
