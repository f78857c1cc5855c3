"""``bench failover``: kills (-9) and drains replicas of a Ray fleet while robots decode.

Real clients decode without a pause, greedily, with replayed drafts. The time of an event is from
the signal to the first token at another replica, for the robot that waits longest. Needs the extra
``fleet``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from edge_cloud_spec.cloud.fleet.ray_fleet import Fleet
from edge_cloud_spec.cloud.fleet.registry import ScalingLimits
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.events import Emit, LinkUp
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import DecodeRunner
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.loop_thread import LoopThread
from edge_cloud_spec.presets import load_preset

from .command import Options, Row
from .fleet.embedded import RecordedAnswers, embedded_worker, record_robots
from .requests import sample_requests


@dataclass
class RobotLog:
    """The history of one robot's decodes; times by the robot's clock, s."""

    begun: list[float] = field(default_factory=list)
    emitted: list[float] = field(default_factory=list)
    connected: list[float] = field(default_factory=list)  # again, there or elsewhere
    wrong: list[str] = field(default_factory=list)
    decodes: int = 0

    def is_past(self, event: float) -> bool:
        """Whether a whole decode began and ended after this event, so that its replica is alive."""
        return sum(begun > event for begun in self.begun[-3:]) >= 2

    def waited(self, event: float) -> float:
        """Seconds from an event to the robot's first token after it; call once ``is_past`` is true.

        Only tokens on the last link count: earlier ones were on their way when the replica died.
        """
        since = max([event, *self.connected])
        return next(at for at in self.emitted if at > since) - event


class BusyRobot(threading.Thread):
    """Decodes one recorded request repeatedly; each answer must equal the target's."""

    def __init__(self, address: str, answers: RecordedAnswers) -> None:
        super().__init__(daemon=True)
        self.log, self.over = RobotLog(), threading.Event()
        self._request, self._answer = answers.next(0)
        drafts: Any = answers.draft_model  # a fake model
        self._runner = DecodeRunner(drafts, answers.spec)
        self.link = VerifierClient(ClientSettings(address))

    def run(self) -> None:
        log, chosen = self.log, DecodeSettings(load_preset("dsd"), reply_timeout=60.0)
        while not self.over.is_set():
            emitted: list[int] = []

            def on_emit(emit: Emit, emitted: list[int] = emitted) -> None:
                if emit.position != len(emitted):
                    log.wrong.append("a token twice, or left out")
                emitted.extend(emit.tokens)
                log.emitted.append(time.perf_counter())

            log.begun.append(time.perf_counter())
            done = self._runner.run(self._request, chosen, log.decodes, self._connect, on_emit)
            log.decodes += 1
            if not done.completed or tuple(emitted) != self._answer:
                log.wrong.append(done.text or done.reason or "another answer")
        self.link.close()

    def _connect(self, on_receive: Callable[[Any], None]) -> Any:
        def note(item: Any) -> None:
            if isinstance(item, LinkUp):
                self.log.connected.append(time.perf_counter())
            on_receive(item)

        return self.link.connect(note)


KILL, DRAIN = "kill -9", "drain"
MOST_S = 1.0  # in which robots decode again
FLEET_WHOLE_TIMEOUT_S = 120.0  # in which a fleet is whole again

OPTIONS: Options = {
    "--kills": {"type": int, "default": 30, "help": "of replicas (%(default)s)"},
    "--drains": {"type": int, "default": 2, "help": "of replicas (%(default)s)"},
    "--robots": {"type": int, "default": 8, "help": "that decode (%(default)s)"},
    "--replicas": {"type": int, "default": 2, "help": "(%(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row for the kills, and one for the drains."""
    if min(args.kills, args.robots, args.drains) < 1 or args.replicas < 2:
        raise UserError("--kills, --drains and --robots must be at least 1, --replicas 2")
    recorded = record_robots(sample_requests(args.seed, args.robots, "rays"))
    recorded = replace(recorded, pass_s=0.0)  # robots of this machine would wait for its cores
    with _fleet(args.replicas) as (fleet, address, loop):
        robots = [BusyRobot(address, RecordedAnswers(recorded, n)) for n in range(args.robots)]
        for robot in robots:
            robot.start()
        try:
            events = Events(fleet, robots, args.replicas, loop)
            return [disturb(events, KILL, args.kills), disturb(events, DRAIN, args.drains)]
        finally:
            for robot in robots:
                robot.over.set()
            for robot in robots:
                robot.join(FLEET_WHOLE_TIMEOUT_S)


def disturb(events: Events, what: str, count: int) -> Row:
    """Kill or drain ``count`` replicas; the time of each event is that of the robot that waits
    longest."""
    decodes, wrong = events.counts()
    waits: list[float] = []
    for _ in range(count):
        waits.append(max(events.disturb(drain=what == DRAIN)))
        print(f"{what} {len(waits)}/{count}: {waits[-1]:.2f} s", flush=True)
    after, still_wrong = events.counts()
    why = still_wrong[len(wrong) :]
    return {
        "what": what,
        "events": len(waits),
        "decodes": after - decodes,
        "equal": after - decodes - len(why),
        "worst_s": max(waits),
        "p50_s": statistics.median(waits),
        "passed": not why and max(waits) <= MOST_S,
    }


class Events:
    """Kills and drains replicas, each when the fleet is complete and all robots decode."""

    def __init__(
        self,
        fleet: Fleet,
        robots: list[BusyRobot],
        replicas: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """fleet: makes a fleet with this many replicas on the loop."""
        self._fleet, self._robots, self._replicas, self._loop = fleet, robots, replicas, loop
        self._killed: set[int] = set()  # processes

    def counts(self) -> tuple[int, list[str]]:
        """The number of finished decodes, and what was wrong with them."""
        logs = [robot.log for robot in self._robots]
        return sum(log.decodes for log in logs), [text for log in logs for text in log.wrong]

    def disturb(self, *, drain: bool) -> list[float]:
        """Kill or drain the replica with the most robots; returns how long each robot waited, s."""
        _until(self._is_whole, "the fleet is not whole again")
        for robot in self._robots:
            robot.link.forget_replica()  # or all stay where the last event has sent them
        spread = time.perf_counter()
        _until(partial(self._are_past, spread), "a robot does not decode")
        loads = self._fleet.registry.loads
        name = max(loads, key=lambda one: loads[one].sessions)
        event = time.perf_counter()
        if drain:
            self._loop.call_soon_threadsafe(self._fleet.controller.drain, name)
        else:
            pid = self._fleet.controller.pids[name]
            self._killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        _until(partial(self._are_past, event), "a robot is stuck")
        return [robot.log.waited(event) for robot in self._robots]

    def _is_whole(self) -> bool:
        """Whether all replicas serve; a killed one counts again only once it is back."""
        registry, pids = self._fleet.registry.loads, self._fleet.controller.pids
        alive = [name for name in registry if pids.get(name) not in {None, *self._killed}]
        return len(alive) == self._replicas

    def _are_past(self, event: float) -> bool:
        return all(robot.log.is_past(event) for robot in self._robots)


@contextmanager
def _fleet(replicas: int) -> Iterator[tuple[Fleet, str, asyncio.AbstractEventLoop]]:
    """A context with a fleet of embedded models, its address, and its loop."""
    make_worker = partial(embedded_worker, WorkerLimits())
    settings = ServerSettings("127.0.0.1:0", grace_s=0.1)
    with closing(LoopThread("fleet")) as thread:
        fleet = Fleet(make_worker, settings, ScalingLimits(replicas, replicas))
        try:
            yield fleet, thread.run(fleet.start(replicas)), thread.loop
        finally:
            thread.run(fleet.stop())


def _until(true: Callable[[], bool], text: str) -> None:
    end = time.perf_counter() + FLEET_WHOLE_TIMEOUT_S
    while not true():
        if time.perf_counter() > end:
            raise UserError(f"{text} after {FLEET_WHOLE_TIMEOUT_S:g} s")
        time.sleep(0.005)
