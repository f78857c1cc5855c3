"""A histogram as Prometheus has them: how many values were at most so large, and their sum."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# Seconds, as vLLM's: a pass of milliseconds, and a prompt that waited for a minute.
SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)


class Histogram:
    """Observed from one thread, read from another."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)  # the last: above all bounds
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, times: int = 1) -> None:
        """Count this value, so many times."""
        place = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[place] += times
            self._sum += value * times

    def read(self) -> tuple[list[int], float]:
        """How many were at most each bound, and at the end how many there were; and their sum."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum
