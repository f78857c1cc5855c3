"""``bench faults --soak MINUTES``: random faults one after another, in one running system.

Nothing may move unverified and every fault must pass by itself, as in the matrix. In addition each
program's memory and threads stay flat, and each decision that began has ended: its words on
``verified_tokens``, its figures on ``decode_stats``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from ....errors import UserError
from ..command import Row
from .fault import InjectedFault
from .rig import Rig
from .trial import THREADS, Trial, run_trial

GROWTH_MB = 16.0  # of a program, from the first to the last quarter; less counts as flat
FEW = 16  # samples; with fewer, nothing is compared
LAST = 15.0  # s for the last decisions to end
WARM_UP = 0.1  # of the samples, which are not counted: caches fill


class Samples:
    """Memory and threads of each program over the soak; one that was started anew begins anew."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)

    def take(self, rig: Rig) -> None:
        """What the programs hold now."""
        for name, (pid, threads, megabytes) in rig.resources().items():
            self._taken[name, pid].append((threads, megabytes))

    def growth(self) -> dict[str, tuple[int, float]]:
        """By program: how many more threads and MB the last quarter had than the first."""
        found: dict[str, tuple[int, float]] = {}
        for (name, _), samples in self._taken.items():
            first, last = quarters(samples)
            threads = max(t for t, _ in last) - max(t for t, _ in first)
            more = statistics.median(m for _, m in last) - statistics.median(m for _, m in first)
            before = found.get(name, (0, 0.0))
            found[name] = (max(threads, before[0]), max(more, before[1]))
        return found


def quarters(
    samples: Sequence[tuple[int, float]],
) -> tuple[Sequence[tuple[int, float]], Sequence[tuple[int, float]]]:
    """The first and the last quarter after the warm-up; both all of them where there are few."""
    warm = samples[int(WARM_UP * len(samples)) :]
    size = len(warm) // 4 if len(samples) >= FEW else 0
    return (warm[:size], warm[-size:]) if size else (samples, samples)


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
        rig.ros.wait_for(lambda: not rig.watch.unaccounted, "the last decisions end", LAST)
    samples.take(rig)
    problems += [f"decision {request} never ended" for request in rig.watch.unaccounted]
    for name, (threads, more) in samples.growth().items():
        if threads > THREADS:
            problems.append(f"{name} has {threads} more threads")
        if more > GROWTH_MB:
            problems.append(f"{name} has grown by {more:.1f} MB")
    return _row(rig, done, problems, samples)


def _row(rig: Rig, done: Sequence[Trial], problems: Sequence[str], samples: Samples) -> Row:
    for problem in problems:
        print(f"soak: {problem}", file=sys.stderr, flush=True)
    growth = samples.growth()
    times = [trial.recovery_s for trial in done if trial.recovery_s is not None]
    return {
        "fault": "soak",
        "trials": len(done),
        "unverified_motions": sum(len(trial.unverified) for trial in done),
        "standstill_s_max": max((trial.standstill_s for trial in done), default=0.0),
        "base_stands_s_max": max((trial.base_stands_s for trial in done), default=0.0),
        "recovered": len(times) == len(done),
        "recovery_s_max": max(times, default=None),
        "decisions": len(rig.watch.begun),
        "unaccounted": len(rig.watch.unaccounted),
        "respawned": "; ".join(rig.respawned),
        **{f"{name}_threads_grown": threads for name, (threads, _) in growth.items()},
        **{f"{name}_mb_grown": more for name, (_, more) in growth.items()},
        "problems": "; ".join(problems),
        "passed": bool(done) and not problems,
    }
