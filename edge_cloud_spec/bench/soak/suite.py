"""``bench soak``: answer after answer for an hour, over a link with outages; nothing may be lost

and nothing may be left. In virtual time, or in real time over gRPC.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
from contextlib import closing
from dataclasses import asdict
from random import Random

import numpy as np

from ...cloud.sessions import WorkerLimits
from ...decoding.policy import GREEDY, SamplingPolicy
from ...decoding.preset import Preset
from ...errors import UserError
from ...harness.regimes import Regime
from ...presets import load_preset, preset_names
from ..command import Row
from ..leaks import ResourceUse, resident_mb, resource_use
from ..options import HARNESSES, Harness, add_harness_arguments, profile_of, regimes_of
from .message_counts import MessageCounts, discrepancies, total

SECONDS = {"virtual": 3_600.0, "grpc": 600.0}
REGIME = "pico-qwen-gsm8k"
FAST = {"draft_ms": 3.0, "verify_ms": 9.0, "ar_ms": 9.0, "alpha": 0.7}  # many answers in real time
GROWTH_MB = 8.0  # from the first to the last quarter: what passes for flat
TEMPERATURE = 0.8  # of every other turn, under the coupled rule
KEEP_S = 5.0  # a session outlives its stream so long, and the outage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--seconds", type=float, help="(3600; over gRPC 600)")
    parser.add_argument("--tokens", type=int, nargs=2, default=[200, 1_000], help="least and most")
    parser.add_argument("--presets", help="with commas (all that are verified)")
    parser.add_argument(
        "--regime", help=f"one, or custom ({REGIME}; over gRPC one with passes of 3 and 9 ms)"
    )
    parser.add_argument("--rtt", type=float, help="ms, in place of the regime's")
    add_harness_arguments(parser)
    parser.set_defaults(jitter=30.0, outage=(60.0, 2.0))


def run(args: argparse.Namespace) -> list[Row]:
    """A row a preset, and one of all with the books, the memory and what is left."""
    seconds = SECONDS[args.harness] if args.seconds is None else args.seconds
    least, most = args.tokens
    if seconds <= 0 or not 1 <= least <= most:
        raise UserError("--seconds is above 0, --tokens are LEAST and MOST of 1 or more")
    names = args.presets.split(",") if args.presets else preset_names()
    presets = [preset for preset in map(load_preset, names) if preset.verified]
    regimes = _regimes(args)
    if len(regimes) != 1 or not presets:
        raise UserError("one --regime, please, and --presets that ask the cloud")
    threads = set(threading.enumerate())
    rows, failures = _soak(args, regimes[0], presets, seconds)
    gc.collect()  # gRPC's own thread ends with the last of its objects
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    failures += [f"the thread {name} is left" for name in left]
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    rows[-1] |= {"threads_left": len(left), "passed": not failures}
    common = {"harness": args.harness, "regime": regimes[0].name}
    return [common | row for row in rows]


def _regimes(args: argparse.Namespace) -> list[Regime]:
    """What is asked for, else one that gives many answers in the time."""
    if args.regime or any(getattr(args, name) is not None for name in FAST):
        return regimes_of(args, args.rtt)
    if args.harness == "virtual":
        args.regime = REGIME
    else:
        vars(args).update(FAST)
        args.rtt = 20.0 if args.rtt is None else args.rtt
    return regimes_of(args, args.rtt)


def _soak(
    args: argparse.Namespace, regime: Regime, presets: list[Preset], seconds: float
) -> tuple[list[Row], list[str]]:
    """The rows, and what failed."""
    profile = profile_of(args, regime)
    limits = WorkerLimits(keep_s=KEEP_S + profile.outage_s)
    with closing(HARNESSES[args.harness](regime, profile, args.seed, limits)) as there:
        soak = Soak(there, presets, tuple(args.tokens), args.seed, limits)
        soak.go_on(seconds)
        return [*soak.by_preset(), soak.all()], soak.failures(lossless=not profile.outage_s)


class Soak:
    """Decodes one after another on one robot, one cloud and one link, and keeps the books."""

    def __init__(
        self,
        there: Harness,
        presets: list[Preset],
        tokens: tuple[int, int],
        seed: int,
        limits: WorkerLimits,
    ) -> None:
        self._there, self._presets, self._tokens = there, presets, tokens
        self._seed, self._keep_s = seed, limits.keep_s
        self._random = Random(seed)
        self._count = 0
        self.accounts = {preset.name: MessageCounts() for preset in presets}
        self.memory: list[tuple[float, float]] = []  # seconds, MB
        self._decode(presets[0], self._tokens[0])
        self._settle()
        self.before: ResourceUse = resource_use(there)
        self.after = self.before

    def go_on(self, seconds: float) -> None:
        """Decode until so much time has passed, and take stock."""
        there, start, told = self._there, self._there.clock(), 0
        while (passed := there.clock() - start) < seconds:
            self._decode(self._next(), self._random.randint(*self._tokens))
            self.memory.append((passed, resident_mb()))
            if 10 * passed // seconds > told:
                told = int(10 * passed // seconds)
                print(f"{passed:.0f} of {seconds:g} s, {self._count} answers", file=sys.stderr)
        self._settle()
        self.after = resource_use(there)

    def by_preset(self) -> list[Row]:
        """A row for each."""
        return [
            {"preset": name, **_figures(account), "passed": account.equal == account.answers}
            for name, account in self.accounts.items()
        ]

    def all(self) -> Row:
        """All of them together, with the cloud's books and what has grown."""
        first, last = self._quarters()
        return {
            "preset": "all",
            **_figures(total(self.accounts.values())),
            **{f"cloud_{name}": count for name, count in asdict(self._there.worker.tally).items()},
            "memory_first_mb": first,
            "memory_last_mb": last,
            **{f"{name}_grown": more for name, more in self.after.growth(self.before).items()},
        }

    def failures(self, lossless: bool) -> list[str]:
        """What was lost, does not add up, or is left; empty where all is well."""
        tally = self._there.worker.tally
        found = discrepancies(total(self.accounts.values()), tally, lossless)
        first, last = self._quarters()
        if last > first + GROWTH_MB:
            found.append(f"memory grew from {first:.0f} to {last:.0f} MB")
        growth = self.after.growth(self.before)
        return found + [f"{more} more {name}" for name, more in growth.items() if more > 0]

    def _next(self) -> Preset:
        return self._presets[self._count % len(self._presets)]

    def _decode(self, preset: Preset, tokens: int) -> None:
        seed = self._seed + self._count
        coupled = self._count // len(self._presets) % 2
        policy = SamplingPolicy(TEMPERATURE, seed=seed) if coupled else GREEDY
        self._count += 1
        answer = self._there.robot.decode(preset, tokens, seed, policy)
        self.accounts[preset.name].enter(answer, preset)
        if not answer.equal:
            outcome = answer.outcome
            print(f"{preset.name}, seed {seed}: {outcome.reason} {outcome.text}", file=sys.stderr)

    def _settle(self) -> None:
        """Until the cloud holds no session. One whose end was lost goes when another begins."""
        for _ in range(5):
            self._there.rest(1.0)
            if not self._there.worker.sessions:
                return
            self._there.rest(self._keep_s)
            self._decode(self._next(), self._tokens[0])

    def _quarters(self) -> tuple[float, float]:
        """Mean memory of the first and of the last quarter of the time, in MB."""
        times, sizes = np.array(self.memory).T
        quarter = times[-1] / 4
        return float(sizes[times <= quarter].mean()), float(sizes[times >= 3 * quarter].mean())


def _figures(account: MessageCounts) -> Row:
    return {
        "answers": account.answers,
        "equal": account.equal,
        "tokens": account.tokens,
        "tokens_per_s": account.tokens / account.seconds if account.seconds else 0.0,
        "rounds": account.rounds,
        "resumed": account.resumed,
        "drafts_sent": account.sent,
        "stale": account.stale,
    }
