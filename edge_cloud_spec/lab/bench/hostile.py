"""``bench hostile``: a robot's decode times beside hostile clients and beside well-behaved ones.

Prints both medians, their ratio, and how much the verifier's memory grows, for each kind of client.
The embedded pair over gRPC; verifier, robot and the other clients are a process each.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from itertools import count, cycle
from typing import Any

import numpy as np

from ...edge.runner import DecodeSettings
from ...errors import UserError
from ...models import EMBEDDED
from ...models.load import load
from ...models.prompt import Request
from ...presets import load_preset
from ...share import rules_text
from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.hostile_clients import ATTACKS, clients_process, run_attack
from ..harness.server import ServerProcess, VerifierProcess
from .command import Options, Row
from .leaks import memory_mb, sampled
from .requests import sample_requests

STREAMS = 4
SECONDS = 14.0  # of each kind of client
MAX_TOKENS = 48
MAX_RATIO = 3.0
MAX_MB = 200.0  # by which the verifier may grow
BEHAVED = "behaved"
SETTINGS = DecodeSettings(load_preset("dsd"))


OPTIONS: Options = {
    "--seconds": {"type": float, "default": SECONDS, "help": "of each row (%(default)s)"},
    "--streams": {"type": int, "default": STREAMS, "help": "beside it (%(default)s)"},
    "--hostile": {"help": f"with commas, of {', '.join(ATTACKS)} (all)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each hostile client."""
    names = args.hostile.split(",") if args.hostile else list(ATTACKS)
    if unknown := set(names) - set(ATTACKS):
        raise UserError(f"hostile is one of {', '.join(ATTACKS)}, not {', '.join(unknown)}")
    if args.seconds <= 0 or args.streams < 1:
        raise UserError("--seconds is above 0, --streams at least 1")
    requests = sample_requests(args.seed, 32)
    with VerifierProcess(verifier_options(MAX_TOKENS)) as cloud, _robot(cloud.address) as robot:
        for request in requests[:3]:
            robot.decode(request, SETTINGS)
        before, *rows, after = (
            _beside(name, cloud, robot, requests, args) for name in (BEHAVED, *names, BEHAVED)
        )
    behaved = [*before["ms"], *after["ms"]]
    return [_row(name, row, behaved, args.streams) for name, row in zip(names, rows, strict=True)]


def _row(name: str, found: Row, behaved: list[float], streams: int) -> Row:
    p50, own = (float(np.median(ms)) if ms else None for ms in (found["ms"], behaved))
    ratio = p50 / own if p50 and own else None
    row = {
        "hostile": name,
        "streams": streams,
        "p50_ms": p50,
        "p50_ms_behaved": own,
        "ratio": ratio,
        "memory_mb": found["memory_mb"],
        "decodes": len(found["ms"]),
        "failed": found["failed"],
        "messages": found["messages"],
    }
    within = ratio is not None and ratio <= MAX_RATIO and found["memory_mb"] <= MAX_MB
    return row | {"passed": within and not found["failed"] and found["messages"] > 0}


def _robot(address: str) -> GrpcRobot:
    """A robot with the embedded drafter."""
    model = load(EMBEDDED / "drafter", threads=1)
    return GrpcRobot(address, model, model.spec(rules_text(), MAX_TOKENS))


def _beside(
    name: str,
    cloud: ServerProcess,
    robot: GrpcRobot,
    requests: list[Request],
    args: argparse.Namespace,
) -> Row:
    """The robot's times beside clients of this kind, and how much the verifier grows."""
    own, others = cycle(requests[: len(requests) // 2]), requests[len(requests) // 2 :]
    before = memory_mb(cloud.pid)
    found: Row = {"ms": [], "failed": 0}
    if name == BEHAVED:
        clients = clients_process(_run_robots, name, cloud.address, others, args.streams)
    else:
        attacked = others[0], args.streams, args.seed
        clients = clients_process(run_attack, name, cloud.address, *attacked)
    with clients as messages, sampled(lambda: memory_mb(cloud.pid)) as mb:
        end = time.perf_counter() + args.seconds
        while time.perf_counter() < end:
            outcome = robot.decode(next(own), SETTINGS)
            found["failed"] += not outcome.completed
            if outcome.completed:
                found["ms"].append(1e3 * outcome.seconds)
            else:
                print(f"{name}: {outcome.reason} {outcome.text}", file=sys.stderr)
        found |= {"messages": messages(), "memory_mb": max(0.0, max(mb) - before)}
    print(f"{name}: {len(found['ms'])} decodes, {found['messages']} messages", file=sys.stderr)
    return found


def _run_robots(sent: Any, _: str, address: str, requests: list[Request], streams: int) -> None:
    """Well-behaved clients that decode without a pause, until killed."""
    robots = [_robot(address) for _ in range(streams)]
    counts = [0] * streams

    def decode_on(place: int) -> None:
        for number in count(place * len(requests) // streams):
            robots[place].decode(requests[number % len(requests)], SETTINGS)
            counts[place] += 1
            sent.value = sum(counts)

    threads = [threading.Thread(target=decode_on, args=(place,)) for place in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
