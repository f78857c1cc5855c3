"""Many scripted robots and one server in virtual time, each robot on its own link.

Robots are green threads on the timeline of one harness, of which one runs at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from greenlet import getcurrent, greenlet

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.events import Inbox, Item

from ..cost_profiles import CostProfile
from ..scripted.model import ScriptedModels
from ..scripted_robot import ScriptedRobot
from ..virtual import VirtualHarness
from ..virtual_time import ProfileImpairments, Timeline
from .load import FleetLoad, RobotActivity


class VirtualThreads:
    """Green threads that advance virtual time while they wait; their exceptions end ``run``."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._main = getcurrent()
        self._running = 0

    def start(self, job: Callable[[], None]) -> None:
        """Start a job at the current virtual time."""

        def run() -> None:
            job()
            self._running -= 1

        self._running += 1
        self.timeline.after(0.0, greenlet(run, self._main).switch)

    def run(self) -> None:
        """Advance time until all jobs have ended; raises Hung."""
        while self._running:
            self.timeline.step(math.inf)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for this much virtual time."""
        until = self.timeline.now + seconds
        if not self.timeline.skip(until):
            self.pause(until)
            self.wait()

    def pause(self, until: float = math.inf) -> Callable[[], None]:
        """Prepare a pause of the calling thread, which ``wait`` begins; it ends at ``until``, or
        when the returned function is called."""
        waiting = [getcurrent()]

        def end() -> None:
            if waiting:
                waiting.pop().switch()

        if until < math.inf:
            self.timeline.at(until, end)
        return end

    def wait(self) -> None:
        """Run other threads until the calling thread's pause ends."""
        self._main.switch()


class ThreadInbox(Inbox):
    """The inbox of one virtual thread."""

    def __init__(self, threads: VirtualThreads) -> None:
        super().__init__()
        self._threads = threads
        self._end_pause: Callable[[], None] = lambda: None

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        self._threads.timeline.after(0.0, self._end_pause)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        if block and self.empty():
            until = math.inf if timeout is None else self._threads.timeline.now + timeout
            self._end_pause = self._threads.pause(until)
            self._threads.wait()
        return self.get_nowait()


def run_fleet(
    cost_profile: CostProfile,
    robots: int,
    preset: Preset,
    load: FleetLoad,
    limits: WorkerLimits | None = None,
) -> list[RobotActivity]:
    """Let robots decode under one preset, until each has finished the answer that it was decoding
    at the end of the time."""
    limits = limits or WorkerLimits()
    limits = replace(limits, sessions=max(limits.sessions, 2 * robots))
    models = ScriptedModels(cost_profile, preset.drafter == "cloud", limits)
    links = (
        ProfileImpairments(load.link(cost_profile, number), load.seed * 1_009 + number)
        for number in range(robots)
    )
    harness = VirtualHarness(models, *links)
    timeline, threads = harness.timeline, VirtualThreads(harness.timeline)

    def decode(number: int, activity: RobotActivity) -> None:
        random = load.random(number)
        robot = ScriptedRobot(
            models,
            harness.links[number].connect,
            timeline.clock,
            threads.sleep,
            make_inbox=partial(ThreadInbox, threads),
        )
        threads.sleep(random.random() * 0.2)  # not all at once
        while timeline.now < load.seconds:
            decoded = robot.decode(preset, load.tokens, load.answer_seed(number, activity.answers))
            activity.add(decoded.outcome, decoded.own)
            if load.think_s:
                threads.sleep(load.pause(random))

    activities = [RobotActivity() for _ in range(robots)]
    for number, activity in enumerate(activities):
        threads.start(partial(decode, number, activity))
    threads.run()
    return activities
