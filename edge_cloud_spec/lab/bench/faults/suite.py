"""``bench faults``: each fault three times in the running system, and what the robot then did.

Real processes: simulator, drafter, bridge, navigator and verifier with the embedded pair. A row is
written as soon as it is done; ``--resume`` takes over those that the file has already. Seconds:
``standstill_s_max`` from the last valid command's end until the base is told to stand (a zero
command, or its own timeout), ``base_stands_s_max`` until it stands, ``recovery_s_max`` from the
fault's end until the robot moves again on a verified action, or its mission has ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ....errors import UserError
from ..command import Row, write
from . import access, cloud, link, neighbours, nodes, sensors
from .fault import InjectedFault
from .page import write_page
from .rig import Rig, running_rig
from .soak import soak
from .trial import Trial, run_trial

FAULTS: dict[str, InjectedFault] = {
    fault.name: fault
    for family in (link, cloud, access, sensors, nodes, neighbours)
    for fault in family.FAULTS
}
QUICK = tuple(fault.name for fault in FAULTS.values() if fault.quick)
STANDSTILL = 0.5  # s
COLUMNS = {
    "fault": "fault",
    "trials": "trials",
    "unverified_motions": "unverified",
    "standstill_s_max": "standstill s",
    "base_stands_s_max": "base stands s",
    "recovered": "recovered",
    "recovery_s_max": "recovery s",
    "passed": "passed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--trials", type=int, default=3, help="of each (default %(default)s)")
    parser.add_argument("--only", default="", help="faults, with commas (all)")
    parser.add_argument("--list", action="store_true", help="print their names, and end")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of random faults instead")
    parser.add_argument("--page", type=Path, help="docs/faults.md: put the table there")
    parser.add_argument("--logs", type=Path, help="folder for the programs' output")
    parser.add_argument("--resume", action="store_true", help="keep the rows that --json has")


def run(args: argparse.Namespace) -> list[Row]:
    """A row a fault."""
    if args.list:
        print("\n".join(f"{fault.name}: {fault.injected}" for fault in FAULTS.values()))
        return []
    names = args.only.split(",") if args.only else list(FAULTS)
    if unknown := set(names) - set(FAULTS):
        raise UserError(f"--only has {', '.join(sorted(unknown))}; --list tells what there is")
    if args.trials < 1:
        raise UserError("--trials must be 1 or more")
    if args.soak:
        random = [FAULTS[name] for name in names if FAULTS[name].soak]
        if not random:
            raise UserError("--only names no fault that the soak can draw")
        with running_rig(args.seed, args.logs) as rig:
            return [soak(rig, random, args.soak, args.seed)]
    rows = _rows_of(args.json) if args.resume and args.json else []
    left = [name for name in names if name not in {row["fault"] for row in rows}]
    while left:
        left = _run_in_one_rig(left, args, rows)
    if args.page:
        write_page(args.page, FAULTS, rows)
    return rows


def _run_in_one_rig(names: list[str], args: argparse.Namespace, rows: list[Row]) -> list[str]:
    """Rows of these faults in one running system; the rest, where a fault has broken it."""
    with running_rig(args.seed, args.logs) as rig:
        for number, name in enumerate(names):
            row, sound = measure(rig, FAULTS[name], args.trials)
            rows.append(row)
            if args.json:
                write(args.json, "faults", args.seed, rows)
            if not sound:
                return names[number + 1 :]
    return []


def measure(rig: Rig, fault: InjectedFault, trials: int) -> tuple[Row, bool]:
    """The fault's row, and whether the system is sound after it."""
    done: list[Trial] = []
    for _ in range(trials):
        try:
            done.append(run_trial(rig, fault))
        except UserError as error:
            done.append(Trial(problems=[str(error)]))
            break
        print(f"{fault.name} {len(done)}/{trials}: {done[-1]}", file=sys.stderr, flush=True)
    for trial in done:
        for problem in [*trial.problems, *trial.unverified]:
            print(f"{fault.name}: {problem}", file=sys.stderr, flush=True)
    return _row(fault, done), all(trial.recovery_s is not None for trial in done)


def _row(fault: InjectedFault, done: list[Trial]) -> Row:
    unverified = sum(len(trial.unverified) for trial in done)
    standstill = max(trial.standstill_s for trial in done)
    times = [trial.recovery_s for trial in done if trial.recovery_s is not None]
    reports = [trial.reported_s for trial in done if trial.reported_s is not None]
    recovered = len(times) == len(done)
    sound = not any(trial.problems for trial in done)
    moved = unverified and fault.reported_s is None
    return {
        "fault": fault.name,
        "trials": len(done),
        "unverified_motions": unverified,
        "standstill_s_max": standstill,
        "base_stands_s_max": max(trial.base_stands_s for trial in done),
        "recovered": recovered,
        "recovery_s_max": max(times) if times else None,
        "reported_s_max": max(reports) if reports else None,
        "said": next((trial.said for trial in done if trial.said), ""),
        "problems": "; ".join(problem for trial in done for problem in trial.problems),
        "passed": sound and recovered and not moved and standstill <= STANDSTILL,
    }


def _rows_of(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        rows: list[Row] = json.loads(path.read_text())["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} has no rows to resume from: {error}") from None
    return rows
