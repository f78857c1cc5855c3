"""``bench soak``: answers for an hour over a link with outages; no token lost, no object leaked.

Prints each preset's answers, tokens and messages, and for all of them what the cloud counted and
how memory and live objects have grown. In virtual time, or in real time over gRPC.
"""

from __future__ import annotations

import argparse
import operator
import sys
import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, astuple, dataclass
from random import Random

import numpy as np

from ...cloud.model_thread.sessions import WorkerLimits
from ...cloud.session.counters import Counters
from ...decoding.policy import GREEDY, SamplingPolicy
from ...decoding.preset import Preset
from ...errors import UserError
from ...presets import load_preset, preset_names
from ..harness.regimes import Regime
from ..harness.virtual import DecodedAnswer
from .command import Options, Row
from .leaks import ResourceCounts, count_resources, resident_mb, threads_left
from .options import HARNESS_OPTIONS, HARNESSES, Harness, profile_of, regimes_of, take_link


@dataclass(frozen=True)
class MessageCounts:
    """The robot's sums over answers; the answers themselves are not kept."""

    answers: int = 0
    equal: int = 0
    tokens: int = 0
    emitted: int = 0  # tokens, summed over rounds
    rounds: int = 0
    on_drafts: int = 0  # rounds on a draft, whoever drafted
    sent: int = 0  # drafts
    stale: int = 0
    resumed: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, answer: DecodedAnswer) -> MessageCounts:
        """The counts of one answer."""
        outcome, stats = answer.outcome, answer.outcome.stats
        return cls(
            answers=1,
            equal=int(answer.equal),
            tokens=len(outcome.tokens),
            emitted=sum(r.emitted for r in stats.rounds),
            rounds=len(stats.rounds),
            on_drafts=sum(r.drafted > 0 for r in stats.rounds),
            sent=answer.drafts_sent,
            stale=stats.stale,
            resumed=stats.resumed,
            seconds=outcome.seconds,
        )

    def __add__(self, other: MessageCounts) -> MessageCounts:
        return MessageCounts(*map(operator.add, astuple(self), astuple(other)))


def total(counts: Iterable[MessageCounts]) -> MessageCounts:
    """The sum of all counts."""
    return sum(counts, MessageCounts())


def discrepancies(robot: MessageCounts, cloud: Counters, lossless: bool) -> list[str]:
    """Where robot and cloud disagree after all decodes have ended; ``lossless``: no outages."""
    lost = robot.sent - cloud.drafts
    checks = {
        f"{robot.answers - robot.equal} answers are not the target's own": (
            robot.equal == robot.answers
        ),
        f"rounds emitted {robot.emitted} tokens of {robot.tokens}": robot.emitted == robot.tokens,
        f"{robot.rounds} rounds and {cloud.verdicts} verdicts": robot.rounds == cloud.verdicts,
        f"{robot.on_drafts} rounds on drafts, {cloud.answers.drafts} judged": (
            robot.on_drafts == cloud.answers.drafts
        ),
        f"of {cloud.drafts} drafts that came, {cloud.accounted} are accounted for": (
            cloud.drafts == cloud.accounted
        ),
        f"{lost} drafts of {robot.sent} did not come": lost == 0 or (lost > 0 and not lossless),
        f"{cloud.refused} drafts were refused": cloud.refused == 0,
    }
    return [text for text, holds in checks.items() if not holds]


SECONDS = {"virtual": 3_600.0, "grpc": 600.0}
REGIME = "pico-qwen-gsm8k"
FAST = {"draft_ms": 3.0, "verify_ms": 9.0, "ar_ms": 9.0, "alpha": 0.7}  # many answers in real time
GROWTH_MB = 8.0  # from the first to the last quarter; less counts as flat
TEMPERATURE = 0.8  # of every other round of presets, under the coupled rule
KEEP_S = 5.0  # that a session outlives its stream, beyond an outage


OPTIONS: Options = {
    "--seconds": {"type": float, "help": "(3600; over gRPC 600)"},
    "--tokens": {"type": int, "nargs": 2, "default": [200, 1_000], "help": "least and most"},
    "--presets": {"help": "with commas (all that are verified)"},
    "--regime": {"help": f"one, or custom ({REGIME}; over gRPC one with passes of 3 and 9 ms)"},
    "--rtt": {"type": float, "help": "ms, in place of the regime's"},
    **HARNESS_OPTIONS,
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a preset, and one of all with the cloud's counts, the memory and what has grown."""
    seconds = SECONDS[args.harness] if args.seconds is None else args.seconds
    least, most = args.tokens
    if seconds <= 0 or not 1 <= least <= most:
        raise UserError("--seconds is above 0, --tokens are LEAST and MOST of 1 or more")
    names = args.presets.split(",") if args.presets else preset_names()
    presets = [preset for preset in map(load_preset, names) if preset.verified]
    take_link(args, jitter=30.0, outage=(60.0, 2.0))
    regimes = _regimes(args)
    if len(regimes) != 1 or not presets:
        raise UserError("give one --regime, and --presets that use the cloud")
    threads = set(threading.enumerate())
    profile = profile_of(args, regimes[0].one_way_ms)
    limits = WorkerLimits(keep_s=KEEP_S + profile.longest_outage_s)
    make = HARNESSES[args.harness]
    with closing(make(regimes[0], profile, args.seed, limits, cloud_drafts=True)) as harness:
        soak = Soak(harness, presets, (least, most), args.seed, limits)
        soak.run(seconds)
        rows = [*soak.by_preset(), soak.all()]
        failures = soak.failures(lossless=not profile.longest_outage_s)
    del harness, soak  # or they are what is left
    left = threads_left(threads)
    failures += [f"the thread {name} is left" for name in left]
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    rows[-1] |= {"threads_left": len(left), "passed": not failures}
    return [{"harness": args.harness, "regime": regimes[0].name} | row for row in rows]


def _regimes(args: argparse.Namespace) -> list[Regime]:
    """The regime of the options, else one that gives many answers in the time."""
    if args.regime or any(getattr(args, name) is not None for name in FAST):
        return regimes_of(args, args.rtt)
    if args.harness == "virtual":
        args.regime = REGIME
    else:
        vars(args).update(FAST)
        args.rtt = 20.0 if args.rtt is None else args.rtt
    return regimes_of(args, args.rtt)


class Soak:
    """Decodes answers in turn on one robot, one cloud and one link, and counts their messages."""

    def __init__(
        self,
        harness: Harness,
        presets: list[Preset],
        tokens: tuple[int, int],
        seed: int,
        limits: WorkerLimits,
    ) -> None:
        self._harness, self._presets, self._tokens = harness, presets, tokens
        self._seed, self._keep_s = seed, limits.keep_s
        self._random = Random(seed)
        self._count = 0
        self.counts = {preset.name: MessageCounts() for preset in presets}
        self.memory: list[tuple[float, float]] = []  # seconds, MB
        self._decode(self._tokens[0])
        self._settle()
        self.before: ResourceCounts = count_resources(harness)
        self.after = self.before

    def run(self, seconds: float) -> None:
        """Decode until so much time has passed, then count what is left."""
        harness, start, tenths = self._harness, self._harness.clock(), 0
        while (passed := harness.clock() - start) < seconds:
            self._decode(self._random.randint(*self._tokens))
            self.memory.append((passed, resident_mb()))
            if 10 * passed // seconds > tenths:
                tenths = int(10 * passed // seconds)
                print(f"{passed:.0f} of {seconds:g} s, {self._count} answers", file=sys.stderr)
        self._settle()
        self.after = count_resources(harness)

    def by_preset(self) -> list[Row]:
        """A row for each."""
        return [
            {"preset": name, **_figures(counts), "passed": counts.equal == counts.answers}
            for name, counts in self.counts.items()
        ]

    def all(self) -> Row:
        """All of them together, with the cloud's counts and what has grown."""
        first, last = self._quarters()
        cloud = asdict(self._harness.worker.counters)
        return {
            "preset": "all",
            **_figures(total(self.counts.values())),
            **{f"cloud_{name}": count for name, count in cloud.items()},
            "memory_first_mb": first,
            "memory_last_mb": last,
            **{f"{name}_grown": more for name, more in self.after.growth(self.before).items()},
        }

    def failures(self, lossless: bool) -> list[str]:
        """What was lost, does not agree, or has grown; empty where nothing has."""
        cloud = self._harness.worker.counters
        found = discrepancies(total(self.counts.values()), cloud, lossless)
        first, last = self._quarters()
        if last > first + GROWTH_MB:
            found.append(f"memory grew from {first:.0f} to {last:.0f} MB")
        growth = self.after.growth(self.before)
        return found + [f"{more} more {name}" for name, more in growth.items() if more > 0]

    def _decode(self, tokens: int) -> None:
        """Decode with the next preset; every other turn of all presets under the coupled rule."""
        seed = self._seed + self._count
        coupled, place = divmod(self._count, len(self._presets))
        preset = self._presets[place]
        policy = SamplingPolicy(TEMPERATURE, seed=seed) if coupled % 2 else GREEDY
        self._count += 1
        answer = self._harness.robot.decode(preset, tokens, seed, policy)
        self.counts[preset.name] += MessageCounts.of(answer)
        if not answer.equal:
            outcome = answer.outcome
            print(f"{preset.name}, seed {seed}: {outcome.reason} {outcome.text}", file=sys.stderr)

    def _settle(self) -> None:
        """Wait until the cloud has no session; one whose Close was lost ends at the next Open."""
        for _ in range(5):
            self._harness.rest(1.0)
            if not self._harness.worker.sessions:
                return
            self._harness.rest(self._keep_s)
            self._decode(self._tokens[0])

    def _quarters(self) -> tuple[float, float]:
        """Mean memory of the first and of the last quarter of the time, in MB."""
        times, sizes = np.array(self.memory).T
        quarter = times[-1] / 4
        return float(sizes[times <= quarter].mean()), float(sizes[times >= 3 * quarter].mean())


def _figures(counts: MessageCounts) -> Row:
    return {
        "answers": counts.answers,
        "equal": counts.equal,
        "tokens": counts.tokens,
        "tokens_per_s": counts.tokens / counts.seconds if counts.seconds else 0.0,
        "rounds": counts.rounds,
        "resumed": counts.resumed,
        "drafts_sent": counts.sent,
        "stale": counts.stale,
    }
