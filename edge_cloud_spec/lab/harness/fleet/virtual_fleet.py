"""N scripted robots, each on a link of its own, and one server, in virtual time.

Robots, worker and codec are the real ones, as in ``harness/virtual.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ....cloud.model_thread.sessions import WorkerLimits
from ....cloud.model_thread.worker import Worker
from ....decoding.preset import Preset
from ..regimes import Regime
from ..robot import PATIENCE, ScriptedRobot
from ..scripted.pair import BusyTime, scripted_worker
from ..virtual import ProfileImpairments
from ..virtual_cloud import VirtualCloud
from ..virtual_link import VirtualLink
from ..virtual_time import Timeline
from .activity import RobotActivity
from .load import FleetLoad
from .virtual_threads import ThreadInbox, VirtualThreads


class VirtualFleet:
    """Robots that decode under one preset; ``run`` lets them, and returns what they did."""

    def __init__(
        self,
        regime: Regime,
        robots: int,
        preset: Preset,
        load: FleetLoad,
        limits: WorkerLimits | None = None,
        make_worker: Callable[..., Worker] = scripted_worker,
    ) -> None:
        """make_worker: the server's; arguments as of ``scripted_worker``."""
        self._preset, self._load = preset, load
        self.timeline = timeline = Timeline()
        self._threads = VirtualThreads(timeline)
        limits = limits or WorkerLimits()
        limits = replace(limits, sessions=max(limits.sessions, 2 * robots))
        self.passes: list[tuple[float, int]] = []  # ms and drafted tokens, of the target's

        def worker(clock: Callable[[], float], sleep: Callable[[float], None]) -> Worker:
            self.cloud_busy = BusyTime(sleep)
            drafts = preset.drafter == "cloud"
            return make_worker(regime, clock, self.cloud_busy, limits, self._on_pass, drafts)

        cloud = VirtualCloud(timeline, worker)
        self.worker = cloud.worker
        self.robots = [self._robot(regime, cloud, number) for number in range(robots)]
        self.activities = [RobotActivity() for _ in self.robots]

    def run(self) -> list[RobotActivity]:
        """Until each robot has finished the answer under way at the end of the time."""
        for number, robot in enumerate(self.robots):
            self._threads.start(partial(self._decode, number, robot))
        self._threads.run()
        return self.activities

    def _robot(self, regime: Regime, cloud: VirtualCloud, number: int) -> ScriptedRobot:
        profile = self._load.link(regime, number)
        impairments = ProfileImpairments(profile, self._load.seed * 1_009 + number)
        link = VirtualLink(self.timeline, cloud, impairments)
        inbox: Any = partial(ThreadInbox, self._threads)
        sleep = self._threads.sleep
        return ScriptedRobot(
            regime, link.connect, lambda: self.timeline.now, sleep, PATIENCE, inbox
        )

    def _decode(self, number: int, robot: ScriptedRobot) -> None:
        load, random, activity = self._load, self._load.random(number), self.activities[number]
        answer = 0
        self._threads.sleep(random.random() * 0.2)  # not all at once
        while self.timeline.now < load.seconds:
            decoded = robot.decode(self._preset, load.tokens, load.answer_seed(number, answer))
            activity.add(decoded.outcome, decoded.own)
            answer += 1
            if load.think_s:
                self._threads.sleep(random.expovariate(1 / load.think_s))

    def _on_pass(self, kind: str, ms: float, drafted: int) -> None:
        if kind == "verify":
            self.passes.append((ms, drafted))
