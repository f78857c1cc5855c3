"""Jobs that run as if each had a thread of its own, on one timeline; one runs at a time."""

from __future__ import annotations

from collections.abc import Callable

from ....edge.events import Inbox, Item
from ....errors import UserError
from ..virtual_time import Timeline

try:
    from greenlet import getcurrent, greenlet
except ImportError:
    raise UserError(
        "robots in virtual time need greenlet; pip install 'edge-cloud-spec[bench]'"
    ) from None


class Pause:
    """A thread that waits; of those who would wake it the first does."""

    def __init__(self, thread: greenlet) -> None:
        self._thread: greenlet | None = thread

    def end(self) -> None:
        """Wake it, the first time; called where time passes."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.switch()


class VirtualThreads:
    """Green threads whose waiting lets time pass; what one raises ends ``run``."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._main = getcurrent()
        self._running = 0

    def start(self, job: Callable[[], None]) -> None:
        """Begin this job when time passes."""

        def run() -> None:
            job()
            self._running -= 1

        self._running += 1
        self.timeline.after(0.0, greenlet(run, self._main).switch)

    def run(self) -> None:
        """Let time pass until all jobs have ended; raises Hung."""
        while self._running:
            self.timeline.step(float("inf"))

    def sleep(self, seconds: float) -> None:
        """Let this much time pass for the calling thread."""
        until = self.timeline.now + seconds
        if not self.timeline.skip(until):
            self.pause(until)
            self.wait()

    def pause(self, until: float | None = None) -> Pause:
        """A pause of the calling thread, begun by ``wait``; ``until``: its latest end, s."""
        pause = Pause(getcurrent())
        if until is not None:
            self.timeline.at(until, pause.end)
        return pause

    def wait(self) -> None:
        """Let others run until the calling thread's pause is ended."""
        self._main.switch()


class ThreadInbox(Inbox):
    """The queue of one virtual thread."""

    def __init__(self, threads: VirtualThreads) -> None:
        super().__init__()
        self._threads = threads
        self._pause: Pause | None = None

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        pause, self._pause = self._pause, None
        if pause is not None:
            self._threads.timeline.after(0.0, pause.end)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        now = self._threads.timeline.now
        if block and self.empty():
            self._pause = self._threads.pause(None if timeout is None else now + timeout)
            self._threads.wait()
            self._pause = None
        return self.get_nowait()
