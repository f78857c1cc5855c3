"""Whether the model's thread still works: it is alive, and no step of it lasts too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class WatchedThread(Protocol):
    """What is watched."""

    @property
    def idle(self) -> bool:
        """Whether it waits for something to do."""

    @property
    def steps(self) -> int:
        """Steps that it has done."""

    def is_alive(self) -> bool:
        """Whether it runs."""


class ModelWatch:
    """``look`` some times within ``stuck_s``, the seconds that a step may last."""

    def __init__(
        self,
        worker: WatchedThread,
        stuck_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._stuck_s, self._clock = worker, stuck_s, clock
        self._steps = -1
        self._since = clock()  # when a step ended, or the thread was idle, for the last time

    def look(self) -> str:
        """What is wrong with the thread; empty where nothing is."""
        worker, now = self._worker, self._clock()
        if not worker.is_alive():
            return "the model's thread has ended; start the verifier again"
        if worker.idle or worker.steps != self._steps:
            self._steps, self._since = worker.steps, now
        if now - self._since > self._stuck_s:
            return f"a pass of the model lasts longer than {self._stuck_s:g} s"
        return ""
