"""``bench schedules``: short decodes over a link that cuts, loses, repeats and reorders messages.

Every verified preset and rule, with so few tokens, candidates and tail tokens that the rare
branches are common. First every single fault and every pair of faults, at every message; then
random ones. Whatever the robot emits as verified has to be the beginning of what the cloud holds as
its answer, under ``greedy`` and ``coupled`` the target's own tokens, and every decode has to end.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from random import Random

from ..decoding.policy import GREEDY, SamplingPolicy
from ..decoding.preset import Preset
from ..decoding.rule import RULES
from ..errors import UserError
from ..harness.toy import spec_of
from ..harness.virtual_decode import FAULTS, Decode, Hung, Weather
from ..presets import load_preset, preset_names
from ..wire.messages import Close
from .command import Row
from .options import check_counts

COUNTS = ("schedules", "wrong", "hung", "failed", "timeout", "resumed", "diverged", "fallbacks")
COLUMNS = {name: name for name in ("preset", "rule", *COUNTS)}
PATIENCE = 100.0  # virtual seconds, longer than any weather: for what is lost alone
MAX_FAULTS = 5  # of a random schedule
SEARCHED = 100  # decodes, for one in which all of P is asked for
BATCH = 250  # random schedules that a process takes at a time
MAX_TOLD = 20  # schedules that are told as failures


MILD = Weather(jitter=0.1, draft=0.1)


@dataclass(frozen=True)
class Schedule:
    """One decode and what happens to its messages; all else follows from ``seed``."""

    preset: str
    rule: str
    seed: int
    faults: tuple[tuple[int, str], ...] = ()
    tokens: int = 4
    vocabulary: int = 4
    tiny: bool = True
    ahead: int = 0  # drafts beyond the one that is verified; 0: as many as the preset says
    weather: Weather = MILD

    def __str__(self) -> str:
        return (
            f"{self.preset} {self.rule} seed {self.seed} tokens {self.tokens} "
            f"vocabulary {self.vocabulary} tiny {self.tiny} ahead {self.ahead} "
            f"faults {self.faults} {self.weather}"
        )


@dataclass(frozen=True)
class Fate:
    """How a schedule ended. ``verdict`` is "" where all is well, else one of COUNTS."""

    verdict: str
    why: str
    messages: int
    counts: Counter[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--schedules", type=int, default=150_000, help="random ones (%(default)s)")
    parser.add_argument("--presets", help="with commas (all that are verified)")
    parser.add_argument("--skip-pairs", action="store_true", help="random ones alone")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each preset and rule."""
    check_counts(args, "schedules")
    names = args.presets.split(",") if args.presets else preset_names()
    presets = [name for name in names if load_preset(name).verified]
    if not presets:
        raise UserError("give --presets that ask the cloud")
    counts: dict[tuple[str, str], Counter[str]] = {
        (preset, rule): Counter() for preset in presets for rule in RULES
    }
    told = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        cells = [] if args.skip_pairs else counts
        batches = [pool.submit(systematic, *cell, args.seed) for cell in cells]
        batches += [
            pool.submit(
                at_random, presets, args.seed, range(first, min(first + BATCH, args.schedules))
            )
            for first in range(0, args.schedules, BATCH)
        ]
        for batch in batches:
            for cell, found, failures in batch.result():
                counts[cell].update(found)
                for failure in failures[: max(0, MAX_TOLD - told)]:
                    print(f"FAILED: {failure}", file=sys.stderr)
                told += len(failures)
    return [
        {"preset": preset, "rule": rule}
        | {name: found[name] for name in COUNTS}
        | {"passed": not (found["wrong"] or found["hung"] or found["failed"])}
        for (preset, rule), found in counts.items()
    ]


Batch = list[tuple[tuple[str, str], Counter[str], list[str]]]


def systematic(preset: str, rule: str, seed: int) -> Batch:
    """Every single fault and every pair of faults at every message of two decodes.

    In the second all of P is asked for, where the preset may come to that.
    """
    plain = Schedule(preset, rule, seed)
    asking = (replace(plain, seed=seed + number) for number in range(1, SEARCHED))
    rare = next((one for one in asking if fate(one).counts["fallbacks"]), None)
    both = [plain, rare or replace(plain, seed=seed + 1)]
    return add_up(chain.from_iterable(map(single_and_paired, both)))


def single_and_paired(plain: Schedule) -> Iterator[tuple[Schedule, Fate]]:
    """Without a fault, with each, and with each two; a fault may bring more messages."""
    whole = fate(plain)
    yield plain, whole
    for first in range(whole.messages):
        for kind in FAULTS:
            once = replace(plain, faults=((first, kind),))
            single = fate(once)
            yield once, single
            for second in range(first + 1, single.messages):
                for other in FAULTS:
                    twice = replace(plain, faults=((first, kind), (second, other)))
                    yield twice, fate(twice)


def at_random(presets: list[str], seed: int, numbers: range) -> Batch:
    """The random schedules of these numbers."""
    schedules = (random_schedule(presets, seed, number) for number in numbers)
    return add_up((schedule, fate(schedule)) for schedule in schedules)


def random_schedule(presets: list[str], seed: int, number: int) -> Schedule:
    """The same for the same seed and number."""
    random = Random(f"{seed} {number}")
    tokens = random.choice((1, 2, 4, 8, 16))
    messages = random.sample(range(4 + 3 * tokens), random.randint(0, MAX_FAULTS))
    rule = random.choice((*RULES, "rejection"))  # which has the most branches
    if rule == "rejection" and random.random() < 0.5:  # and most of all where the robot resamples
        presets = [name for name in presets if _preset(name).split_of(rule)] or presets
    return Schedule(
        random.choice(presets),
        rule,
        random.getrandbits(32),
        tuple((message, random.choice((*FAULTS, "cut"))) for message in sorted(messages)),
        tokens,
        random.choice((3, 7, 12)),
        random.random() < 0.8,
        random.choice((0, 0, 1, 16)),
        Weather(
            delay=random.choice((0.0, 0.05, 0.4)),
            jitter=random.choice((0.0, 0.1, 0.5)),
            reordered=random.random() < 0.3,
            duplicated=random.choice((0.0, 0.0, 0.3)),
            losses=random.choice((0.0, 0.0, 0.5)),
            outage=random.choice((0.0, 0.3, 1.0)),
            work=random.choice((0.0, 0.02, 0.2)),
            draft=random.choice((0.01, 0.03, 0.1, 0.3)),
        ),
    )


def add_up(fates: Iterable[tuple[Schedule, Fate]]) -> Batch:
    """Counts by preset and rule, and what failed."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    failures: dict[tuple[str, str], list[str]] = {}
    for schedule, end in fates:
        cell = schedule.preset, schedule.rule
        found = counts.setdefault(cell, Counter())
        found.update(end.counts)
        found["schedules"] += 1
        told = failures.setdefault(cell, [])
        if end.verdict:
            found[end.verdict] += 1
        if end.verdict not in ("", "timeout"):
            told.append(f"{end.verdict}: {end.why}; {schedule}")
    return [(cell, counts[cell], failures[cell]) for cell in counts]


def fate(schedule: Schedule) -> Fate:
    """Decode it and look whether the promise held."""
    decode = decode_of(schedule)
    try:
        finish = decode.run()
    except Hung as hung:
        return Fate("hung", str(hung), decode.messages, Counter())
    messages = decode.messages
    decode.settle()
    ledger = decode.decoder.ledger
    counts = Counter(resumed=ledger.resumed, diverged=ledger.diverged, fallbacks=ledger.fallbacks)
    wrong = what_is_wrong(decode)
    if wrong:
        return Fate("wrong", wrong, messages, counts)
    if finish.reason in ("end", "length"):
        return Fate("", "", messages, counts)
    given_up = finish.reason == "timeout" and decode.left_out
    verdict = "timeout" if given_up else "failed"
    return Fate(verdict, f"{finish.reason} {finish.text}", messages, counts)


def decode_of(schedule: Schedule) -> Decode:
    """The decode of a schedule, ready to run."""
    random = Random(schedule.seed)
    preset = _preset(schedule.preset)
    if preset.speculation.ahead:  # whatever is unlikely is drafted for as well
        told = replace(preset.speculation, least=0.0)
        told = replace(told, ahead=schedule.ahead or told.ahead)
        preset = replace(preset, speculation=told)
    rule = schedule.rule
    temperature = {"greedy": 0.0, "coupled": 0.9, "rejection": 1.0}[rule]
    policy = SamplingPolicy(temperature, seed=schedule.seed) if temperature else GREEDY
    return Decode(
        random,
        tiny(preset) if schedule.tiny else preset,
        rule,
        policy,
        weather=schedule.weather,
        seed=schedule.seed,
        stray=random.choice((0.5, 1.5, 5.0)),
        patience=PATIENCE,
        spec=spec_of(schedule.tokens, schedule.vocabulary),
        faults=dict(schedule.faults),
    )


def _begins(emitted: tuple[int, ...], held: tuple[int, ...], drawn: bool) -> bool:
    settled = emitted[:-1] if drawn and len(emitted) > len(held) else emitted
    return settled == held[: len(settled)]


@cache
def _preset(name: str) -> Preset:
    return load_preset(name)


def tiny(preset: Preset) -> Preset:
    """The preset with so short residuals and drafts that their ends are common."""
    if preset.draft_length:
        preset = replace(preset, draft_length=2)
    return replace(preset, residual_top_k=1, residual_tail=1)


def what_is_wrong(decode: Decode) -> str:
    """How what was emitted is not what the cloud holds; empty where it is."""
    emitted, finish = decode.emitted, decode.finish
    assert finish is not None
    closing = decode.sent[-1]
    drawn = isinstance(closing, Close) and closing.resampled is not None
    # The cloud has not heard of what the robot drew last where its goodbye was lost.
    answers = [tuple(held.tokens) for held in decode.sessions]
    if not any(_begins(tuple(emitted), held, drawn) for held in answers or [()]):
        return f"{emitted} was emitted, the cloud holds {answers}"
    whole = finish.reason in ("end", "length")
    if decode.opening.rule == "rejection":
        return ""
    own, end = decode.own_answer()
    if emitted != own[: len(emitted)] or (whole and (emitted != own or finish.reason != end)):
        return f"{emitted} was emitted ({finish.reason}), the target says {own} ({end})"
    return ""
