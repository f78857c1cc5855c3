"""``bench fleet --simulate N``: a simulated fleet, checked against the measured robots.

A simulated robot's round takes what a measured one's took to draft and gave as many tokens; it
waits for the real scheduler (cloud/model_thread/scheduler.py), which forms the passes. Robots are
placed on replicas at random, and stay there.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ....cloud.model_thread.scheduler import Scheduler
from ....cloud.model_thread.sessions import DuePass, WorkerLimits
from ....decoding.draft import Draft
from ....decoding.preset import Preset
from ....errors import UserError
from ...harness.fleet.load import FleetLoad, RobotActivity, RoundTime
from ...harness.regimes import ServerRegime
from ..command import Row
from .figures import figures
from .scripted import LIMITS, WARM_UP, server_of, with_published_tree

EMPTY = Draft(())


@dataclass(frozen=True)
class FleetModel:
    """Measured rounds to draw from, and what passes and links cost.

    ``pass_s``: of a pass over sessions that drafted so many tokens each. ``one_way_s``: of a robot.
    ``round_s``: of a round beside drafting, links, queue and pass; ``prefill_s`` of an answer.
    """

    rounds: Sequence[RoundTime]
    pass_s: Callable[[Sequence[int]], float]
    one_way_s: Callable[[int], float]
    round_s: float = 0.0
    prefill_s: float = 0.0


class FleetSimulation:
    """Robots and replicas; ``run`` returns what each robot got."""

    def __init__(
        self,
        model: FleetModel,
        robots: int,
        replicas: int,
        load: FleetLoad,
        limits: WorkerLimits | None = None,
    ) -> None:
        self._model, self._load = model, load
        self._random = Random(f"{load.seed} simulation")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.now = 0.0
        self._replicas = [_Replica(self, model, limits or WorkerLimits()) for _ in range(replicas)]
        places = [number % replicas for number in range(robots)]
        self._random.shuffle(places)
        self.robots = [
            _Robot(self, model, load, number, self._replicas[place])
            for number, place in enumerate(places)
        ]

    @property
    def busy(self) -> float:
        """Share of the replicas' time that passes took."""
        return sum(replica.busy_s for replica in self._replicas) / len(self._replicas) / self.now

    def at(self, time: float, job: Callable[[], None]) -> None:
        """Do this job at this time, s."""
        heapq.heappush(self._events, (time, next(self._order), job))

    def run(self) -> list[RobotActivity]:
        """Until the time is over; answers that are under way then do not end."""
        for robot in self.robots:
            # As if it had run for long: robots are anywhere in their pauses.
            first = self._random.expovariate(1 / self._load.think_s) if self._load.think_s else 0.2
            self.at(self._random.uniform(0.0, first), robot.begin)
        while self._events and self._events[0][0] < self._load.seconds:
            self.now, _, job = heapq.heappop(self._events)
            job()
        self.now = self._load.seconds
        return [robot.activity for robot in self.robots]


class _Robot:
    """Thinks, then asks for rounds until it has its tokens."""

    def __init__(
        self,
        simulation: FleetSimulation,
        model: FleetModel,
        load: FleetLoad,
        number: int,
        replica: _Replica,
    ) -> None:
        self._simulation, self._model, self._load = simulation, model, load
        self._random = load.random(number)
        self._one_way_s = model.one_way_s(number)
        self._replica = replica
        self.activity = RobotActivity()

    def begin(self) -> None:
        """A new answer."""
        self._left = self._load.tokens
        self._answer: list[tuple[float, int]] = []  # when verdicts came, and their tokens
        self._round(self._model.prefill_s)

    def _round(self, extra_s: float = 0.0) -> None:
        self._start = now = self._simulation.now
        self._drawn = drawn = self._random.choice(self._model.rounds)
        sent = now + drawn.draft_s + extra_s + self._model.round_s + self._one_way_s
        self._simulation.at(sent, lambda: self._replica.receive(self, drawn.drafted))

    def verdict(self) -> None:
        """The pass over its draft has ended."""
        self._simulation.at(self._simulation.now + self._one_way_s, self._settle)

    def _settle(self) -> None:
        now, tokens = self._simulation.now, min(self._left, self._drawn.tokens)
        first = not self._answer
        self.activity.rounds.append(RoundTime(now, now - self._start, tokens, first))
        self._answer.append((now, tokens))
        self._left -= tokens
        if self._left:
            self._round()
            return
        self.activity.answers += 1
        later = self._load.tokens - self._answer[0][1]
        if later:
            self.activity.spans.append((now - self._answer[0][0], later))
        think = self._random.expovariate(1 / self._load.think_s) if self._load.think_s else 0.0
        self._simulation.at(now + think, self.begin)


class _Replica:
    """One verifier: while drafts wait, pass after pass, as its scheduler picks."""

    def __init__(
        self, simulation: FleetSimulation, model: FleetModel, limits: WorkerLimits
    ) -> None:
        self._simulation, self._model = simulation, model
        self._scheduler = Scheduler(limits)
        self._running = False
        self.busy_s = 0.0

    def receive(self, robot: _Robot, drafted: int) -> None:
        """A draft has arrived."""
        asked: Any = robot  # all that the scheduler does with a session is to hand it back
        due = DuePass(asked, EMPTY, drafted + 1, self._simulation.now)
        self._scheduler.of(id(robot)).passes.append(due)
        if not self._running:
            self._run()

    def _run(self) -> None:
        now = self._simulation.now
        batch = self._scheduler.next_batch(now)
        self._running = bool(batch)
        if not batch:
            return
        seconds = self._model.pass_s([due.rows - 1 for due in batch])
        self.busy_s += seconds
        self._scheduler.estimator.observe(sum(due.rows for due in batch), seconds)
        self._simulation.at(now + seconds, lambda: self._end(batch))

    def _end(self, batch: Sequence[DuePass]) -> None:
        for due in batch:
            robot: Any = due.session
            robot.verdict()
        self._run()


CHECKED = ("tokens_per_s", "round_ms_p50", "round_ms_p99")
TARGET_SHARE = 1.05  # how near to the fewest replicas the search goes


def simulated_rows(args: argparse.Namespace) -> list[Row]:
    """A row for each measured fleet with the simulation's errors, then the large fleet's rows:
    the fewest replicas that keep the rounds' p99, and twice as many."""
    server = server_of(args)
    preset = with_published_tree(args.preset, server)
    if preset.speculation.push:
        raise UserError("a simulated round has no pushed drafts; give a --preset without push")
    model, rows = checked_model(args, server, preset)
    most_ms = args.round_ms or 2.5 * _alone_ms(args, model)
    fewest = _fewest(args, model, most_ms)
    return [*rows, *(_row(args, model, server, n, most_ms) for n in (fewest, 2 * fewest))]


def checked_model(
    args: argparse.Namespace, server: ServerRegime, preset: Preset
) -> tuple[FleetModel, list[Row]]:
    """The model from a single robot's rounds, and its errors beside ``--robots`` of them."""
    load = FleetLoad(args.tokens, args.think, args.seconds, args.jitter, args.seed)
    alone = _measured(server, preset, 1, replace(load, seconds=2 * args.seconds))
    regime = server.regime
    model = FleetModel(
        [one for one in alone[0].rounds if not one.first],
        lambda drafted: regime.batch_pass_ms(drafted) / 1e3,
        lambda robot: load.link(regime, robot).delay_ms / 1e3,
    )
    rows = []
    for robots in args.robots:
        real = figures(
            _measured(server, preset, robots, load), WARM_UP * load.seconds, load.seconds
        )
        mine = figures(
            FleetSimulation(model, robots, 1, load, LIMITS["batched"]).run(),
            WARM_UP * load.seconds,
            load.seconds,
        )
        errors = {f"error_{name}": mine[name] / real[name] - 1 for name in CHECKED}
        rows.append(
            {"harness": "simulated", "server": "batched", "replicas": 1, "passes": "free"}
            | {"robots": robots, "hostile": 0.0, "memory_mb": None}
            | {name: mine[name] for name in (*CHECKED, "token_ms_p50", "token_ms_mean", "fairness")}
            | errors
            | {"equal": real["equal"], "passed": real["equal"]}
        )
        worst = max(abs(error) for error in errors.values())
        print(f"{robots} robots: simulated within {worst:.1%}", file=sys.stderr)
    return model, rows


def _measured(
    server: ServerRegime, preset: Preset, robots: int, load: FleetLoad
) -> Sequence[RobotActivity]:
    from ...harness.fleet.virtual_fleet import VirtualFleet

    return VirtualFleet(server.regime, robots, preset, load, LIMITS["batched"]).run()


def _fleet_load(args: argparse.Namespace) -> FleetLoad:
    return FleetLoad(args.answer, args.pause, args.simulated_seconds, 0.0, args.seed)


def _alone_ms(args: argparse.Namespace, model: FleetModel) -> float:
    load = _fleet_load(args)
    row = figures(FleetSimulation(model, 10, 10, load).run(), 0.0, load.seconds)
    return float(row["round_ms_p50"])


def _fewest(args: argparse.Namespace, model: FleetModel, most_ms: float) -> int:
    """Replicas for a hundredth of the robots, found by bisection, times a hundred."""
    share = max(1, args.simulate // 100)
    load = _fleet_load(args)

    def fits(replicas: int) -> bool:
        activities = FleetSimulation(model, share, replicas, load).run()
        p99 = figures(activities, 0.2 * load.seconds, load.seconds)["round_ms_p99"]
        return p99 is not None and p99 <= most_ms

    most = 1
    while not fits(most) and most < share:
        most *= 2
    least = most // 2
    while most - least > max(1, int(least * (TARGET_SHARE - 1))):
        middle = (most + least) // 2
        least, most = (least, middle) if fits(middle) else (middle, most)
    return int(max(1, round(most * args.simulate / share)))


def _row(
    args: argparse.Namespace,
    model: FleetModel,
    server: ServerRegime,
    replicas: int,
    most_ms: float,
) -> Row:
    load = _fleet_load(args)
    simulation = FleetSimulation(model, args.simulate, replicas, load)
    row = figures(simulation.run(), 0.2 * load.seconds, load.seconds)
    print(
        f"{args.simulate} robots, {replicas} replicas: {row['round_ms_p99']:.0f} ms p99",
        file=sys.stderr,
    )
    dollars = replicas * server.server_dollars
    return (
        {"harness": "simulated", "server": "batched", "replicas": replicas, "passes": "free"}
        | {"robots": args.simulate, "hostile": 0.0, "memory_mb": None}
        | {k: v for k, v in row.items() if k not in ("wrong", "lost", "equal")}
        | {"busy": simulation.busy, "dollars_per_hour": dollars, "round_ms_most": most_ms}
        | {"dollars_per_million_tokens": dollars / 3.6e-3 / row["tokens_per_s"]}
        | {"edge_dollars_per_hour": args.simulate * server.edge_dollars, "equal": None}
    )
