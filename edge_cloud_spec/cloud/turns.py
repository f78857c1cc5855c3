"""Fair scheduling of the model thread: which stream's job is next."""

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

    So a stream that floods, or asks for long passes, delays only itself. A line gets no credit for
    the time that it was empty, and a new one begins behind all others. ``put`` may be called from
    any thread, the other methods from the one that does the jobs.
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
        """Queue a job at the end of its line."""
        with self._lock:
            line.jobs.append(job)
            self._join(line)
        self._due.put(True)

    def put_first(self, line: Line, job: Job) -> None:
        """Queue a job at the front of its line."""
        with self._lock:
            line.jobs.appendleft(job)
            self._join(line)
        self._due.put(True)

    def take(self) -> Job | None:
        """The job whose turn it is; waits until there is one. None at the end."""
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
        """Charge this time to the line whose turn it is."""
        with self._lock:
            self._line.used += seconds

    def end(self) -> None:
        """Let ``take`` return None after as many jobs as wait now."""
        self._due.put(False)

    def _join(self, line: Line) -> None:
        if line in self._lines:
            return
        if not line.used:  # new: behind all, or a robot that opens new streams would be first
            line.used = max(other.used for other in (self._line, *self._lines))
        elif line is not self._line:
            line.used = max(line.used, self._line.used)
        self._lines[line] = None
