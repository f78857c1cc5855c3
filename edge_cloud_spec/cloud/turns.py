"""Whose turn it is on the model thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Line:
    """The jobs of one stream that wait, and the seconds that its jobs took."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.used = 0.0


class Turns:
    """Lines that take turns, a job each: next is the line that used the least time.

    So who floods, or asks for what takes long, waits for itself. A line that comes back after a
    while is owed nothing for it, and a new one begins behind all others. ``put`` may be called from
    any thread, the rest from the one that does the jobs.
    """

    def __init__(self) -> None:
        self._lines: dict[Line, None] = {}  # that have jobs; of equals, the first is next
        self._line = Line()  # whose turn it is
        self._lock = threading.Lock()
        self._due: SimpleQueue[bool] = SimpleQueue()  # a token for each job; False: the end

    def __len__(self) -> int:
        """How many jobs wait."""
        with self._lock:
            return sum(len(line.jobs) for line in self._lines)

    def put(self, line: Line, job: Job) -> None:
        """Let a job wait at the end of its line."""
        with self._lock:
            line.jobs.append(job)
            self._join(line)
        self._due.put(True)

    def put_first(self, line: Line, job: Job) -> None:
        """Let a job wait for its line's next turn."""
        with self._lock:
            line.jobs.appendleft(job)
            self._join(line)
        self._due.put(True)

    def take(self) -> Job | None:
        """The job whose turn it is; waits for one if need be. None at the end."""
        if not self._due.get():
            return None
        with self._lock:
            self._line = line = min(self._lines, key=lambda line: line.used)
            job = line.jobs.popleft()
            del self._lines[line]
            if line.jobs:
                self._lines[line] = None  # behind its equals
        return job

    def spend(self, seconds: float) -> None:
        """Whose turn it is used so much."""
        with self._lock:
            self._line.used += seconds

    def end(self) -> None:
        """Let ``take`` come to an end after as many jobs as wait now."""
        self._due.put(False)

    def _join(self, line: Line) -> None:
        if line in self._lines:
            return
        if not line.used:  # new: behind all, or who makes ever new lines would go before the others
            line.used = max(other.used for other in (self._line, *self._lines))
        elif line is not self._line:
            line.used = max(line.used, self._line.used)
        self._lines[line] = None
