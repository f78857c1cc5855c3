"""A share of hostile clients beside real robots, over a real server whose passes are scripted.

Published costs in real time: passes sleep. A row a kind of attack: the well-behaved robots' rounds
over those that they have beside as many well-behaved ones, in the run before it; over some seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import partial
from statistics import median

from ....cloud.model_thread.sessions import WorkerLimits
from ....errors import UserError
from ....presets import load_preset
from ...harness.fleet.load import FleetLoad
from ...harness.fleet.robot_processes import RobotPlan, ScriptedAnswers, run_robots, sleeping_worker
from ...harness.hostile_clients import ATTACKS, clients_process, run_attack
from ...harness.regimes import load_server_regime
from ...harness.scripted.model import request_of
from ...harness.server import ServerHoldings, ServerProcess
from ..command import Row
from ..leaks import memory_mb, sampled
from .figures import figures, mean_of

KINDS = ("does_not_read", "byte_a_second", "vanishes", "reconnects", "large_trees")
PRESET = "dsd"  # real time on this machine's cores: chains, which cost little Python
WARM_UP = 0.1  # share of the time that is not counted
# Rows of the scripted vocabulary are short: of a robot that does not read this fills in seconds.
QUEUE_BYTES = 2**20
MAX_RATIO, MIN_FAIRNESS, MAX_MB = 1.2, 0.95, 200.0
BEHAVED = ""
HELD = tuple(field.name for field in fields(ServerHoldings))


def hostile_rows(args: argparse.Namespace) -> list[Row]:
    """A row a fleet size and kind of attack."""
    kinds = args.attacks.split(",") if args.attacks else list(KINDS)
    if unknown := set(kinds) - set(ATTACKS):
        raise UserError(f"--attacks are of {', '.join(ATTACKS)}, not {', '.join(unknown)}")
    rows = []
    for robots in args.robots:
        hostile = max(1, round(args.hostile * robots))
        if hostile >= robots:
            raise UserError(f"of {robots} robots at least one is well-behaved; lower --hostile")
        runs: dict[str, list[Row]] = {kind: [] for kind in kinds}
        for seed in range(args.seed, args.seed + args.seeds):
            for kind in kinds:
                behaved = _run(args, BEHAVED, robots, hostile, seed)
                runs[kind].append(compared(kind, behaved, _run(args, kind, robots, hostile, seed)))
        rows += [_row(args, kind, robots, found) for kind, found in runs.items()]
    return rows


def compared(kind: str, behaved: Row, row: Row) -> Row:
    """The figures of a run, with those of the run before it, beside well-behaved robots.

    UserError: no round ended in the time of either.
    """
    if None in (row["round_ms_p99"], behaved["round_ms_p99"]):
        raise UserError("no robot had two verdicts of an answer in time: give more --seconds")
    ratio = row["round_ms_p99"] / behaved["round_ms_p99"]
    print(
        f"{kind}: p99 {row['round_ms_p99']:.0f} ms, {ratio:.2f} of that beside robots; "
        f"fairness {row['fairness']:.3f}; {row['messages']} messages, "
        f"{row['grown_mb']:.0f} MB more",
        file=sys.stderr,
    )
    return row | {
        "p99_ratio": ratio,
        "p50_ratio": row["round_ms_p50"] / behaved["round_ms_p50"],
        "p99_behaved": behaved["round_ms_p99"],
        "fairness_behaved": behaved["fairness"],
    }


def _row(args: argparse.Namespace, kind: str, robots: int, runs: list[Row]) -> Row:
    """Medians of the ratios; the least fairness; the most that the server held."""
    ratio, fairness = median(r["p99_ratio"] for r in runs), min(r["fairness"] for r in runs)
    most = {name: max(r[name] for r in runs) for name in ("memory_mb", "grown_mb", *HELD)}
    row = mean_of(runs) | most
    bounded = row["grown_mb"] <= MAX_MB and max(
        row["received_bytes"], row["to_send_bytes"]
    ) <= QUEUE_BYTES * max(1, row["streams"])
    return {
        "harness": "scripted",
        "server": "batched",
        "replicas": 1,
        "passes": "free",
        "robots": robots,
        "hostile": args.hostile,
        "attack": kind,
        **row,
        "seeds": args.seeds,
        "p99_ratio": ratio,
        "p99_ratios": [r["p99_ratio"] for r in runs],
        "p50_ratio": median(r["p50_ratio"] for r in runs),
        "fairness": fairness,
        "passed": ratio <= MAX_RATIO and fairness >= MIN_FAIRNESS and bounded and row["equal"],
    }


def _run(args: argparse.Namespace, kind: str, robots: int, hostile: int, seed: int) -> Row:
    """The figures of the robots that are well-behaved in either run."""
    regime = load_server_regime(args.regime).regime
    load = FleetLoad(args.tokens, args.think, args.seconds, args.jitter, seed)
    limits = WorkerLimits(sessions=max(64, 4 * robots), queue_bytes=QUEUE_BYTES)
    plans = [
        RobotPlan(
            number,
            partial(ScriptedAnswers, regime, load, number),
            replace(load_preset(PRESET), draft_length=regime.gamma),
            load,
            load.link(regime, number),
            args.tokens,
        )
        for number in range(robots if kind == BEHAVED else robots - hostile)
    ]
    with ServerProcess(partial(sleeping_worker, regime, limits)) as server:
        before = memory_mb(server.pid)
        attackers: AbstractContextManager[Callable[[], int]] = nullcontext(lambda: 0)
        if kind != BEHAVED:
            attacked = kind, server.address, request_of(seed), hostile, seed
            attackers = clients_process(run_attack, *attacked)
        with (
            attackers as sent,
            sampled(server.holdings) as held_by,
            sampled(lambda: memory_mb(server.pid)) as mb,
        ):
            activities = run_robots(plans, server.address)
            messages = sent()
    kept = activities[: robots - hostile]
    row = figures(kept, WARM_UP * args.seconds, args.seconds)
    held = {name: max(getattr(each, name) for each in held_by) for name in HELD}
    memory = {"memory_mb": max(mb), "grown_mb": max(mb) - before}
    return row | held | memory | {"messages": messages}
