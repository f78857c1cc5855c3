"""Robot, cloud and link in virtual time: the runner, the worker and the codec as in earnest.

What takes a second here takes microseconds; nothing is left out but the waiting. The robot's thread
moves the clock: while it drafts or waits, everything else that is due happens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..cloud.sessions import RobotStream, WorkerLimits
from ..edge.events import LinkLost, LinkUp
from ..edge.transport import OnReceive
from ..wire.codec import decode_server, encode_client
from ..wire.messages import ClientMessage
from .emulated_link import Direction, LinkProfile
from .regimes import Regime
from .robot import PATIENCE, ScriptedRobot
from .scripted_pair import Busy, scripted_worker
from .trace import CloudPass, Hop, Trace
from .virtual_time import Timeline, VirtualInbox


class _Cloud:
    """The worker. Its jobs are done at once, on a clock of its own that runs ahead meanwhile."""

    def __init__(
        self,
        timeline: Timeline,
        regime: Regime,
        limits: WorkerLimits | None,
        trace: Trace | None,
    ) -> None:
        self._timeline, self._trace = timeline, trace
        self._ahead = 0.0  # seconds into the job under way
        self._free_at = 0.0
        self._woken = False
        self.busy = Busy(self._sleep)
        on_pass = self._passed if trace is not None else None
        self.worker = scripted_worker(regime, self.clock, self.busy, limits, on_pass)

    def clock(self) -> float:
        return self._timeline.now + self._ahead

    def _sleep(self, seconds: float) -> None:
        self._ahead += seconds

    def _passed(self, kind: str, ms: float, drafted: int) -> None:
        assert self._trace is not None
        end = self.clock()
        self._trace.cloud.append(CloudPass(end - ms / 1e3, end, kind, drafted))

    def receive(self, stream: RobotStream, data: bytes) -> None:
        self.worker.receive(stream, data)
        self._wake()

    def leave(self, stream: RobotStream) -> None:
        self.worker.leave(stream)
        self._wake()

    def _wake(self) -> None:
        if not self._woken and self.worker.pending:
            self._woken = True
            self._timeline.at(self._free_at, self._work)

    def _work(self) -> None:
        self._woken = False
        self.worker.run_one()
        self._free_at, self._ahead = self.clock(), 0.0
        self._wake()


class _VirtualLink:
    """The emulated link: a decode's stream at a time, made again after each outage."""

    def __init__(
        self,
        timeline: Timeline,
        cloud: _Cloud,
        profile: LinkProfile,
        seed: int,
        trace: Trace | None,
    ) -> None:
        self._timeline, self.cloud, self.trace = timeline, cloud, trace
        self._round_trip = 2 * profile.delay_ms / 1e3
        self.up, self.down = Direction(profile, 2 * seed), Direction(profile, 2 * seed + 1)
        self._outages = profile.outages()
        self._out = False
        self._stream: _VirtualStream | None = None
        self._schedule()

    def connect(self, on_receive: OnReceive) -> _VirtualStream:
        """The way to the cloud for one decode (``DecodeRunner.run``)."""
        self._stream = _VirtualStream(self, on_receive)
        if self._out:
            self._stream.cut()
        else:
            self._stream.stand()
        return self._stream

    def at(self, time: float, job: Callable[[], None]) -> None:
        self._timeline.at(time, job)

    def _schedule(self) -> None:
        if outage := next(self._outages, None):
            self.at(outage[0], self._lose)
            self.at(outage[1], self._restore)

    def _lose(self) -> None:
        self._out = True
        self.up.clear()
        self.down.clear()
        if self._stream:
            self._stream.cut()
        if self.trace is not None:
            self.trace.cut(self.now)

    def _restore(self) -> None:
        """A new stream takes a round trip to stand, as HTTP/2 does."""
        self._out = False
        self.at(self._timeline.now + self._round_trip, self._stand_again)
        self._schedule()

    def _stand_again(self) -> None:
        if self._stream and not self._out:
            self._stream.stand_again()

    @property
    def now(self) -> float:
        return self._timeline.now


class _VirtualStream:
    """One decode's stream. What is on its way when it is cut is lost."""

    def __init__(self, link: _VirtualLink, on_receive: OnReceive) -> None:
        self._link, self._on_receive = link, on_receive
        self._far: RobotStream | None = None  # as the cloud knows it
        self._closed = False

    def stand(self) -> None:
        def say(data: bytes | None) -> None:
            if data is not None and self._far is far:
                left = self._link.cloud.clock()
                arrival = self._link.down.arrival(left, len(data))
                if self._link.trace is not None:
                    hop = Hop(left, arrival, len(data), decode_server(data))
                    self._link.trace.hops.append(hop)
                self._link.at(arrival, lambda: self._arrive(far, data))

        far = self._far = RobotStream(say)

    def stand_again(self) -> None:
        if self._far is None and not self._closed:
            self.stand()
            self._on_receive(LinkUp())

    def cut(self) -> None:
        far, self._far = self._far, None
        if far is not None:
            self._link.cloud.leave(far)
        if not self._closed:
            self._on_receive(LinkLost("an outage"))

    def send(self, message: ClientMessage) -> int:
        data, far = encode_client(message), self._far
        if far is not None:
            arrival = self._link.up.arrival(self._link.now, len(data))
            if self._link.trace is not None:
                self._link.trace.hops.append(Hop(self._link.now, arrival, len(data), message))
            self._link.at(arrival, lambda: self._reach(far, data))
        return len(data)

    def close(self) -> None:
        self._closed = True
        far = self._far
        if far is not None:
            arrival = self._link.up.arrival(self._link.now, 0)
            self._link.at(arrival, lambda: self._link.cloud.leave(far))

    def _reach(self, far: RobotStream, data: bytes) -> None:
        if self._far is far:
            self._link.cloud.receive(far, data)

    def _arrive(self, far: RobotStream, data: bytes) -> None:
        if self._far is far and not self._closed:
            self._on_receive(data)


class VirtualHarness:
    """A robot and a cloud of a regime on an emulated link, in virtual time."""

    def __init__(
        self,
        regime: Regime,
        profile: LinkProfile,
        seed: int = 0,
        limits: WorkerLimits | None = None,
        trace: Trace | None = None,
    ) -> None:
        """trace: is given all passes and messages, where one is wanted."""
        self.timeline = timeline = Timeline()
        cloud = _Cloud(timeline, regime, limits, trace)
        self.worker, self.cloud_busy = cloud.worker, cloud.busy
        link = _VirtualLink(timeline, cloud, profile, seed, trace)
        inbox: Any = partial(VirtualInbox, timeline)
        patience = PATIENCE + profile.outage_s
        self.robot = ScriptedRobot(
            regime, link.connect, self.clock, timeline.sleep, patience, inbox
        )
        if trace is not None:
            self.robot.runner.on_pass = trace.drafted

    def clock(self) -> float:
        """Seconds since the start."""
        return self.timeline.now

    def rest(self, seconds: float) -> None:
        """Let so much time pass."""
        self.timeline.sleep(seconds)

    def tasks(self) -> int:
        """Of asyncio: there are none."""
        return 0

    def close(self) -> None:
        """There is nothing to end."""
