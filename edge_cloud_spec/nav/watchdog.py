"""Stopping the robot when nobody has renewed its velocity command: a thread of its own.

It knows nothing of models, links or executors; it has a steady clock and one function to call.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

REPEATS = 11  # a stop is said more than once: one message can be lost
PERIOD = 0.05  # s between repeats


class Watchdog:
    """Calls ``stop(0), stop(1), ...`` from its thread, ``grace`` s after the last command expired.

    ``feed(until)`` when a command is given that is valid until then (steady seconds), ``calm()``
    when the robot was told to stand. ``stop_by`` is for a command that may not stand even so long.
    ``fired`` counts how often it had to act.
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
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; a command still valid is not stopped by this."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def feed(self, until: float, stop_by: float = math.inf) -> None:
        """Note a velocity command that is valid until ``until``, steady s."""
        deadline = min(until + self.grace, stop_by)
        with self._changed:
            sooner = self._deadline is None or deadline < self._deadline
            self._deadline = deadline
            if sooner:  # a later one is looked at when the one before it comes
                self._changed.notify()

    def calm(self) -> None:
        """Stop watching: the robot was sent a stop."""
        with self._changed:
            self._deadline = None

    def due(self, now: float) -> bool:
        """Whether the last command has expired, and the robot was not sent a stop."""
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
            for repeat in range(REPEATS):
                with contextlib.suppress(Exception):  # this thread must outlive a failed message
                    self._stop(repeat)
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed or self._deadline, PERIOD):
                        break  # somebody is in command again
