"""The cloud in virtual time, and the link to it: one stream a decode, made again after a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ...cloud.model_thread.sessions import RobotStream, SendBytes
from ...cloud.model_thread.worker import Worker
from ...edge.events import LinkLost, LinkUp, OnReceive
from ...wire.codec import decode_server, encode_client
from ...wire.messages import ClientMessage, ServerMessage
from .trace import Hop, Trace
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


@dataclass(frozen=True)
class Arrival:
    """When a message arrives, s; ``on_any_stream``: also where its own is cut meanwhile."""

    time: float
    on_any_stream: bool = False


class Impairments(Protocol):
    """What the link does to streams and messages; all times in seconds."""

    def start(self, link: VirtualLink) -> None:
        """Plan when the link is cut and restored."""

    def up(self, message: ClientMessage, size: int, now: float) -> Iterable[Arrival]:
        """When this message, which is sent at ``now``, arrives in the cloud: not at all, or more
        than once, too. It may cut the link.
        """

    def down(self, data: bytes, now: float) -> Iterable[Arrival]:
        """The same on the way to the robot."""

    def closed_at(self, now: float) -> float:
        """When the cloud notices that the robot closed its stream."""

    def lost_at(self, now: float) -> float:
        """When the cloud notices that a stream is cut."""

    def clear(self) -> None:
        """The link is cut: what was in flight is lost, and delays nothing after it."""

    def stream_s(self) -> float:
        """How long a new stream takes, once the link is restored."""

    def notice_s(self) -> float:
        """How long the robot takes to notice that a new stream is connected."""


class VirtualLink:
    """The link of one robot. ``is_up``: it is not cut; ``cloud``: the verifier at its end now."""

    def __init__(
        self,
        timeline: Timeline,
        cloud: VirtualCloud,
        impairments: Impairments,
        trace: Trace | None = None,
        other: VirtualCloud | None = None,
    ) -> None:
        """other: a second verifier, for ``restore``."""
        self.timeline, self.cloud, self.trace = timeline, cloud, trace
        self._other = other
        self.impairments = impairments
        self.is_up = True
        self._stream: VirtualStream | None = None
        impairments.start(self)

    def connect(self, on_receive: OnReceive) -> VirtualStream:
        """The transport of one decode (``DecodeRunner.run``)."""
        self._stream = VirtualStream(self, on_receive)
        if self.is_up:
            self._stream.open()
        else:
            self._stream.cut()
        return self._stream

    @property
    def is_used(self) -> bool:
        """Whether a decode has a stream that it has not closed."""
        return self._stream is not None and not self._stream.closed

    def cut(self) -> None:
        """The link breaks."""
        self.is_up = False
        self.impairments.clear()
        if self._stream:
            self._stream.cut()
        if self.trace is not None:
            self.trace.cut(self.timeline.now)

    def restore(self, *, moved: bool = False) -> None:
        """The link works again; the stream is opened again after ``Impairments.stream_s``.

        moved: at the other verifier.
        """
        if moved:
            assert self._other is not None
            self.cloud, self._other = self._other, self.cloud
        self.is_up = True
        self.timeline.after(self.impairments.stream_s(), self._reopen)

    def _reopen(self) -> None:
        if self._stream and self.is_up:
            self._stream.reopen()


class VirtualStream:
    """One decode's stream. What is in flight when it is cut is lost."""

    def __init__(self, link: VirtualLink, on_receive: OnReceive) -> None:
        self._link, self._on_receive = link, on_receive
        self._far: RobotStream | None = None  # as the cloud knows it
        self._cloud = link.cloud  # where it was connected last
        self.closed = False

    def open(self) -> None:
        """Connect it to the cloud."""
        self._cloud = cloud = self._link.cloud
        self._far = far = cloud.stream(lambda data: self._answer(cloud, far, data))

    def reopen(self) -> None:
        """Connect it again after a cut."""
        if self._far is None and not self.closed:
            link_up = LinkUp(moved=self._cloud is not self._link.cloud)
            self.open()
            self._link.timeline.after(
                self._link.impairments.notice_s(), lambda: self._deliver(link_up)
            )

    def cut(self) -> None:
        """The link is cut."""
        link, far = self._link, self._far
        self._far = None
        if far is not None:
            leave = partial(self._cloud.leave, far)
            link.timeline.at(link.impairments.lost_at(link.timeline.now), leave)
        self._deliver(LinkLost("the link is cut"))

    def send(self, message: ClientMessage) -> int:
        """Send a message on its way; returns its bytes."""
        data, link, far = encode_client(message), self._link, self._far
        if far is not None:
            now = link.timeline.now
            for arrival in link.impairments.up(message, len(data), now):
                stream = None if arrival.on_any_stream else far
                job = partial(self._reach, self._cloud, stream, data)
                self._travel(now, arrival, data, message, job)
        return len(data)

    def close(self) -> None:
        """The robot is done with the stream."""
        self.closed = True
        link, far = self._link, self._far
        if far is not None:
            leave = partial(self._cloud.leave, far)
            link.timeline.at(link.impairments.closed_at(link.timeline.now), leave)

    def _answer(self, cloud: VirtualCloud, far: RobotStream, data: bytes | None) -> None:
        """The cloud sends this."""
        if data is None or self._far is not far:
            return
        link = self._link
        left = cloud.clock()
        for arrival in link.impairments.down(data, left):
            job = partial(self._arrive, cloud, None if arrival.on_any_stream else far, data)
            message = None if link.trace is None else decode_server(data)
            self._travel(left, arrival, data, message, job)

    def _travel(
        self,
        left: float,
        arrival: Arrival,
        data: bytes,
        message: ClientMessage | ServerMessage | None,
        job: Callable[[], None],
    ) -> None:
        if self._link.trace is not None and message is not None:
            self._link.trace.hops.append(Hop(left, arrival.time, len(data), message))
        self._link.timeline.at(arrival.time, job)

    def _reach(self, cloud: VirtualCloud, far: RobotStream | None, data: bytes) -> None:
        """A message arrives in this cloud; ``far``: on this stream alone."""
        stream = self._far
        if stream is not None and cloud is self._cloud and (far is None or far is stream):
            cloud.receive(stream, data)

    def _arrive(self, cloud: VirtualCloud, far: RobotStream | None, data: bytes) -> None:
        """A message of this cloud arrives at the robot; ``far``: on this stream alone."""
        if cloud is self._cloud and (far is None or far is self._far):
            self._deliver(data)

    def _deliver(self, item: bytes | LinkLost | LinkUp) -> None:
        if not self.closed:
            self._on_receive(item)
