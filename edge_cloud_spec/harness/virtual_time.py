"""Virtual time: what happens when, and a queue whose reader lets time pass instead of waiting."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from queue import SimpleQueue

from ..edge.transport import Item


class Timeline:
    """What happens when; times in seconds from the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time: float, job: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(time, self.now), next(self._order), job))

    def step(self, until: float) -> bool:
        """Do what is due next; False when that is nothing before ``until``, which it is then."""
        if not self._due or self._due[0][0] > until:
            assert until < math.inf, "nothing will ever happen"
            self.now = max(self.now, until)
            return False
        self.now, _, job = heapq.heappop(self._due)
        job()
        return True

    def sleep(self, seconds: float) -> None:
        """Let so much time pass, with all that happens in it."""
        until = self.now + seconds
        while self.step(until):
            pass


class VirtualInbox(SimpleQueue[Item]):
    """Waiting for a message lets time pass."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        until = math.inf if timeout is None else self._timeline.now + timeout
        while block and self.empty() and self._timeline.step(until):
            pass
        return self.get_nowait()
