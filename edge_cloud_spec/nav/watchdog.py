"""A thread that stops the robot when its velocity command is not renewed.

It depends on no model, link or executor: only on a monotonic clock and one function.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

STOP_REPEATS = 11  # a stop is repeated, since one message can be lost
STOP_PERIOD_S = 0.05  # s between repeats


class Watchdog:
    """Calls ``stop(0), stop(1), ...`` from its thread, ``grace`` s after the last command expired.

    ``feed(until)`` with each command, valid until then (monotonic s); ``calm()`` after a stop was
    commanded. ``stop_by`` is for a command that must end even earlier. ``fired`` counts how often
    the watchdog stopped the robot.
    """

    def __init__(
        self,
        stop: Callable[[int], None],
        grace: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.grace, self.fired = grace, 0
        self._stop, self._clock = stop, clock
        self._deadline: float | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; it does not stop a command that is still valid."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def feed(self, until: float, stop_by: float = math.inf) -> None:
        """Record a velocity command that is valid until ``until``, monotonic s."""
        deadline = min(until + self.grace, stop_by)
        with self._changed:
            sooner = self._deadline is None or deadline < self._deadline
            self._deadline = deadline
            if sooner:  # a later deadline is checked when the earlier one comes
                self._changed.notify()

    def calm(self) -> None:
        """Stop watching, because a stop was commanded."""
        with self._changed:
            self._deadline = None

    def due(self, now: float) -> bool:
        """Whether the last command has expired without a stop."""
        return self._deadline is not None and now >= self._deadline

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or self.due(self._clock())):
                    left = None if self._deadline is None else self._deadline - self._clock()
                    self._changed.wait(left)
                if self._closed:
                    return
                self._deadline = None
                self.fired += 1
            for repeat in range(STOP_REPEATS):
                with contextlib.suppress(Exception):  # this thread must outlive a failed message
                    self._stop(repeat)
                with self._changed:
                    if self._changed.wait_for(
                        lambda: self._closed or self._deadline, STOP_PERIOD_S
                    ):
                        break  # there is a new command
