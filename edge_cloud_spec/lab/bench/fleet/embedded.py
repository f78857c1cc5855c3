"""The embedded target and real clients, in processes of their own, whose drafts are recorded.

Also the server's memory: after many sessions, and when it has none for all at a time.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from ....cloud.model_thread.sessions import WorkerLimits
from ....edge.runner import DecodeSettings
from ....presets import load_preset
from ...harness.emulated_link import LinkProfile
from ...harness.fleet.embedded import (
    RecordedAnswers,
    RecordedRobots,
    embedded_worker,
    record_robots,
    session_bytes,
)
from ...harness.fleet.load import FleetLoad, RobotActivity
from ...harness.fleet.robot_processes import RobotPlan, run_robots
from ...harness.grpc_robot import GrpcRobot
from ...harness.server import ServerHoldings, ServerProcess
from ..command import Row, write
from ..leaks import memory_mb
from ..requests import sample_requests
from .figures import figures, mean_of

REQUESTS = 12
FIRST = 10  # growth is from this part of the sessions on
LOOKS = 20  # measurements
GROWTH = 0.05
STORM_SESSIONS = 4  # that the memory is for
SHORT = 6  # tokens of an answer


def memory_rows(args: argparse.Namespace) -> list[Row]:
    """A row for ``--sessions``, and one for ``--storm``."""
    requests = sample_requests(args.seed, REQUESTS)
    recorded = record_robots(requests)
    rows = []
    if args.sessions:
        rows.append(_after_many(recorded, args))
    if args.storm:
        rows.append(_storm(args, recorded, STORM_SESSIONS * session_bytes(requests)))
    return rows


def _common(robots: int) -> Row:
    row = {"harness": "embedded", "server": "batched", "replicas": 1, "passes": "free"}
    return row | {"robots": robots, "hostile": 0.0}


def _after_many(recorded: RecordedRobots, args: argparse.Namespace) -> Row:
    """Short answers one after the other; memory after a tenth of them and after all.

    Each measurement is written to ``--json`` at once: a run that is ended keeps what it has seen.
    """
    answers, activity = RecordedAnswers(recorded, 0), RobotActivity()
    settings = DecodeSettings(load_preset("dsd"), max_tokens=SHORT)
    first, step = max(1, args.sessions // FIRST), max(1, args.sessions // LOOKS)
    sizes: dict[int, float] = {}
    row: Row = {}
    with (
        ServerProcess(partial(embedded_worker, WorkerLimits())) as server,
        GrpcRobot(server.address, answers.draft_model, answers.spec) as robot,
    ):
        for number in range(1, args.sessions + 1):
            request, own = answers.next(number - 1)
            outcome = robot.decode(request, settings)
            activity.add(outcome, own[:SHORT])
            if number % step and number not in (first, args.sessions):
                continue
            sizes[number] = memory_mb(server.pid)
            row = _grown(activity, sizes, first, server.holdings())
            print(f"{number} sessions: {sizes[number]:.1f} MB", file=sys.stderr)
            if args.json:
                write(args.json, "fleet", args.seed, [row])
    return row


def _grown(
    activity: RobotActivity, sizes: dict[int, float], first: int, held: ServerHoldings
) -> Row:
    """The row after the last of these numbers of sessions; ``sizes`` in MB."""
    sessions, size = max(sizes), sizes[max(sizes)]
    row = figures([activity], 0.0, float("inf")) | {"tokens_per_s": None}
    grown = size / sizes.get(first, size) - 1
    return (
        _common(1)
        | row
        | {"sessions": sessions, "memory_mb": size, "memory_growth": grown}
        | {"memory_mb_after": dict(sizes), **asdict(held)}
        | {"passed": row["equal"] and grown <= GROWTH}
    )


def _storm(args: argparse.Namespace, recorded: RecordedRobots, kv_bytes: int) -> Row:
    """So many robots at once, and memory for the sessions of four."""
    load = FleetLoad(0, args.think, args.seconds, args.jitter, args.seed)
    plans = [
        RobotPlan(
            number,
            partial(RecordedAnswers, recorded, number),
            load_preset("dsd"),
            load,
        )
        for number in range(args.storm)
    ]
    limits = WorkerLimits(sessions=max(64, 2 * args.storm), kv_bytes=kv_bytes)
    with ServerProcess(partial(embedded_worker, limits)) as server:
        activities = run_robots(plans, server.address)
        memory = memory_mb(server.pid)
    row = figures(activities, 0.0, args.seconds) | {"memory_mb": memory}
    print(f"storm: {row['answers']} answers, {row['lost']} lost", file=sys.stderr)
    return _common(args.storm) | row | {"kv_mb": kv_bytes / 2**20, "passed": row["equal"]}


WARM_UP = 0.15  # share of the time that is not counted
ROBOTS_PRESET = "dsd"
LINK_MS = (2.0, 8.0)  # a robot's delay each way is between these


def embedded_rows(args: argparse.Namespace) -> list[Row]:
    """A row a server and fleet. The servers take turns, so that all see the same load of this
    machine. ``throughput_ratio`` is over the one-at-a-time server of the same run; ``cpu_ratio`` is
    the same for each second of a core that the server takes, which other work disturbs less.

    Each robot asks the same of one picture again and again, so that after its first answer nearly
    all of the server's work is verification.
    """
    count = max(args.robots)
    recorded = record_robots(sample_requests(args.seed, count))
    acceptance = float(np.mean([recording.acceptance for recording in recorded.recordings]))
    print(f"{count} answers, acceptance {acceptance:.2f}", file=sys.stderr)
    rows = []
    for robots in args.robots:
        by_server: dict[str, list[Row]] = {name: [] for name in args.server}
        for seed in range(args.seed, args.seed + args.seeds):
            for name in args.server:
                by_server[name].append(_run(args, name, robots, recorded, seed))
        means = {name: _row(args, name, robots, each) for name, each in by_server.items()}
        base = means.get("one_at_a_time")
        for name, row in means.items():
            pairs = zip(by_server[name], by_server.get("one_at_a_time", ()), strict=False)
            ratios = [one["tokens_per_s"] / other["tokens_per_s"] for one, other in pairs]
            if base is not None:
                row["throughput_ratio"] = row["tokens_per_s"] / base["tokens_per_s"]
                row["throughput_ratio_min"] = min(ratios)
                row["cpu_ratio"] = row["tokens_per_cpu_s"] / base["tokens_per_cpu_s"]
            rows.append(row | {"acceptance": acceptance})
    return rows


def _row(args: argparse.Namespace, name: str, robots: int, rows: Sequence[Row]) -> Row:
    row = {
        "harness": "embedded",
        "server": name,
        "replicas": 1,
        "passes": "free",
        "robots": robots,
        "hostile": 0.0,
        "preset": "cloud_sd" if name == "server_only" else ROBOTS_PRESET,
        **mean_of(rows),
        "seeds": args.seeds,
    }
    return row | {"passed": row["equal"]}


class _CpuTime:
    """The seconds of all cores that a process took from the end of the warm-up to the end."""

    def __init__(self, process: int) -> None:
        self._stat = Path(f"/proc/{process}/stat")
        self.seconds, self.window_s = math.nan, math.nan

    def measure(self, seconds: float) -> None:
        """Wait for the robots' time to pass."""
        time.sleep(WARM_UP * seconds)
        before, began = self._now(), time.perf_counter()
        time.sleep((1 - WARM_UP) * seconds)
        self.seconds, self.window_s = self._now() - before, time.perf_counter() - began

    def _now(self) -> float:
        if not self._stat.exists():
            return math.nan
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def limits_of(server: str, robots: int) -> WorkerLimits:
    """The worker's limits: one session in a pass, or as many as it likes."""
    limits = WorkerLimits(sessions=max(64, 2 * robots))
    return replace(limits, batch=1) if server == "one_at_a_time" else limits


def _run(
    args: argparse.Namespace, name: str, robots: int, recorded: RecordedRobots, seed: int
) -> Row:
    load = FleetLoad(0, args.think, args.seconds, args.jitter, seed)
    preset = load_preset("cloud_sd" if name == "server_only" else ROBOTS_PRESET)
    plans = []
    for number in range(robots):
        delay = load.random(number).uniform(*LINK_MS)
        answers = partial(RecordedAnswers, recorded, number, 1)
        link = LinkProfile(delay, args.jitter)
        plans.append(RobotPlan(number, answers, preset, load, link))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    make = partial(embedded_worker, limits_of(name, robots), name == "server_only")
    with ServerProcess(make) as server:
        cpu = _CpuTime(server.pid)
        activities = run_robots(plans, server.address, cpu.measure)
        memory = memory_mb(server.pid)
    row = figures(activities, WARM_UP * args.seconds, args.seconds) | {"memory_mb": memory}
    row["tokens_per_cpu_s"] = row["tokens_per_s"] * cpu.window_s / cpu.seconds
    print(f"{name}, {robots} robots: {row['tokens_per_s']:.1f} tokens/s", file=sys.stderr)
    return row
