"""``bench failover``: replicas of a fleet on Ray are killed (-9) and drained under robots.

Real clients decode without a pause, greedy, with replayed drafts. An event counts from the signal
to the first token at another replica of the robot that waits longest. Needs the extra ``fleet``.
With ``--json`` what was measured is written after each event; ``--resume`` goes on from there.
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

from ...cloud.fleet.ray_fleet import Fleet
from ...cloud.fleet.roster import ScalingLimits
from ...cloud.model_thread.sessions import WorkerLimits
from ...cloud.serving.server import ServerSettings
from ...edge.client import ClientSettings, VerifierClient
from ...edge.events import Emit, LinkLost, LinkUp
from ...edge.runner import DecodeRunner, DecodeSettings
from ...errors import UserError
from ...presets import load_preset
from ..harness.loop_thread import LoopThread
from .command import Options, Row, earlier_rows, write
from .fleet.embedded import RecordedAnswers, embedded_worker, record_robots
from .requests import sample_requests


@dataclass(frozen=True)
class Recovery:
    """What one robot saw of an event, s after it: the loss of its link, another, a token there.

    ``lost_s`` and ``moved_s`` are None for a robot that kept its link; ``token_s`` is its next
    token then.
    """

    lost_s: float | None
    moved_s: float | None
    token_s: float


@dataclass
class RobotLog:
    """What became of one robot's decodes; times are of the robot's clock, s."""

    begun: list[float] = field(default_factory=list)
    emitted: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    connected: list[float] = field(default_factory=list)  # again, there or elsewhere
    wrong: list[str] = field(default_factory=list)
    decodes: int = 0

    def is_past(self, event: float) -> bool:
        """Whether a whole decode was begun and ended after it, so that its replica is alive."""
        return sum(begun > event for begun in self.begun[-3:]) >= 2

    def recovery(self, event: float) -> Recovery:
        """How this client recovered from an event that it ``is_past``.

        Only tokens on the last link count: others were on their way when the replica died.
        """
        lost = next((at - event for at in self.lost if at > event), None)
        connected = [at for at in self.connected if at > event]
        since = connected[-1] if connected else event
        token = next(at for at in self.emitted if at > since)
        return Recovery(lost, connected[-1] - event if connected else None, token - event)


class BusyRobot(threading.Thread):
    """Decodes one recorded request again and again; each answer must be the target's own."""

    def __init__(self, address: str, answers: RecordedAnswers) -> None:
        super().__init__(daemon=True)
        self.log, self.over = RobotLog(), threading.Event()
        self._request, self._answer = answers.next(0)
        drafts: Any = answers.draft_model  # a fake model
        self._runner = DecodeRunner(drafts, answers.spec)
        self._link = VerifierClient(ClientSettings(address))

    def ask_front(self) -> None:
        """Let the next decode be where the front places it, and not where the last one was."""
        self._link.forget_replica()

    def run(self) -> None:
        log, chosen = self.log, DecodeSettings(load_preset("dsd"), patience=60.0)
        while not self.over.is_set():
            said: list[int] = []

            def on_emit(emit: Emit, said: list[int] = said) -> None:
                if emit.position != len(said):
                    log.wrong.append("a token twice, or left out")
                said.extend(emit.tokens)
                log.emitted.append(time.perf_counter())

            log.begun.append(time.perf_counter())
            done = self._runner.run(self._request, chosen, log.decodes, self._connect, on_emit)
            log.decodes += 1
            if not done.completed or tuple(said) != self._answer:
                log.wrong.append(done.text or done.reason or "another answer")
        self._link.close()

    def _connect(self, on_receive: Callable[[Any], None]) -> Any:
        def note(item: Any) -> None:
            if isinstance(item, LinkLost):
                self.log.lost.append(time.perf_counter())
            elif isinstance(item, LinkUp):
                self.log.connected.append(time.perf_counter())
            on_receive(item)

        return self._link.connect(note)


COLUMNS = {
    "what": "what",
    "events": "events",
    "decodes": "decodes",
    "equal": "equal",
    "worst_s": "worst s",
    "p50_s": "p50 s",
    "lost_p50_s": "noticed, p50 s",
    "moved_p50_s": "connected, p50 s",
    "passed": "passed",
}
KILL, DRAIN = "kill -9", "drain"
MOST_S = 1.0  # in which robots decode again
SETTLE_S = 120.0  # in which a fleet is whole again


OPTIONS: Options = {
    "--kills": {"type": int, "default": 30, "help": "of replicas (%(default)s)"},
    "--drains": {"type": int, "default": 2, "help": "of replicas (%(default)s)"},
    "--robots": {"type": int, "default": 8, "help": "that decode (%(default)s)"},
    "--replicas": {"type": int, "default": 2, "help": "(%(default)s)"},
    "--resume": {
        "action": "store_true",
        "help": "go on after the events that the file of --json has",
    },
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row for the kills, and one for the drains."""
    if min(args.kills, args.robots) < 1 or args.replicas < 2 or args.drains < 0:
        raise UserError("--kills and --robots must be at least 1, --replicas 2, --drains 0")
    rows = earlier_rows(args.json, "what") if args.resume else {}
    recorded = record_robots(sample_requests(args.seed, args.robots, "rays"))
    recorded = replace(recorded, pass_s=0.0)  # robots of this machine would wait for its cores
    with _fleet(args.replicas) as (fleet, address, loop):
        robots = [BusyRobot(address, RecordedAnswers(recorded, n)) for n in range(args.robots)]
        for robot in robots:
            robot.start()
        try:
            return disturb_all(Events(fleet, robots, args.replicas, loop), args, rows)
        finally:
            for robot in robots:
                robot.over.set()
            for robot in robots:
                robot.join(SETTLE_S)


def disturb_all(events: Events, args: argparse.Namespace, rows: dict[str, Row]) -> list[Row]:
    """Kill and drain until ``rows`` have as many as asked for; each is written before the next."""
    for what, count in ((KILL, args.kills), (DRAIN, args.drains)):
        while len(rows.get(what, {}).get("waits_s", ())) < count:
            decodes, wrong = events.counts()
            seen = events.disturb(drain=what == DRAIN)
            after, still_wrong = events.counts()
            found = still_wrong[len(wrong) :]
            rows[what] = with_event(rows.get(what), what, seen, after - decodes, found)
            if args.json:
                write(args.json, "failover", args.seed, list(rows.values()))
    return list(rows.values())


def with_event(
    row: Row | None, what: str, seen: list[Recovery], decodes: int, wrong: list[str]
) -> Row:
    """The row of these events with one more, which the robots saw like this.

    decodes: how many ended meanwhile; wrong: why some differed from undisturbed ones.
    """
    row = row or {"waits_s": [], "lost_s": [], "moved_s": [], "decodes": 0, "equal": 0, "why": []}
    waits = [*row["waits_s"], max(one.token_s for one in seen)]
    lost = [*row["lost_s"], *(one.lost_s for one in seen if one.lost_s is not None)]
    moved = [*row["moved_s"], *(one.moved_s for one in seen if one.moved_s is not None)]
    why = [*row["why"], *wrong]
    decodes += row["decodes"]
    return {
        "what": what,
        "events": len(waits),
        "decodes": decodes,
        "equal": decodes - len(why),
        "worst_s": max(waits),
        "p50_s": statistics.median(waits),
        "lost_p50_s": statistics.median(lost) if lost else None,
        "moved_p50_s": statistics.median(moved) if moved else None,
        "waits_s": waits,
        "lost_s": lost,
        "moved_s": moved,
        "why": why,
        "passed": not why and max(waits) <= MOST_S,
    }


class Events:
    """Kills and drains replicas, each when the fleet is whole and all robots decode."""

    def __init__(
        self,
        fleet: Fleet,
        robots: list[BusyRobot],
        replicas: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """fleet: makes one of so many replicas, on this loop."""
        self._fleet, self._robots, self._replicas, self._loop = fleet, robots, replicas, loop
        self._killed: set[int] = set()  # processes

    def counts(self) -> tuple[int, list[str]]:
        """Decodes that ended, and what was wrong with some."""
        logs = [robot.log for robot in self._robots]
        return sum(log.decodes for log in logs), [text for log in logs for text in log.wrong]

    def disturb(self, *, drain: bool) -> list[Recovery]:
        """Kill or drain the replica with the most robots; what each robot saw of it."""
        _until(self._is_whole, "the fleet is not whole again")
        for robot in self._robots:
            robot.ask_front()  # or all of them stay where the last event has sent them
        spread = time.perf_counter()
        _until(partial(self._are_past, spread), "a robot does not decode")
        loads = self._fleet.roster.loads
        name = max(loads, key=lambda one: loads[one].sessions)
        event = time.perf_counter()
        if drain:
            self._loop.call_soon_threadsafe(self._fleet.controller.drain, name)
        else:
            pid = self._fleet.controller.pids[name]
            self._killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        _until(partial(self._are_past, event), "a robot is stuck")
        return [robot.log.recovery(event) for robot in self._robots]

    def _is_whole(self) -> bool:
        """Whether all replicas serve; one that was killed is not counted until it is back."""
        roster, pids = self._fleet.roster.loads, self._fleet.controller.pids
        alive = [name for name in roster if pids.get(name) not in {None, *self._killed}]
        return len(alive) == self._replicas

    def _are_past(self, event: float) -> bool:
        return all(robot.log.is_past(event) for robot in self._robots)


@contextmanager
def _fleet(replicas: int) -> Iterator[tuple[Fleet, str, asyncio.AbstractEventLoop]]:
    """A fleet of embedded models, its address, and the loop that it lives on."""
    make_worker = partial(embedded_worker, WorkerLimits())
    settings = ServerSettings("127.0.0.1:0", grace_s=0.1)
    with closing(LoopThread("fleet")) as thread:
        fleet = Fleet(make_worker, settings, ScalingLimits(replicas, replicas))
        try:
            yield fleet, thread.run(fleet.start(replicas)), thread.loop
        finally:
            thread.run(fleet.stop())


def _until(true: Callable[[], bool], text: str) -> None:
    end = time.perf_counter() + SETTLE_S
    while not true():
        if time.perf_counter() > end:
            raise UserError(f"{text} after {SETTLE_S:g} s")
        time.sleep(0.005)
