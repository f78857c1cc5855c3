"""Virtual time: a timeline of jobs, and a verifier and links that run on it.

Reading a queue advances time instead of waiting. A link has one stream per decode, which is opened
again after a cut.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from edge_cloud_spec.cloud.model_thread.sessions import RobotStream, SendFrame
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.edge.events import Inbox, Item, LinkLost, LinkUp, OnReceive
from edge_cloud_spec.wire.codec import encode_client
from edge_cloud_spec.wire.frames import ClientFrame, MessageFrame, ServerFrame
from edge_cloud_spec.wire.messages import ClientMessage

from .emulated_link import Direction, LinkProfile
from .scripted.model import BusyTime, Sleep


class Hung(Exception):
    """No job is due any more, or there are too many."""


class Timeline:
    """Jobs in the order of their times, s from the start. Raises Hung after ``max_steps``."""

    def __init__(self, max_steps: float = math.inf) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._steps, self._max_steps = 0, max_steps

    def clock(self) -> float:
        """Seconds since the start."""
        return self.now

    def at(self, time: float, job: Callable[[], None]) -> None:
        """Schedule a job for this time, s."""
        heapq.heappush(self._due, (max(time, self.now), next(self._order), job))

    def after(self, delay: float, job: Callable[[], None]) -> None:
        """Schedule a job after ``delay`` seconds."""
        self.at(self.now + delay, job)

    def step(self, until: float) -> bool:
        """Run the next job; False if none is due before ``until``, to which the time is then
        set."""
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
        """Set the time to ``until`` if no job is due before; else return False."""
        if self._due and self._due[0][0] <= until:
            return False
        self.now = max(self.now, until)
        return True

    def sleep(self, seconds: float) -> None:
        """Advance the time by ``seconds``, and run the jobs due meanwhile."""
        until = self.now + seconds
        while self.step(until):
            pass

    def drain(self) -> None:
        """Advance time until no job is left."""
        while self._due:
            self.step(math.inf)


class VirtualInbox(Inbox):
    """An inbox that advances virtual time while it waits for a message."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        until = math.inf if timeout is None else self._timeline.now + timeout
        while block and self.empty() and self._timeline.step(until):
            pass
        return self.get_nowait()


# Makes a worker, given its clock and its sleep, both in seconds.
MakeWorker = Callable[[Callable[[], float], Sleep], Worker]


class VirtualCloud:
    """A worker in virtual time. Its jobs run at once, on its own clock, which runs ahead meanwhile.

    ``busy``: the total time of its passes.
    """

    def __init__(
        self,
        timeline: Timeline,
        make_worker: MakeWorker,
        job_s: float = 0.0,
        on_job: Callable[[], None] = lambda: None,
    ) -> None:
        """job_s: how long the worker is busy after each job, besides its passes. on_job: called
        after each job."""
        self._timeline = timeline
        self._make_worker = make_worker
        self._job_s, self._on_job = job_s, on_job
        self._ahead = 0.0  # seconds into the job under way
        self._free_at = 0.0
        self._is_scheduled = False
        self.busy = BusyTime(self._sleep)
        self.restart()

    def clock(self) -> float:
        """Seconds since the start, on the worker's clock."""
        return self._timeline.now + self._ahead

    def stream(self, send_frame: SendFrame) -> RobotStream:
        """Open a robot's stream; ``send_frame`` is called with what the worker sends."""
        self.streams.append(RobotStream(send_frame))
        return self.streams[-1]

    def receive(self, stream: RobotStream, data: ClientFrame) -> None:
        """Pass a message that arrived on this stream to the worker."""
        self.worker.receive(stream, data)
        self._wake()

    def leave(self, stream: RobotStream) -> None:
        """Close a stream."""
        if stream in self.streams:
            self.streams.remove(stream)
            self.worker.leave(stream)
            self._wake()

    def restart(self) -> None:
        """Replace the server by a new one without streams and sessions."""
        self.worker = self._make_worker(self.clock, self.busy)
        self.streams: list[RobotStream] = []  # that the worker knows

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
    """When a message arrives, s; ``on_any_stream``: even if its own stream was cut meanwhile."""

    time: float
    on_any_stream: bool = False


class Impairments(Protocol):
    """The effects of a link on streams and messages; all times in seconds."""

    def start(self, link: VirtualLink) -> None:
        """Plan when the link is cut and restored."""

    def up(self, message: ClientMessage, size: int, now: float) -> Iterable[Arrival]:
        """The arrivals in the cloud of a message sent at ``now``: none, one, or several. May cut
        the link."""

    def down(self, data: ServerFrame, now: float) -> Iterable[Arrival]:
        """The arrivals at the robot of a message sent at ``now``."""

    def closed_at(self, now: float) -> float:
        """When the cloud notices that the robot closed its stream."""

    def lost_at(self, now: float) -> float:
        """When the cloud notices that a stream is cut; by default at once."""
        return now

    def clear(self) -> None:
        """Forget messages in flight, which a cut has lost."""

    def stream_s(self) -> float:
        """How long a new stream takes after the link is restored; by default no time."""
        return 0.0

    def notice_s(self) -> float:
        """How long the robot takes to notice that a new stream is connected; by default no time."""
        return 0.0


class ProfileImpairments(Impairments):
    """Impairments by a link profile: a ``Direction`` each way, and a cut in each outage."""

    def __init__(self, profile: LinkProfile, seed: int) -> None:
        self._profile = profile
        self._up, self._down = Direction(profile, 2 * seed), Direction(profile, 2 * seed + 1)
        self._outages = profile.outages()

    def start(self, link: VirtualLink) -> None:
        """Plan the next outage."""
        self._timeline = link.timeline
        if outage := next(self._outages, None):
            link.timeline.at(outage[0], link.cut)
            link.timeline.at(outage[1], partial(self._restore, link))

    def _restore(self, link: VirtualLink) -> None:
        link.restore()
        self.start(link)

    def up(self, message: ClientMessage, size: int, now: float) -> Iterable[Arrival]:
        """One arrival, in the order of sending."""
        return [Arrival(self._up.arrival(now, size))]

    def down(self, data: ServerFrame, now: float) -> Iterable[Arrival]:
        """One arrival, in the order of sending."""
        return [Arrival(self._down.arrival(now, len(data)))]

    def closed_at(self, now: float) -> float:
        """After all messages sent before."""
        return self._up.arrival(now, 0)

    def clear(self) -> None:
        """Forget what is in flight."""
        self._up.clear()
        self._down.clear()

    def stream_s(self) -> float:
        """A round trip, as HTTP/2 takes."""
        return 2 * self._profile.at(self._timeline.now).delay_ms / 1e3


class VirtualLink:
    """One robot's link. ``is_up``: it is not cut; ``on_send``: called before the robot sends."""

    def __init__(
        self,
        timeline: Timeline,
        impairments: Impairments,
        *clouds: VirtualCloud,
    ) -> None:
        """clouds: the verifier at its end, and those that ``restore`` may lead to."""
        self.timeline, self.impairments = timeline, impairments
        self._clouds = deque(clouds)
        self.is_up = True
        self.on_send: Callable[[ClientMessage], None] = lambda message: None
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
    def cloud(self) -> VirtualCloud:
        """The verifier at its end now."""
        return self._clouds[0]

    @property
    def is_used(self) -> bool:
        """Whether a decode has an open stream."""
        return self._stream is not None and not self._stream.closed

    def cut(self) -> None:
        """Break the link."""
        self.is_up = False
        self.impairments.clear()
        if self._stream:
            self._stream.cut()

    def restore(self, *, moved: bool = False) -> None:
        """Restore the link; the stream opens again after ``Impairments.stream_s``.

        moved: it then leads to the next verifier.
        """
        if moved:
            self._clouds.rotate(-1)
        self.is_up = True
        self.timeline.after(self.impairments.stream_s(), self._reopen)

    def _reopen(self) -> None:
        if self._stream and self.is_up:
            self._stream.reopen()


class VirtualStream:
    """One decode's stream; a cut loses what is in flight."""

    def __init__(self, link: VirtualLink, on_receive: OnReceive) -> None:
        self._link, self._on_receive = link, on_receive
        self._far: RobotStream | None = None  # as the cloud knows it
        self._cloud = link.cloud  # where it was connected last
        self.closed = False

    def open(self) -> None:
        """Connect to the cloud."""
        self._cloud = self._link.cloud
        self._far = far = self._cloud.stream(lambda data: self._answer(far, data))

    def reopen(self) -> None:
        """Connect again after a cut."""
        link = self._link
        if self._far is None and not self.closed:
            link_up = LinkUp(moved=self._cloud is not link.cloud)
            self.open()
            link.timeline.after(link.impairments.notice_s(), lambda: self._deliver(link_up))

    def cut(self) -> None:
        """Cut the stream."""
        self._leave(self._link.impairments.lost_at)
        self._far = None
        self._deliver(LinkLost("the link is cut"))

    def send(self, message: ClientMessage) -> int:
        """Send a message; returns its size in bytes."""
        self._link.on_send(message)
        data, link, far = encode_client(message), self._link, self._far
        if far is not None:
            arrivals = link.impairments.up(message, len(data), link.timeline.now)
            self._travel(arrivals, far, data, self._reach)
        return len(data)

    def close(self) -> None:
        """Close the stream."""
        self.closed = True
        self._leave(self._link.impairments.closed_at)

    def _leave(self, noticed: Callable[[float], float]) -> None:
        timeline, far = self._link.timeline, self._far
        if far is not None:
            timeline.at(noticed(timeline.now), partial(self._cloud.leave, far))

    def _answer(self, far: RobotStream, data: ServerFrame | None) -> None:
        """Deliver a cloud's message."""
        if data is not None and self._far is far:
            arrivals = self._link.impairments.down(data, self._cloud.clock())
            self._travel(arrivals, far, data, self._arrive)

    def _travel(
        self,
        arrivals: Iterable[Arrival],
        far: RobotStream,
        frame: MessageFrame,
        arrive: Callable[[VirtualCloud, RobotStream | None, Any], None],
    ) -> None:
        for arrival in arrivals:
            stream = None if arrival.on_any_stream else far
            self._link.timeline.at(arrival.time, partial(arrive, self._cloud, stream, frame))

    def _reach(self, cloud: VirtualCloud, far: RobotStream | None, data: ClientFrame) -> None:
        """A message arrives in this cloud; ``far``: on this stream only."""
        stream = self._far
        if stream is not None and cloud is self._cloud and (far is None or far is stream):
            cloud.receive(stream, data)

    def _arrive(self, cloud: VirtualCloud, far: RobotStream | None, data: ServerFrame) -> None:
        """A message of this cloud arrives at the robot; ``far``: on this stream only."""
        if cloud is self._cloud and (far is None or far is self._far):
            self._deliver(data)

    def _deliver(self, item: ServerFrame | LinkLost | LinkUp) -> None:
        if not self.closed:
            self._on_receive(item)
