"""``bench fleet --simulate N``: a simulated fleet, checked against the measured robots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from ....decoding.preset import Preset
from ....errors import UserError
from ...harness.fleet.activity import RobotActivity
from ...harness.fleet.load import FleetLoad
from ...harness.regimes import ServerRegime
from ..command import Row
from .figures import figures
from .scripted import LIMITS, WARM_UP, server_of, with_published_tree
from .simulation import FleetModel, FleetSimulation

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
