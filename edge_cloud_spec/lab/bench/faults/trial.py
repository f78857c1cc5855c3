"""One trial of a fault: the robot moves, the fault comes and goes, and the robot moves again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from ....errors import UserError
from .events import Event, Reported
from .fault import InjectedFault
from .judge import judge, without_forged
from .rig import Rig

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
    reported_s: float | None = None
    said: str = ""
    problems: list[str] = field(default_factory=list)


def run_trial(rig: Rig, fault: InjectedFault) -> Trial:
    """Inject, clear, and judge. Raises UserError when the robot did not move before the fault."""
    trial = Trial()
    rig.drive()
    before = rig.resources()
    begun = time.time()
    try:
        fault.inject(rig)
        injected = time.time()
        _while_it_lasts(rig, fault, injected, trial)
        cleared = time.time()
        fault.clear(rig)
        trial.recovery_s = _recovery(rig, fault, cleared, trial)
    finally:
        rig.endings.close()
    rig.ros.spin(SETTLE)  # for what was published to arrive
    _judge(rig, fault, begun, trial)
    _compare(rig, before, trial)
    return trial


def _while_it_lasts(rig: Rig, fault: InjectedFault, injected: float, trial: Trial) -> None:
    if not fault.stops:
        end = time.monotonic() + fault.lasts
        rig.wait_for(lambda: time.monotonic() > end, "the fault lasts", fault.lasts + 10.0)
        return

    def stands() -> bool:
        since = time.time() - fault.lasts
        return injected < since and rig.watch.last_motion < since

    def is_said() -> bool:
        return not fault.reads or bool(_said(rig.watch.events, fault.reads, injected)[0])

    try:
        rig.wait_for(stands, "the robot stands", STAND_TIMEOUT)
        with suppress(UserError):  # judged below, and some are only said afterwards
            rig.wait_for(is_said, "it is said", NEEDED)
    except UserError as error:
        trial.problems.append(str(error))


def _recovery(rig: Rig, fault: InjectedFault, cleared: float, trial: Trial) -> float | None:
    """Seconds until the robot moves by itself, or has ended its mission."""
    ended: list[float] = []

    def recovered() -> bool:
        status = rig.watch.lines.get("instruction_status", "")
        if status.startswith("failed") and not fault.instructed_again:
            return False
        if status.startswith(ENDED):
            ended.append(time.time())
        return rig.moved_since(cleared) or bool(ended)

    if fault.instructed_again:
        rig.instruct_next()
    try:
        rig.wait_for(recovered, "the robot goes on", RECOVERY_TIMEOUT)
    except UserError as error:
        trial.problems.append(str(error))
        return None
    command = rig.watch.last_command
    at = ended[0] if ended or command is None else command.at
    return max(0.0, at - cleared)


def _judge(rig: Rig, fault: InjectedFault, begun: float, trial: Trial) -> None:
    events = without_forged(rig.watch.events, rig.forged)
    now = time.time()
    found = judge(events, rig.watch.camera.taken_at, rig.decode, rig.judged)
    rig.judged = now
    rig.watch.forget(now - REMEMBERED)
    trial.unverified = found.unverified
    trial.standstill_s, trial.base_stands_s = found.standstill_s, found.base_stands_s
    trial.said, at = _said(events, fault.reads, begun)
    if fault.reads and not trial.said:
        trial.problems.append(f"nobody said {fault.reads!r}")
    if fault.reported_s is not None and at is not None:
        trial.reported_s = at - rig.forged_at
        if trial.reported_s > fault.reported_s:
            trial.problems.append(f"reported after {trial.reported_s:.1f} s")


def _said(events: Iterable[Event], pattern: str, since: float) -> tuple[str, float | None]:
    """The first sentence that matches, and when it was published; empty where there is none."""
    for line in events:
        if not (pattern and isinstance(line, Reported) and line.at > since):
            continue
        if re.search(pattern, line.text):
            return f"{line.topic}: {line.text}", line.at
    return "", None


def _compare(rig: Rig, before: dict[str, tuple[int, int, float]], trial: Trial) -> None:
    """Threads of the programs that ran through all of it."""
    for name, (pid, threads, _) in rig.resources().items():
        was = before.get(name)
        if was is not None and was[0] == pid and threads > was[1] + THREADS:
            trial.problems.append(f"{name} has {threads} threads, {was[1]} before")
