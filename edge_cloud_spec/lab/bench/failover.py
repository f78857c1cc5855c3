"""``bench failover``: replicas of a fleet on Ray are killed (-9) and drained under robots.

Real clients decode without a pause, greedy, with replayed drafts. An event counts from the signal
to the first token at another replica of the robot that waits longest. Needs the extra ``fleet``.
With ``--json`` what was measured is written after each event; ``--resume`` goes on from there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...cloud.command import add_serve_arguments, make_worker
from ...cloud.fleet.ray_fleet import Fleet
from ...cloud.fleet.roster import ScalingLimits
from ...cloud.serving.server import ServerSettings
from ...edge.client import ClientSettings, VerifierClient
from ...edge.events import Emit, LinkLost, LinkUp
from ...edge.runner import DecodeRunner, DecodeSettings
from ...errors import UserError
from ...models import EMBEDDED
from ...models.load import load
from ...models.prompt import PromptSpec, Request
from ...models.vlm import Vlm
from ...presets import load_preset
from ...share import rules_text
from ..harness.scripted.model import FakeVlm
from .command import Options, write
from .requests import sample_requests

State = tuple[int, ...]  # the tokens of the answer


class ReplayedDrafts(FakeVlm):
    """Makes the prompts of ``model``, and drafts ``answer``, each ``wrong_every``th token wrong."""

    def __init__(self, model: Vlm, answer: tuple[int, ...], wrong_every: int = 5) -> None:
        self._model, self._answer, self._wrong_every = model, answer, wrong_every
        self.identity, self.tokenizer_digest = model.identity, model.tokenizer_digest
        self._vocabulary = 0

    def crop(self, vocabulary: int) -> None:
        """As many tokens as the target has."""
        self._vocabulary = vocabulary

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """The model's own prompt, so that both sides have one digest."""
        return self._model.prompt(request, spec)

    def row(self, state: State) -> np.ndarray:
        """Float32 [V]: all on the next token of the answer, or on a wrong one."""
        place = len(state)
        token = self._answer[place] if place < len(self._answer) else 0
        wrong = place % self._wrong_every == self._wrong_every - 1
        row = np.zeros(self._vocabulary, np.float32)
        row[(token + wrong) % self._vocabulary] = 20.0
        return row


Clock = Callable[[], float]


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
        """What it saw, once it ``is_past`` it.

        Tokens that were on their way when its replica died say nothing: what counts is the first
        on the last link since then.
        """
        lost = next((at - event for at in self.lost if at > event), None)
        connected = [at for at in self.connected if at > event]
        since = connected[-1] if connected else event
        token = next(at for at in self.emitted if at > since)
        return Recovery(lost, connected[-1] - event if connected else None, token - event)


class BusyRobot(threading.Thread):
    """Decodes one request again and again, and compares each answer with the undisturbed one."""

    def __init__(
        self,
        address: str,
        request: Request,
        answer: tuple[int, ...],
        model: Any,
        clock: Clock = time.perf_counter,
    ) -> None:
        """model: makes the prompts; the drafts are of the answer."""
        super().__init__(daemon=True)
        self.log, self.over = RobotLog(), threading.Event()
        self._request, self._answer, self._model, self._clock = request, answer, model, clock
        self._link = VerifierClient(ClientSettings(address))

    def ask_front(self) -> None:
        """Let the next decode be where the front places it, and not where the last one was."""
        self._link.forget_replica()

    def run(self) -> None:
        drafts: Any = ReplayedDrafts(self._model, self._answer)
        runner = DecodeRunner(drafts, self._model.spec(rules_text(), 128))
        chosen = DecodeSettings(load_preset("dsd"), patience=60.0)
        while not self.over.is_set():
            said: list[int] = []

            def on_emit(emit: Emit, said: list[int] = said) -> None:
                if emit.position != len(said):
                    self.log.wrong.append("a token twice, or left out")
                said.extend(emit.tokens)
                self.log.emitted.append(self._clock())

            self.log.begun.append(self._clock())
            done = runner.run(self._request, chosen, self.log.decodes, self._connect, on_emit)
            self.log.decodes += 1
            if not done.completed or tuple(said) != self._answer:
                self.log.wrong.append(done.text or done.reason or "another answer")
        self._link.close()

    def _connect(self, on_receive: Callable[[Any], None]) -> Any:
        def note(item: Any) -> None:
            if isinstance(item, LinkLost):
                self.log.lost.append(self._clock())
            elif isinstance(item, LinkUp):
                self.log.connected.append(self._clock())
            on_receive(item)

        return self._link.connect(note)


Row = dict[str, Any]
COLUMNS = {
    "what": "what",
    "events": "events",
    "decodes": "decodes",
    "equal": "equal",
    "worst_s": "worst s",
    "p50_s": "p50 s",
    "lost_p50_s": "noticed, p50 s",
    "moved_p50_s": "connected, p50 s",
    "first_token_ms": "first token, ms more",
    "round_ms": "round, ms more",
    "passed": "passed",
}
KILL, DRAIN = "kill -9", "drain"
MOST_S = 1.0  # in which robots decode again
FRONT_MS = 1.0  # of a round, at most
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
    """A row for the kills, for the drains, and for what the front costs."""
    if min(args.kills, args.robots) < 1 or args.replicas < 2 or args.drains < 0:
        raise UserError("--kills and --robots must be at least 1, --replicas 2, --drains 0")
    rows = earlier_rows(args.json) if args.resume else {}
    with _fleet(args.replicas) as (fleet, address, loop):
        model = load(str(EMBEDDED / "drafter"), threads=1)
        requests = sample_requests(args.seed, args.robots, "rays")
        answers = [_undisturbed(address, request, model) for request in requests]
        front = _front_row(address, requests[0], model)
        robots = [
            BusyRobot(address, request, answer, model)
            for request, answer in zip(requests, answers, strict=True)
        ]
        for robot in robots:
            robot.start()
        events = Events(fleet, robots, args.replicas, loop)
        try:
            for what, count in ((KILL, args.kills), (DRAIN, args.drains)):
                while len(rows.get(what, {}).get("waits_s", ())) < count:
                    decodes, wrong = events.counts()
                    seen = events.disturb(drain=what == DRAIN)
                    after, still_wrong = events.counts()
                    found = [*still_wrong[len(wrong) :]]
                    rows[what] = with_event(rows.get(what), what, seen, after - decodes, found)
                    if args.json:
                        write(args.json, "failover", args.seed, [*rows.values(), front])
        finally:
            for robot in robots:
                robot.over.set()
            for robot in robots:
                robot.join(SETTLE_S)
    return [*rows.values(), front]


def earlier_rows(path: Path | None) -> dict[str, Row]:
    """The rows of kills and drains that an earlier run wrote; raises UserError."""
    if path is None:
        raise UserError("--resume needs --json, the file of the run to go on with")
    if not path.exists():
        return {}
    try:
        rows = json.loads(path.read_text())["rows"]
        return {row["what"]: row for row in rows if row["what"] in (KILL, DRAIN)}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not of this suite; --resume cannot go on with it") from None


def with_event(
    row: Row | None, what: str, seen: list[Recovery], decodes: int, wrong: list[str]
) -> Row:
    """The row of these events with one more, which the robots saw like this.

    decodes: that ended meanwhile; wrong: why some were not the undisturbed ones.
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
        """fleet: of so many replicas, on this loop."""
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
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    options = parser.parse_args(["--threads", "1"])
    settings = ServerSettings("127.0.0.1:0", grace_s=0.1)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(SETTLE_S)

    fleet = Fleet(partial(make_worker, options), settings, ScalingLimits(replicas, replicas))
    try:
        yield fleet, on_loop(fleet.start(replicas)), loop
    finally:
        on_loop(fleet.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _undisturbed(address: str, request: Request, model: Any) -> tuple[int, ...]:
    """The target's own answer, by the cloud alone."""
    link = VerifierClient(ClientSettings(address))
    runner = DecodeRunner(model, model.spec(rules_text(), 128))
    done = runner.run(request, DecodeSettings(load_preset("cloud_ar")), 0, link.connect)
    link.close()
    if not done.completed:
        raise UserError(f"the fleet does not decode: {done.text}")
    return done.tokens


def _front_row(address: str, request: Request, model: Any) -> Row:
    """A decode's way through the front, and a round, which does not cross it."""
    link = VerifierClient(ClientSettings(address))
    runner = DecodeRunner(model, model.spec(rules_text(), 128))
    opened: dict[bool, list[float]] = {True: [], False: []}
    rounds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(40):
        asks = number % 2 == 0
        if asks:
            link.forget_replica()
        begin = time.perf_counter()
        first: list[float] = []

        def on_emit(_: Emit, first: list[float] = first, begin: float = begin) -> None:
            first.append(time.perf_counter() - begin)

        chosen = DecodeSettings(load_preset("cloud_ar"))
        done = runner.run(request, chosen, 100 + number, link.connect, on_emit)
        opened[asks].append(first[0])
        rounds[asks] += [one.settled - one.sent for one in done.stats.rounds[1:]]
    link.close()
    first_ms = 1e3 * (statistics.median(opened[True]) - statistics.median(opened[False]))
    round_ms = 1e3 * (statistics.median(rounds[True]) - statistics.median(rounds[False]))
    return {
        "what": "front",
        "events": len(opened[True]),
        "first_token_ms": first_ms,
        "round_ms": round_ms,
        "passed": round_ms <= FRONT_MS,
    }


def _until(true: Callable[[], bool], text: str) -> None:
    end = time.perf_counter() + SETTLE_S
    while not true():
        if time.perf_counter() > end:
            raise UserError(f"{text} after {SETTLE_S:g} s")
        time.sleep(0.005)
