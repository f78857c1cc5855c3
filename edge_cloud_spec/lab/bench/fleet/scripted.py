"""Scripted robots at a published server's costs, in virtual time: a row a server and fleet.

Also ``bench fleet --simulate N``: a simulated fleet, checked against the measured robots. A
simulated robot's round takes what a measured one's took to draft and gave as many tokens; it waits
for the real scheduler (cloud/model_thread/scheduler.py), which forms the passes. Robots are placed
on replicas at random, and stay there.
"""

from __future__ import annotations

import argparse
import os
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
from ....presets import load_preset
from ...harness.fleet.load import FleetLoad, RobotActivity, RoundTime
from ...harness.fleet.virtual_fleet import ServerOnly, VirtualFleet
from ...harness.regimes import ServerRegime, load_server_regime
from ...harness.virtual_time import Timeline
from ..command import Row
from ..memory import memory_mb
from .figures import figures, mean_of

WARM_UP = 0.1  # share of the time that is not counted
LIMITS = {"batched": WorkerLimits(), "one_at_a_time": WorkerLimits(batch=1)}


def scripted_rows(args: argparse.Namespace) -> list[Row]:
    """Means over the seeds. ``throughput_ratio`` and ``token_ratio``: over the server alone with
    half as many robots, which is SpecEdge's comparison (5: two robots for each place of the batch);
    ``throughput_ratio_same``: with as many.
    """
    server = server_of(args)
    preset = with_published_tree(args.preset, server)
    alone = load_server_regime(args.regime)  # the baseline has no exits
    baselines: dict[int, Row] = {}

    def baseline(robots: int) -> Row:
        if robots not in baselines:
            baselines[robots] = _mean(args, "server_only", robots, alone, preset)
        return baselines[robots]

    rows = []
    for robots in args.robots:
        for name in args.server:
            row = baseline(robots) if name == "server_only" else None
            row = dict(row or _mean(args, name, robots, server, preset))
            half, same = baseline(max(1, robots // 2)), baseline(robots)
            row["throughput_ratio"] = row["tokens_per_s"] / half["tokens_per_s"]
            row["token_ratio"] = row["token_ms_mean"] / half["token_ms_mean"]
            row["throughput_ratio_same"] = row["tokens_per_s"] / same["tokens_per_s"]
            rows.append(row)
    return rows


def server_of(args: argparse.Namespace) -> ServerRegime:
    """The regime of the options; exits make its passes as much longer as ``--exit-cost`` says."""
    server = load_server_regime(args.regime)
    regime = server.regime
    if args.alpha is not None:
        regime = replace(regime, alpha=args.alpha)
    if args.exit_hit:
        longer = args.exit_cost * regime.verify_ms
        regime = replace(regime, exit_hit=args.exit_hit, verify_ms=longer)
    return replace(server, regime=regime)


def with_published_tree(name: str, server: ServerRegime) -> Preset:
    """The preset of this name, with best-first trees of the published size."""
    preset = load_preset(name)
    if preset.best_first is None:
        return preset
    depth = max(preset.best_first.depth, server.server_only_depth)
    tree = replace(preset.best_first, nodes=server.nodes, width=server.width, depth=depth)
    return replace(preset, best_first=tree)


def _mean(
    args: argparse.Namespace, name: str, robots: int, server: ServerRegime, preset: Preset
) -> Row:
    rows = [
        _run(args, name, robots, server, preset, seed)
        for seed in range(args.seed, args.seed + args.seeds)
    ]
    row = {
        "harness": "scripted",
        "server": name,
        "replicas": 1,
        "passes": "free",
        "robots": robots,
        "hostile": 0.0,
        "preset": "tree" if name == "server_only" else preset.name,
        **mean_of(rows),
        "seeds": args.seeds,
        "alpha": server.server_only_alpha if name == "server_only" else server.regime.alpha,
        "exit_hit": server.regime.exit_hit,
    }
    row["passed"] = row["equal"]
    between = row["token_ms_mean"]
    print(
        f"{name}, {robots} robots: {row['tokens_per_s']:.1f} tokens/s, {between:.1f} ms a token",
        file=sys.stderr,
    )
    return row


def _run(
    args: argparse.Namespace,
    name: str,
    robots: int,
    server: ServerRegime,
    preset: Preset,
    seed: int,
) -> Row:
    load = FleetLoad(args.tokens, args.think, args.seconds, args.jitter, seed)
    run: Callable[[], Sequence[RobotActivity]]
    if name == "server_only":
        run = ServerOnly(server, robots, load).run
    else:
        run = VirtualFleet(server.regime, robots, preset, load, LIMITS[name]).run
    row = figures(run(), WARM_UP * args.seconds, args.seconds)
    return row | {"memory_mb": memory_mb(os.getpid())}


EMPTY = Draft(())


@dataclass(frozen=True)
class FleetModel:
    """Measured rounds to draw from, and what passes and links cost.

    ``pass_s``: time of a pass over sessions that drafted so many tokens each. ``one_way_s``: a
    robot's.
    """

    rounds: Sequence[RoundTime]
    pass_s: Callable[[Sequence[int]], float]
    one_way_s: Callable[[int], float]


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
        self._timeline = timeline = Timeline()
        self._replicas = [
            _Replica(timeline, model, limits or WorkerLimits()) for _ in range(replicas)
        ]
        places = [number % replicas for number in range(robots)]
        self._random.shuffle(places)
        self.robots = [
            _Robot(timeline, model, load, number, self._replicas[place])
            for number, place in enumerate(places)
        ]

    @property
    def busy(self) -> float:
        """Share of the replicas' time that passes took."""
        busy_s = sum(replica.busy_s for replica in self._replicas)
        return busy_s / len(self._replicas) / self._timeline.now

    def run(self) -> list[RobotActivity]:
        """Run until the time is over; answers under way then are not counted."""
        for robot in self.robots:
            # As if it had run for long: robots are anywhere in their pauses.
            first = self._load.pause(self._random) or 0.2
            self._timeline.at(self._random.uniform(0.0, first), robot.begin)
        self._timeline.sleep(self._load.seconds)
        return [robot.activity for robot in self.robots]


class _Robot:
    """Thinks, then asks for rounds until it has its tokens."""

    def __init__(
        self,
        timeline: Timeline,
        model: FleetModel,
        load: FleetLoad,
        number: int,
        replica: _Replica,
    ) -> None:
        self._timeline, self._model, self._load = timeline, model, load
        self._random = load.random(number)
        self._one_way_s = model.one_way_s(number)
        self._replica = replica
        self.activity = RobotActivity()

    def begin(self) -> None:
        """A new answer."""
        self._left = self._load.tokens
        self._rounds: list[RoundTime] = []
        self._round()

    def _round(self) -> None:
        self._start = now = self._timeline.now
        self._drawn = drawn = self._random.choice(self._model.rounds)
        arrives = now + drawn.draft_s + self._one_way_s
        self._timeline.at(arrives, lambda: self._replica.receive(self, drawn.drafted))

    def verdict(self) -> None:
        """The pass over its draft has ended."""
        self._timeline.after(self._one_way_s, self._settle)

    def _settle(self) -> None:
        now, tokens = self._timeline.now, min(self._left, self._drawn.tokens)
        self._rounds.append(RoundTime(now, now - self._start, tokens, not self._rounds))
        self.activity.rounds.append(self._rounds[-1])
        self._left -= tokens
        if self._left:
            self._round()
            return
        self.activity.finish(self._rounds)
        self._timeline.after(self._load.pause(self._random), self.begin)


class _Replica:
    """One verifier: while drafts wait, pass after pass, as its scheduler picks."""

    def __init__(self, timeline: Timeline, model: FleetModel, limits: WorkerLimits) -> None:
        self._timeline, self._model = timeline, model
        self._scheduler = Scheduler(limits)
        self._running = False
        self.busy_s = 0.0

    def receive(self, robot: _Robot, drafted: int) -> None:
        """A draft has arrived."""
        asked: Any = robot  # all that the scheduler does with a session is to hand it back
        due = DuePass(asked, EMPTY, drafted + 1, self._timeline.now)
        self._scheduler.of(id(robot)).passes.append(due)
        if not self._running:
            self._run()

    def _run(self) -> None:
        now = self._timeline.now
        batch = self._scheduler.next_batch(now)
        self._running = bool(batch)
        if not batch:
            return
        seconds = self._model.pass_s([due.rows - 1 for due in batch])
        self.busy_s += seconds
        self._scheduler.estimator.observe(sum(due.rows for due in batch), seconds)
        self._timeline.at(now + seconds, lambda: self._end(batch))

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
    most_ms = args.round_ms or 2.5 * _simulated(args, model, 10, 10, 0.0)["round_ms_p50"]
    fewest = _fewest(args, model, most_ms)
    return [*rows, *(_row(args, model, server, n, most_ms) for n in (fewest, 2 * fewest))]


def checked_model(
    args: argparse.Namespace, server: ServerRegime, preset: Preset
) -> tuple[FleetModel, list[Row]]:
    """The model from a single robot's rounds, and its errors beside ``--robots`` of them."""
    load = FleetLoad(args.tokens, args.think, args.seconds, args.jitter, args.seed)
    regime, limits = server.regime, LIMITS["batched"]
    longer = replace(load, seconds=2 * args.seconds)
    (alone,) = VirtualFleet(regime, 1, preset, longer, limits).run()
    model = FleetModel(
        [one for one in alone.rounds if not one.first],
        lambda drafted: regime.batch_pass_ms(drafted) / 1e3,
        lambda robot: load.link(regime, robot).delay_ms / 1e3,
    )
    rows = []
    for robots in args.robots:
        real, mine = (
            figures(fleet.run(), WARM_UP * load.seconds, load.seconds)
            for fleet in (
                VirtualFleet(regime, robots, preset, load, limits),
                FleetSimulation(model, robots, 1, load, limits),
            )
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


def _simulated(
    args: argparse.Namespace, model: FleetModel, robots: int, replicas: int, skipped: float = 0.2
) -> Row:
    """The figures of a fleet after this share of its time."""
    load = FleetLoad(args.answer, args.pause, args.simulated_seconds, 0.0, args.seed)
    simulation = FleetSimulation(model, robots, replicas, load)
    row = figures(simulation.run(), skipped * load.seconds, load.seconds)
    return row | {"busy": simulation.busy}


def _fewest(args: argparse.Namespace, model: FleetModel, most_ms: float) -> int:
    """Replicas for a hundredth of the robots, found by bisection, times a hundred."""
    share = max(1, args.simulate // 100)

    def fits(replicas: int) -> bool:
        p99 = _simulated(args, model, share, replicas)["round_ms_p99"]
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
    row = _simulated(args, model, args.simulate, replicas)
    print(
        f"{args.simulate} robots, {replicas} replicas: {row['round_ms_p99']:.0f} ms p99",
        file=sys.stderr,
    )
    dollars = replicas * server.server_dollars
    return (
        {"harness": "simulated", "server": "batched", "replicas": replicas, "passes": "free"}
        | {"robots": args.simulate, "hostile": 0.0, "memory_mb": None}
        | {k: v for k, v in row.items() if k not in ("wrong", "lost", "equal")}
        | {"dollars_per_hour": dollars, "round_ms_most": most_ms}
        | {"dollars_per_million_tokens": dollars / 3.6e-3 / row["tokens_per_s"]}
        | {"edge_dollars_per_hour": args.simulate * server.edge_dollars, "equal": None}
    )
