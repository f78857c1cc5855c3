"""``bench faults``: injects each fault three times into the running system, and judges the robot.

Real processes: simulator, drafter, bridge, navigator and verifier with the embedded pair. A row is
written as soon as it is done; ``--resume`` keeps those that the file has. Seconds:
``standstill_s_max`` from the last valid command's end until the base is commanded to stand (a zero
command, or its own timeout), ``base_stands_s_max`` until it stands, ``recovery_s_max`` from the
fault's end until the robot moves again on a verified action, or its mission has ended.
``replaced_motions``: motions that replaced a running one; 0: the robot did not drive on.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.status import GOAL_FAILED, MISSION_ENDS
from edge_cloud_spec.share import path_of

from ..command import Options, Row, earlier_rows, write
from ..judge import Event, Reported, judge, replaced_motions
from ..options import check_counts
from . import beyond_robot, on_robot
from .rig import InjectedFault, Rig, running_rig

TABLE_BEGIN, TABLE_END = "<!-- table of bench faults -->", "<!-- end of the table -->"
TABLE_HEAD = (
    "| fault | what is injected | what the robot does | reported on | goes on, s |\n"
    "|---|---|---|---|---|"
)


def write_page(path: Path, faults: Mapping[str, InjectedFault], rows: Iterable[Row]) -> None:
    """Write the table between the page's two marks; raises UserError if they are missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page {path} cannot be read: {error.strerror}") from None
    before, begin, rest = text.partition(TABLE_BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not (begin and end):
        raise UserError(
            f"the page {path} has no {TABLE_BEGIN} and {TABLE_END}, between which the table goes"
        )
    path.write_text(
        f"{before}{TABLE_BEGIN}\n{table(faults, rows)}\n{TABLE_END}{after}", encoding="utf-8"
    )


def table(faults: Mapping[str, InjectedFault], rows: Iterable[Row]) -> str:
    """A Markdown table with a line per fault, and a dash for what was not measured."""
    measured = {row["fault"]: row for row in rows}
    lines = [_line(fault, measured.get(fault.name, {})) for fault in faults.values()]
    return "\n".join([TABLE_HEAD, *lines])


def _line(fault: InjectedFault, row: Row) -> str:
    reported_on = str(row.get("reported", "") if fault.reads else "").partition(":")[0]
    cells = [fault.name, fault.injected, fault.robot, f"`{reported_on}`" if reported_on else "-"]
    recovery = row.get("recovery_s_max")
    cells.append("-" if recovery is None else f"{recovery:.2f}")
    return f"| {' | '.join(cells)} |"


STAND_TIMEOUT = 45.0  # s in which the robot must have come to stand, and stayed so
RECOVERY_TIMEOUT = 90.0  # s
NEEDED = 6.0  # s in which a robot whose mission had just ended needs again what has failed
FAULT_SETTLE_S = 0.3
THREADS = 4  # more than before count as leaked: gRPC's pool takes and leaves a few
KEPT_DECISIONS_S = 30.0  # longer than any decision


@dataclass
class Trial:
    """The result of one trial; ``problems``: promises that did not hold."""

    unverified: list[str] = field(default_factory=list)
    standstill_s: float = 0.0
    base_stands_s: float = 0.0
    recovery_s: float | None = None
    replaced: int = 0
    reported: str = ""
    problems: list[str] = field(default_factory=list)


def run_trial(rig: Rig, fault: InjectedFault) -> Trial:
    """Inject the fault, clear it, and judge. Raises UserError if the robot did not move before."""
    trial, driven = Trial(), time.time()
    rig.drive()
    before, begun = rig.threads(), time.time()
    try:
        fault.inject(rig)
        _while_it_lasts(rig, fault, time.time(), trial)
        cleared = time.time()
        fault.clear(rig)
        trial.recovery_s = _recovery(rig, fault, cleared, trial)
    finally:
        rig.endings.close()
    time.sleep(FAULT_SETTLE_S)  # for what was published to arrive
    trial.replaced = replaced_motions(rig.watch.events, driven)
    _judge(rig, fault, begun, trial)
    _compare(rig, before, trial)
    return trial


def _while_it_lasts(rig: Rig, fault: InjectedFault, injected: float, trial: Trial) -> None:
    if not fault.stops:
        end = time.monotonic() + fault.lasts
        rig.drive_until(lambda: time.monotonic() > end, "the fault lasts", fault.lasts + 10.0)
        return

    def stands() -> bool:
        since = time.time() - fault.lasts
        return injected < since and rig.watch.last_motion < since

    def is_reported() -> bool:
        return not fault.reads or bool(_report(rig.watch.events, fault.reads, injected)[0])

    try:
        rig.drive_until(stands, "the robot stands", STAND_TIMEOUT)
        with suppress(UserError):  # verified below, and some are only reported afterwards
            rig.drive_until(is_reported, "it is reported", NEEDED)
    except UserError as error:
        trial.problems.append(str(error))


def _recovery(rig: Rig, fault: InjectedFault, cleared: float, trial: Trial) -> float | None:
    """Seconds until the robot moves by itself, or has ended its mission."""
    ended: list[float] = []

    def recovered() -> bool:
        state = rig.watch.instruction_status.state
        if state == GOAL_FAILED and not fault.instructed_again:
            return False
        if state in MISSION_ENDS:
            ended.append(time.time())
        return rig.moved_since(cleared) or bool(ended)

    if fault.instructed_again:
        rig.instruct_next()
    try:
        rig.drive_until(recovered, "the robot goes on", RECOVERY_TIMEOUT)
    except UserError as error:
        trial.problems.append(str(error))
        return None
    command = rig.watch.last_command
    at = ended[0] if ended or command is None else command.at
    return max(0.0, at - cleared)


def _judge(rig: Rig, fault: InjectedFault, begun: float, trial: Trial) -> None:
    events = [e for e in rig.watch.events if getattr(e, "message", None) not in rig.forged]
    now = time.time()
    found = judge(events, rig.camera.taken_at, rig.decode, rig.verified_until)
    rig.verified_until = now
    rig.watch.forget(now - KEPT_DECISIONS_S)
    trial.unverified = found.unverified
    trial.standstill_s, trial.base_stands_s = found.standstill_s, found.base_stands_s
    trial.reported, at = _report(events, fault.reads, begun)
    if fault.reads and not trial.reported:
        trial.problems.append(f"nobody reported {fault.reads!r}")
    if fault.reported_s is not None and at > rig.forged_at + fault.reported_s:
        trial.problems.append(f"reported after {at - rig.forged_at:.1f} s")


def _report(events: Iterable[Event], pattern: str, since: float) -> tuple[str, float]:
    """The first matching sentence and its time; empty if there is none."""
    for line in events if pattern else ():
        if isinstance(line, Reported) and line.at > since and re.search(pattern, line.text):
            return f"{line.topic}: {line.text}", line.at
    return "", 0.0


def _compare(rig: Rig, before: dict[tuple[str, int], int], trial: Trial) -> None:
    """Compare thread counts of the programs that ran throughout."""
    for program, threads in rig.threads().items():
        if program in before and threads > before[program] + THREADS:
            problem = f"{program[0]} has {threads} threads, {before[program]} before"
            trial.problems.append(problem)


def _figures(done: Sequence[Trial]) -> Row:
    times = [trial.recovery_s for trial in done if trial.recovery_s is not None]
    return {
        "trials": len(done),
        "unverified_motions": sum(len(trial.unverified) for trial in done),
        "standstill_s_max": max((trial.standstill_s for trial in done), default=0.0),
        "base_stands_s_max": max((trial.base_stands_s for trial in done), default=0.0),
        "recovered": len(times) == len(done),
        "recovery_s_max": max(times, default=None),
        "replaced_motions": sum(trial.replaced for trial in done),
    }


FAULTS_BY_NAME: dict[str, InjectedFault] = {
    fault.name: fault for fault in (*beyond_robot.FAULTS_BEYOND_ROBOT, *on_robot.FAULTS_ON_ROBOT)
}
QUICK_FAULTS = tuple(fault.name for fault in FAULTS_BY_NAME.values() if fault.quick)
STANDSTILL = 0.5  # s
COLUMNS = {
    "fault": "fault",
    "trials": "trials",
    "unverified_motions": "unverified",
    "standstill_s_max": "standstill s",
    "base_stands_s_max": "base stands s",
    "recovered": "recovered",
    "recovery_s_max": "recovery s",
    "replaced_motions": "replaced",
    "passed": "passed",
}


OPTIONS: Options = {
    "--trials": {"type": int, "default": 3, "help": "of each (default %(default)s)"},
    "--only": {"default": "", "help": "faults, with commas (all)"},
    "--list": {"action": "store_true", "help": "print their names, and end"},
    "--page": {"type": path_of, "help": "docs/faults.md: put the table there"},
    "--logs": {"type": path_of, "help": "folder for the programs' output"},
    "--resume": {"action": "store_true", "help": "keep the rows that --json has"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per fault."""
    if args.list:
        print("\n".join(f"{fault.name}: {fault.injected}" for fault in FAULTS_BY_NAME.values()))
        return []
    names = args.only.split(",") if args.only else list(FAULTS_BY_NAME)
    if unknown := set(names) - set(FAULTS_BY_NAME):
        raise UserError(f"--only has {', '.join(sorted(unknown))}; --list tells what there is")
    check_counts(args, "trials")
    done = earlier_rows(args.json, "fault") if args.resume else {}
    rows, left = list(done.values()), [name for name in names if name not in done]
    while left:
        left = _run_in_one_rig(left, args, rows)
    if args.page:
        write_page(args.page, FAULTS_BY_NAME, rows)
    return rows


def _run_in_one_rig(names: list[str], args: argparse.Namespace, rows: list[Row]) -> list[str]:
    """Measure these faults in one running system; returns the rows, and the faults left if one
    broke it."""
    with running_rig(args.seed, args.logs) as rig:
        for number, name in enumerate(names):
            row, sound = measure(rig, FAULTS_BY_NAME[name], args.trials)
            rows.append(row)
            if args.json:
                write(args.json, "faults", args.seed, rows)
            if not sound:
                return names[number + 1 :]
    return []


def measure(rig: Rig, fault: InjectedFault, trials: int) -> tuple[Row, bool]:
    """The fault's row, and whether the system is intact afterwards."""
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
    figures = _figures(done)
    sound = figures["recovered"] and not any(trial.problems for trial in done)
    moved = figures["unverified_motions"] and fault.reported_s is None
    return {
        "fault": fault.name,
        **figures,
        "reported": next((trial.reported for trial in done if trial.reported), ""),
        "problems": "; ".join(problem for trial in done for problem in trial.problems),
        "passed": sound and not moved and figures["standstill_s_max"] <= STANDSTILL,
    }
