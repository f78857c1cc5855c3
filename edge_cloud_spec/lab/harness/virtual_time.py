"""Virtual time: what happens when, and a queue whose reader lets time pass instead of waiting."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

from ...edge.events import Inbox, Item


class Hung(Exception):
    """Nothing is due any more, or there is no end."""


class Timeline:
    """What happens when; times in seconds from the start. Raises Hung after ``max_steps``."""

    def __init__(self, max_steps: float = math.inf) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._steps, self._max_steps = 0, max_steps

    def at(self, time: float, job: Callable[[], None]) -> None:
        """Do this job at this time, s."""
        heapq.heappush(self._due, (max(time, self.now), next(self._order), job))

    def after(self, delay: float, job: Callable[[], None]) -> None:
        """Do this job after ``delay`` seconds."""
        self.at(self.now + delay, job)

    def step(self, until: float) -> bool:
        """Do the next job; False when none is due before ``until``, to which the time is set."""
        self._steps += 1
        if self._steps > self._max_steps:
            raise Hung(f"no end after {self._max_steps} steps")
        if not self._due or self._due[0][0] > until:
            if until == math.inf:
                raise Hung("nothing will ever happen")
            self.now = max(self.now, until)
            return False
        self.now, _, job = heapq.heappop(self._due)
        job()
        return True

    def skip(self, until: float) -> bool:
        """Set the time where nothing is due before; else False."""
        if self._due and self._due[0][0] <= until:
            return False
        self.now = max(self.now, until)
        return True

    def sleep(self, seconds: float) -> None:
        """Let this much time pass, and do the jobs that are due in it."""
        until = self.now + seconds
        while self.step(until):
            pass

    def drain(self) -> None:
        """Let time pass until nothing is due."""
        while self._due:
            self.step(math.inf)


class VirtualInbox(Inbox):
    """Waiting for a message lets time pass."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        until = math.inf if timeout is None else self._timeline.now + timeout
        while block and self.empty() and self._timeline.step(until):
            pass
        return self.get_nowait()
