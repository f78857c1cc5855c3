"""The cloud's worker in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from ...cloud.model_thread.sessions import RobotStream, SendBytes
from ...cloud.model_thread.worker import Worker
from .virtual_time import Timeline

# Makes a worker, given its clock and its sleep, both in seconds.
MakeWorker = Callable[[Callable[[], float], Callable[[float], None]], Worker]


class VirtualCloud:
    """The worker. Its jobs are done at once, on a clock of its own that runs ahead meanwhile."""

    def __init__(
        self,
        timeline: Timeline,
        make_worker: MakeWorker,
        job_s: float = 0.0,
        on_job: Callable[[], None] = lambda: None,
    ) -> None:
        """job_s: how long the worker is busy after each job, beside its passes; on_job: called
        after each.
        """
        self._timeline = timeline
        self._make_worker = make_worker
        self._job_s, self._on_job = job_s, on_job
        self._ahead = 0.0  # seconds into the job under way
        self._free_at = 0.0
        self._is_scheduled = False
        self.worker = make_worker(self.clock, self._sleep)
        self.streams: list[RobotStream] = []  # that the worker knows

    def clock(self) -> float:
        """Seconds since the start, on the worker's clock."""
        return self._timeline.now + self._ahead

    def stream(self, send_bytes: SendBytes) -> RobotStream:
        """A robot's new stream; ``send_bytes`` is called with what the worker sends."""
        self.streams.append(RobotStream(send_bytes))
        return self.streams[-1]

    def receive(self, stream: RobotStream, data: bytes) -> None:
        """A message has arrived on this stream."""
        self.worker.receive(stream, data)
        self._wake()

    def leave(self, stream: RobotStream) -> None:
        """The stream is gone."""
        if stream in self.streams:
            self.streams.remove(stream)
            self.worker.leave(stream)
            self._wake()

    def restart(self) -> None:
        """Replace the server by a new one, without streams and sessions."""
        self.worker = self._make_worker(self.clock, self._sleep)
        self.streams = []

    def _sleep(self, seconds: float) -> None:
        self._ahead += seconds

    def _wake(self) -> None:
        if not self._is_scheduled and self.worker.pending:
            self._is_scheduled = True
            self._timeline.at(self._free_at, self._work)

    def _work(self) -> None:
        self._is_scheduled = False
        if not self.worker.pending:  # it was restarted
            return
        self.worker.run_one()
        self._free_at, self._ahead = self.clock() + self._job_s, 0.0
        self._on_job()
        self._wake()
