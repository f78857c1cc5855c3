"""The embedded server's memory: after many sessions, and when it has none for all at a time."""

from __future__ import annotations

import argparse
import secrets
import sys
from contextlib import closing
from dataclasses import asdict
from functools import partial

from ....cloud.model_thread.sessions import WorkerLimits
from ....edge.client import ClientSettings, VerifierClient
from ....edge.runner import DecodeRunner, DecodeSettings
from ....presets import load_preset
from ...harness.fleet.activity import RobotActivity
from ...harness.fleet.embedded import (
    RecordedAnswers,
    RecordedRobots,
    embedded_worker,
    record_robots,
    session_bytes,
)
from ...harness.fleet.load import FleetLoad
from ...harness.fleet.robot_processes import RobotPlan, run_robots
from ...harness.fleet.server_process import ServerHoldings, ServerProcess
from ..command import Row, write
from ..leaks import memory_mb
from ..requests import sample_requests
from .figures import figures

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
    runner = DecodeRunner(answers.draft_model, answers.spec)  # type: ignore[arg-type]
    settings = DecodeSettings(load_preset("dsd"), max_tokens=SHORT)
    first, step = max(1, args.sessions // FIRST), max(1, args.sessions // LOOKS)
    sizes: dict[int, float] = {}
    row: Row = {}
    with (
        ServerProcess(partial(embedded_worker, WorkerLimits())) as server,
        closing(VerifierClient(ClientSettings(server.address))) as client,
    ):
        for number in range(1, args.sessions + 1):
            request, own = answers.next(number - 1)
            outcome = runner.run(request, settings, secrets.randbits(64), client.connect)
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
