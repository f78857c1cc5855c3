"""``bench faults``: each fault three times in the running system, and what the robot then did.

Real processes: simulator, drafter, bridge, navigator and verifier with the embedded pair. A row is
written as soon as it is done; ``--resume`` takes over those that the file has already. Seconds:
``standstill_s_max`` from the last valid command's end until the base is told to stand (a zero
command, or its own timeout), ``base_stands_s_max`` until it stands, ``recovery_s_max`` from the
fault's end until the robot moves again on a verified action, or its mission has ended.
``replaced_motions``: those that took the place of another under way; 0: it did not drive on.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ....errors import UserError
from ..command import Options, Row, earlier_rows, write
from ..judge import Event, Reported, judge, replaced_motions
from ..leaks import quarters
from . import beyond_robot, on_robot
from .rig import InjectedFault, Rig, running_rig

LONGEST = 100  # characters of what the owner reads
BEGIN, END = "<!-- table of bench faults -->", "<!-- end of the table -->"
HEAD = (
    "| fault | what is injected | what the robot does | what the owner reads "
    "| stop command, s | stands, s | goes on, s |\n|---|---|---|---|---|---|---|"
)


def write_page(path: Path, faults: Mapping[str, InjectedFault], rows: Iterable[Row]) -> None:
    """Put the table between the page's two marks; raises UserError where they are missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page {path} cannot be read: {error.strerror}") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"the page {path} has no {BEGIN} and {END}, between which the table goes")
    path.write_text(f"{before}{BEGIN}\n{table(faults, rows)}\n{END}{after}", encoding="utf-8")


def table(faults: Mapping[str, InjectedFault], rows: Iterable[Row]) -> str:
    """A line a fault, with a dash for what was not measured."""
    measured = {row["fault"]: row for row in rows}
    lines = [_line(fault, measured.get(fault.name, {})) for fault in faults.values()]
    return "\n".join([HEAD, *lines])


def _line(fault: InjectedFault, row: Row) -> str:
    said = str(row.get("said", "") if fault.reads else "").replace("|", "/").replace("`", "'")
    said = re.sub(r"following (.+?): no decision on '\1': ", "", said)
    if len(said) > LONGEST:
        said = f"{said[:LONGEST].rpartition(' ')[0]} ..."
    cells = [fault.name, fault.injected, fault.robot, f"`{said}`" if said else "-"]
    for name in ("standstill_s_max", "base_stands_s_max", "recovery_s_max"):
        cells.append("-" if row.get(name) is None else f"{row[name]:.2f}")
    return f"| {' | '.join(cells)} |"


STAND_TIMEOUT = 45.0  # s in which the robot must have come to stand, and stayed so
RECOVERY_TIMEOUT = 90.0  # s
NEEDED = 6.0  # s in which a robot whose mission had just ended needs again what has failed
SETTLE = 0.3  # s
THREADS = 4  # more than before count as leaked: gRPC's pool takes and leaves a few
REMEMBERED = 30.0  # s; longer than any decision
ENDED = ("done", "not_found", "blocked", "given_up")


@dataclass
class Trial:
    """What one trial came to; ``problems`` is what was promised and did not hold."""

    unverified: list[str] = field(default_factory=list)
    standstill_s: float = 0.0
    base_stands_s: float = 0.0
    recovery_s: float | None = None
    replaced: int = 0
    said: str = ""
    problems: list[str] = field(default_factory=list)


def run_trial(rig: Rig, fault: InjectedFault) -> Trial:
    """Inject, clear, and judge. Raises UserError when the robot did not move before the fault."""
    trial, driven = Trial(), time.time()
    rig.drive()
    before, begun = rig.resources(), time.time()
    try:
        fault.inject(rig)
        _while_it_lasts(rig, fault, time.time(), trial)
        cleared = time.time()
        fault.clear(rig)
        trial.recovery_s = _recovery(rig, fault, cleared, trial)
    finally:
        rig.endings.close()
    time.sleep(SETTLE)  # for what was published to arrive
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

    def is_said() -> bool:
        return not fault.reads or bool(_said(rig.watch.events, fault.reads, injected)[0])

    try:
        rig.drive_until(stands, "the robot stands", STAND_TIMEOUT)
        with suppress(UserError):  # judged below, and some are only said afterwards
            rig.drive_until(is_said, "it is said", NEEDED)
    except UserError as error:
        trial.problems.append(str(error))


def _recovery(rig: Rig, fault: InjectedFault, cleared: float, trial: Trial) -> float | None:
    """Seconds until the robot moves by itself, or has ended its mission."""
    ended: list[float] = []

    def recovered() -> bool:
        status = rig.watch.lines["instruction_status"]
        if status.startswith("failed") and not fault.instructed_again:
            return False
        if status.startswith(ENDED):
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
    found = judge(events, rig.camera.taken_at, rig.decode, rig.judged)
    rig.judged = now
    rig.watch.forget(now - REMEMBERED)
    trial.unverified = found.unverified
    trial.standstill_s, trial.base_stands_s = found.standstill_s, found.base_stands_s
    trial.said, at = _said(events, fault.reads, begun)
    if fault.reads and not trial.said:
        trial.problems.append(f"nobody said {fault.reads!r}")
    if fault.reported_s is not None and at > rig.forged_at + fault.reported_s:
        trial.problems.append(f"reported after {at - rig.forged_at:.1f} s")


def _said(events: Iterable[Event], pattern: str, since: float) -> tuple[str, float]:
    """The first sentence that matches, and when it was published; empty where there is none."""
    for line in events if pattern else ():
        if isinstance(line, Reported) and line.at > since and re.search(pattern, line.text):
            return f"{line.topic}: {line.text}", line.at
    return "", 0.0


def _compare(rig: Rig, before: dict[str, tuple[int, int, float]], trial: Trial) -> None:
    """Threads of the programs that ran through all of it."""
    for name, (pid, threads, _) in rig.resources().items():
        was = before.get(name)
        if was is not None and was[0] == pid and threads > was[1] + THREADS:
            trial.problems.append(f"{name} has {threads} threads, {was[1]} before")


GROWTH_MB = 16.0  # of a program, from the first to the last quarter; less counts as flat
LAST = 15.0  # s for the last decisions to end


class Samples:
    """Memory and threads of each program over the soak; one that was started anew begins anew."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)

    def take(self, rig: Rig) -> None:
        """What the programs hold now."""
        for name, (pid, threads, megabytes) in rig.resources().items():
            self._taken[name, pid].append((threads, megabytes))

    def growth(self) -> dict[str, tuple[int, float]]:
        """How many more threads and MB each program had in the last quarter than in the first."""
        found: dict[str, tuple[int, float]] = {}
        for (name, _), samples in self._taken.items():
            first, last = quarters(samples)
            threads = max(t for t, _ in last) - max(t for t, _ in first)
            more = statistics.median(m for _, m in last) - statistics.median(m for _, m in first)
            before = found.get(name, (0, 0.0))
            found[name] = (max(threads, before[0]), max(more, before[1]))
        return found


def soak(rig: Rig, faults: Sequence[InjectedFault], minutes: float, seed: int) -> Row:
    """Random faults for so many minutes; one row of all."""
    random, samples, done = Random(seed), Samples(), list[Trial]()
    began, problems = time.monotonic(), list[str]()
    while time.monotonic() - began < 60.0 * minutes:
        fault = random.choice(faults)
        samples.take(rig)
        try:
            done.append(run_trial(rig, fault))
        except UserError as error:
            problems.append(f"{fault.name}: {error}")
            continue
        found = [*done[-1].problems, *done[-1].unverified]
        problems += [f"{fault.name}: {problem}" for problem in found]
        passed = 60.0 * minutes - (time.monotonic() - began)
        print(f"{len(done)} {fault.name}: {passed:.0f} s left {found}", file=sys.stderr, flush=True)
    rig.watch.instruct("stop")
    with suppress(UserError):  # those that are left are told below
        rig.wait_for(lambda: not rig.watch.unaccounted, "the last decisions end", LAST)
    samples.take(rig)
    problems += [f"decision {request} never ended" for request in rig.watch.unaccounted]
    for name, (threads, more) in samples.growth().items():
        if threads > THREADS:
            problems.append(f"{name} has {threads} more threads")
        if more > GROWTH_MB:
            problems.append(f"{name} has grown by {more:.1f} MB")
    return _soak_row(rig, done, problems, samples)


def _soak_row(rig: Rig, done: Sequence[Trial], problems: Sequence[str], samples: Samples) -> Row:
    for problem in problems:
        print(f"soak: {problem}", file=sys.stderr, flush=True)
    growth = samples.growth()
    return {
        "fault": "soak",
        **_figures(done),
        "decisions": len(rig.watch.begun),
        "unaccounted": len(rig.watch.unaccounted),
        "respawned": "; ".join(rig.respawned),
        **{f"{name}_threads_grown": threads for name, (threads, _) in growth.items()},
        **{f"{name}_mb_grown": more for name, (_, more) in growth.items()},
        "problems": "; ".join(problems),
        "passed": bool(done) and not problems,
    }


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


FAULTS: dict[str, InjectedFault] = {
    fault.name: fault for fault in (*beyond_robot.FAULTS, *on_robot.FAULTS)
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
    "replaced_motions": "replaced",
    "passed": "passed",
}


OPTIONS: Options = {
    "--trials": {"type": int, "default": 3, "help": "of each (default %(default)s)"},
    "--only": {"default": "", "help": "faults, with commas (all)"},
    "--list": {"action": "store_true", "help": "print their names, and end"},
    "--soak": {"type": float, "default": 0.0, "help": "minutes of random faults instead"},
    "--page": {"type": Path, "help": "docs/faults.md: put the table there"},
    "--logs": {"type": Path, "help": "folder for the programs' output"},
    "--resume": {"action": "store_true", "help": "keep the rows that --json has"},
}


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
    done = earlier_rows(args.json, "fault") if args.resume else {}
    rows, left = list(done.values()), [name for name in names if name not in done]
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
    figures = _figures(done)
    sound = figures["recovered"] and not any(trial.problems for trial in done)
    moved = figures["unverified_motions"] and fault.reported_s is None
    return {
        "fault": fault.name,
        **figures,
        "said": next((trial.said for trial in done if trial.said), ""),
        "problems": "; ".join(problem for trial in done for problem in trial.problems),
        "passed": sound and not moved and figures["standstill_s_max"] <= STANDSTILL,
    }
