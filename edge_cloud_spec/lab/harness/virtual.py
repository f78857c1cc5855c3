"""Robot, cloud and link in virtual time: with the real runner, worker and codec.

Only the waiting is left out. The robot's thread moves the clock: while it drafts or waits,
everything else that is due happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ...cloud.model_thread.sessions import WorkerLimits
from ...cloud.model_thread.worker import Worker
from ...wire.messages import ClientMessage
from .emulated_link import Direction, LinkProfile
from .regimes import Regime
from .robot import PATIENCE, ScriptedRobot
from .scripted.pair import BusyTime, scripted_worker
from .trace import ModelPass, Trace
from .virtual_cloud import VirtualCloud
from .virtual_link import Arrival, VirtualLink
from .virtual_time import Timeline, VirtualInbox


class ProfileImpairments:
    """Each way is a ``Direction`` of the profile; in its outages the link is cut."""

    def __init__(self, profile: LinkProfile, seed: int) -> None:
        self._round_trip = 2 * profile.delay_ms / 1e3
        self._up, self._down = Direction(profile, 2 * seed), Direction(profile, 2 * seed + 1)
        self._outages = profile.outages()

    def start(self, link: VirtualLink) -> None:
        """Plan the next outage."""
        if outage := next(self._outages, None):
            link.timeline.at(outage[0], link.cut)
            link.timeline.at(outage[1], partial(self._restore, link))

    def _restore(self, link: VirtualLink) -> None:
        link.restore()
        self.start(link)

    def up(self, message: ClientMessage, size: int, now: float) -> Iterable[Arrival]:
        """Once, in the order in which they were sent."""
        return [Arrival(self._up.arrival(now, size))]

    def down(self, data: bytes, now: float) -> Iterable[Arrival]:
        """Once, in the order in which they were sent."""
        return [Arrival(self._down.arrival(now, len(data)))]

    def closed_at(self, now: float) -> float:
        """After what was sent before."""
        return self._up.arrival(now, 0)

    def lost_at(self, now: float) -> float:
        """At once."""
        return now

    def clear(self) -> None:
        """Nothing is in flight."""
        self._up.clear()
        self._down.clear()

    def stream_s(self) -> float:
        """A round trip, as HTTP/2 takes."""
        return self._round_trip

    def notice_s(self) -> float:
        """At once."""
        return 0.0


class VirtualHarness:
    """A robot and a cloud of a regime on an emulated link, in virtual time."""

    def __init__(
        self,
        regime: Regime,
        profile: LinkProfile,
        seed: int = 0,
        limits: WorkerLimits | None = None,
        trace: Trace | None = None,
        cloud_drafts: bool = False,
    ) -> None:
        """trace: records all passes and messages. cloud_drafts: it has a draft model, too."""
        self.timeline = timeline = Timeline()

        def make_worker(clock: Callable[[], float], sleep: Callable[[float], None]) -> Worker:
            self.cloud_busy = BusyTime(sleep)
            on_pass = partial(passed, clock) if trace is not None else None
            return scripted_worker(regime, clock, self.cloud_busy, limits, on_pass, cloud_drafts)

        def passed(clock: Callable[[], float], kind: str, ms: float, drafted: int) -> None:
            assert trace is not None
            end = clock()
            trace.cloud.append(ModelPass(end - ms / 1e3, end, kind, drafted))

        cloud = VirtualCloud(timeline, make_worker)
        self.worker = cloud.worker
        link = VirtualLink(timeline, cloud, ProfileImpairments(profile, seed), trace)
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
        """Let this much time pass."""
        self.timeline.sleep(seconds)

    def tasks(self) -> int:
        """How many asyncio tasks there are: none."""
        return 0

    def close(self) -> None:
        """There is nothing to end."""
