"""A discrete-event simulation of many robots and replicas, out of the rounds of a measured robot.

A simulated robot's round takes what a measured one's took to draft and gave as many tokens; it
waits for the real scheduler (cloud/model_thread/scheduler.py), which forms the passes. Robots are
placed on replicas at random, and stay there.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ....cloud.model_thread.scheduler import Scheduler
from ....cloud.model_thread.sessions import DuePass, WorkerLimits
from ....decoding.draft import Draft
from ...harness.fleet.activity import RobotActivity, RoundTime
from ...harness.fleet.load import FleetLoad

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
