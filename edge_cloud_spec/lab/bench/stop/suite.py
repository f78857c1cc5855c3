"""``bench stop``: how fast the robot stops after each event, and whether it then moves again.

Prints percentiles in ms, and whether the robot recovered; all nodes are real processes.
``e_stop``: from the stop to a zero command; ``bare_ms``: a bare rclpy message to another process
and its answer, just before it; ``load``: of the machine, on average over the last minute.
``cloud_killed``: from the end of the command under way to standing still. ``navigator_killed``:
from the kill to standing still.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from ....errors import UserError
from ....models import EMBEDDED
from ..command import Row
from .e_stop import measure
from .kill import Kill, RobotDrive, driving, kill_cloud, kill_navigator

Trial = Callable[[RobotDrive, Iterator[int], np.random.Generator], Kill]
KILLS: dict[str, Trial] = {"cloud_killed": kill_cloud, "navigator_killed": kill_navigator}
EVENTS = ("e_stop", *KILLS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--trials", type=int, default=200, help="of e_stop (default %(default)s)")
    parser.add_argument("--kills", type=int, default=8, help="of either (default %(default)s)")
    parser.add_argument("--events", default=",".join(EVENTS), help="(default %(default)s)")
    parser.add_argument("--target", default=str(EMBEDDED / "target"))
    parser.add_argument("--drafter", default=str(EMBEDDED / "drafter"))


def run(args: argparse.Namespace) -> list[Row]:
    """A row an event."""
    events = args.events.split(",")
    if unknown := set(events) - set(EVENTS):
        raise UserError(f"--events has {', '.join(sorted(unknown))}; there are {', '.join(EVENTS)}")
    if args.trials < 1 or args.kills < 1:
        raise UserError("--trials and --kills must be 1 or more")
    rows = []
    if "e_stop" in events:
        times = measure(args.trials, args.seed)
        bare = {f"bare_{name}": value for name, value in _percentiles(times.bare).items()}
        load = os.getloadavg()[0]
        rows.append({"event": "e_stop", **_times(times.ours), **bare, "load": load})
    kills = [event for event in events if event in KILLS]
    if kills:
        rooms = count(args.seed * 1_000_003 % 2**30)
        rng = np.random.default_rng(args.seed)
        with driving(args.target, args.drafter) as drive:
            for event in kills:
                rows.append(_killed(event, args.kills, lambda t: t(drive, rooms, rng)))
    return rows


def _killed(event: str, trials: int, attempt: Callable[[Trial], Kill]) -> Row:
    done: list[Kill] = []
    for trial in range(trials):
        done.append(attempt(KILLS[event]))
        print(f"{event} {trial + 1}/{trials}: {done[-1]}", flush=True)
    return {
        "event": event,
        **_times([kill.ms for kill in done]),
        "recovered": all(kill.recovered for kill in done),
        "stayed": all(kill.stayed for kill in done),
    }


def _times(ms: Sequence[float]) -> Row:
    return {"trials": len(ms), **_percentiles(ms)}


def _percentiles(ms: Sequence[float]) -> Row:
    return {f"ms_p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
