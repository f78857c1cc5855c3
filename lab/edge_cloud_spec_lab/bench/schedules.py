"""``bench schedules``: short decodes over a link that cuts, loses, repeats and reorders messages.

Prints how many decodes of each preset and rule were wrong, hung or failed. Tokens, candidates and
tail tokens are so few that rare branches are common. First come every single fault and every pair
of faults, at every message; then random ones. What the robot emits as verified must be a prefix of
the cloud's answer (under ``greedy`` and ``coupled``, of the target's), and every decode must end.
With ``--target`` the models are those of a checkpoint, and its caches are evicted at any time.
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

from edge_cloud_spec.decoding.policy import GREEDY, RULES, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.errors import UserError, refuse
from edge_cloud_spec.models.checkpoint import checkpoint_directory
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.wire.messages import COMPLETE, Close

from ..harness.checkpoint_models import CheckpointModels
from ..harness.toy import spec_of
from ..harness.virtual_decode import MESSAGE_FAULTS, Conditions, Decode, Form
from ..harness.virtual_time import Hung
from .command import Options, Row
from .options import check_counts

COUNTS = (
    "schedules",
    "wrong",
    "hung",
    "failed",
    "timeout",
    "resumed",
    "diverged",
    "fallbacks",
    "evicted",
)
COLUMNS = {name: name for name in ("preset", "rule", *COUNTS)}
# Virtual time, longer than any outage or delay: only a lost message reaches it.
SCHEDULE_REPLY_TIMEOUT_S = 100.0
MAX_FAULTS = 5  # of a random schedule, beside the hand-overs
# Cuts come twice as often.
ON_THE_WAY = (*(fault for fault in MESSAGE_FAULTS if fault != "moved"), "cut")
SEARCHED = 100  # decodes, for one in which a dense row of P is requested
SCHEDULES_PER_BATCH = 250  # random schedules that a process takes at a time
MAX_PRINTED = 20  # failed schedules

MILD = Conditions(jitter=0.1, draft_pass=0.1)
ONE_PICTURE = Form()


@dataclass(frozen=True)
class Schedule:
    """One decode with the faults of its messages; all else follows from ``seed``."""

    preset: str
    rule: str
    seed: int
    faults: tuple[tuple[int, str], ...] = ()
    tokens: int = 4
    vocabulary: int = 4
    tiny: bool = True
    ahead: int = 0  # drafts beyond the one that is verified; 0: as many as the preset says
    conditions: Conditions = MILD
    form: Form = ONE_PICTURE  # of the request
    known: bool = False  # whether the first verifier keeps its turns but the last
    target: str = ""  # a checkpoint's directory, and its draft model's; empty: toy models
    drafter: str = ""


@dataclass(frozen=True)
class ScheduleResult:
    """The result of a schedule. ``verdict``: empty if nothing is wrong, else one of COUNTS."""

    verdict: str
    why: str
    messages: int
    counts: Counter[str]


OPTIONS: Options = {
    "--schedules": {"type": int, "default": 150_000, "help": "random ones (%(default)s)"},
    "--presets": {"help": "with commas (all that are verified)"},
    "--skip-pairs": {"action": "store_true", "help": "random ones alone"},
    "--target": {
        "default": "",
        "help": "decode random ones by this checkpoint, and compare with transformers' generate",
    },
    "--drafter": {"default": "", "help": "of it (default: the target drafts itself)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per preset and rule."""
    check_counts(args, "schedules")
    refuse((args.drafter and not args.target, "--drafter is of a --target: give that, too"))
    names = args.presets.split(",") if args.presets else preset_names()
    presets = [name for name in names if load_preset(name).verified]
    if not presets:
        raise UserError("give --presets that use the cloud")
    models = ("", "")
    if args.target:
        target = str(checkpoint_directory(args.target))
        models = target, str(checkpoint_directory(args.drafter or args.target))
    counts: dict[Case, Counter[str]] = {
        (preset, rule): Counter() for preset in presets for rule in RULES
    }
    printed = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        paired = [] if args.skip_pairs or args.target else counts
        batches = [pool.submit(all_faults, *case, args.seed) for case in paired]
        batches += [
            pool.submit(
                random_faults,
                presets,
                args.seed,
                range(first, min(first + SCHEDULES_PER_BATCH, args.schedules)),
                models,
            )
            for first in range(0, args.schedules, SCHEDULES_PER_BATCH)
        ]
        for batch in batches:
            for case, found, failures in batch.result():
                counts[case].update(found)
                for failure in failures[: max(0, MAX_PRINTED - printed)]:
                    print(f"FAILED: {failure}", file=sys.stderr)
                printed += len(failures)
    return [
        {"preset": preset, "rule": rule}
        | {name: found[name] for name in COUNTS}
        | {"passed": not (found["wrong"] or found["hung"] or found["failed"])}
        for (preset, rule), found in counts.items()
    ]


_preset = cache(load_preset)
Case = tuple[str, str]  # preset and rule
Batch = list[tuple[Case, Counter[str], list[str]]]


def all_faults(preset: str, rule: str, seed: int) -> Batch:
    """Run every single fault and every pair of faults, at every message of two decodes.

    The second decode requests a dense P, if the preset can do that.
    """
    plain = Schedule(preset, rule, seed)
    candidates = (replace(plain, seed=seed + number) for number in range(1, SEARCHED))
    with_row = next((each for each in candidates if run_schedule(each).counts["fallbacks"]), None)
    both = [plain, with_row or replace(plain, seed=seed + 1)]
    return count_results(chain.from_iterable(map(single_and_paired_faults, both)))


def single_and_paired_faults(plain: Schedule) -> Iterator[tuple[Schedule, ScheduleResult]]:
    """Run schedules with no fault, each fault, and each pair; a fault may cause more messages."""
    unfaulted = run_schedule(plain)
    yield plain, unfaulted
    for first in range(unfaulted.messages):
        for kind in MESSAGE_FAULTS:
            once = replace(plain, faults=((first, kind),))
            single = run_schedule(once)
            yield once, single
            for second in range(first + 1, single.messages):
                for other in MESSAGE_FAULTS:
                    twice = replace(plain, faults=((first, kind), (second, other)))
                    yield twice, run_schedule(twice)


def random_faults(
    presets: list[str], seed: int, numbers: range, models: tuple[str, str] = ("", "")
) -> Batch:
    """Run the random schedules with these numbers; models: the checkpoints of target and drafter,
    or empty."""
    schedules = (random_schedule(presets, seed, number) for number in numbers)
    if models[0]:
        schedules = (of_checkpoints(schedule, *models) for schedule in schedules)
    return count_results((schedule, run_schedule(schedule)) for schedule in schedules)


def random_schedule(presets: list[str], seed: int, number: int) -> Schedule:
    """A random schedule, determined by seed and number."""
    random = Random(f"{seed} {number}")
    tokens = random.choice((1, 2, 4, 8, 16))
    messages = random.sample(range(4 + 3 * tokens), random.randint(0, MAX_FAULTS))
    rule = random.choice((*RULES, "rejection"))  # which has the most branches
    if rule == "rejection" and random.random() < 0.5:  # the most where the robot resamples
        presets = [name for name in presets if _preset(name).split_of(rule)] or presets
    weights = [3 if _preset(name).drafter == "cloud" else 1 for name in presets]  # verdicts differ
    schedule = Schedule(
        random.choices(presets, weights)[0],
        rule,
        random.getrandbits(32),
        tuple((message, random.choice(ON_THE_WAY)) for message in sorted(messages)),
        tokens,
        random.choice((3, 7, 12)),
        random.random() < 0.8,
        random.choice((0, 0, 1, 16)),
        Conditions(
            delay=random.choice((0.0, 0.05, 0.4)),
            jitter=random.choice((0.0, 0.1, 0.5)),
            reordered=random.random() < 0.3,
            duplicated=random.choice((0.0, 0.0, 0.3)),
            cuts=random.choice((0.0, 0.0, 0.5)),
            outage=random.choice((0.0, 0.3, 1.0)),
            cloud_job=random.choice((0.0, 0.02, 0.2)),
            draft_pass=random.choice((0.01, 0.03, 0.1, 0.3)),
        ),
    )
    schedule = with_hand_overs(schedule, random)
    form = Form(random.choice((0, 1, 3)), random.choice((0, 1, 1, 3)), random.random() < 0.5)
    return replace(schedule, form=form, known=random.random() < 0.5)


def of_checkpoints(schedule: Schedule, target: str, drafter: str) -> Schedule:
    """The schedule with models of these directories, whose caches are evicted at any time."""
    evictions = Random(f"{schedule.seed} evictions").choice((0.0, 0.1, 0.5))
    conditions = replace(schedule.conditions, evictions=evictions)
    return replace(schedule, target=target, drafter=drafter, conditions=conditions)


def with_hand_overs(schedule: Schedule, random: Random) -> Schedule:
    """The schedule with moves to the other verifier and back, after some verified words or none."""
    faults = dict(schedule.faults) if random.random() < 0.5 else {}
    for _ in range(random.choice((0, 1, 1, 2))):
        first = random.randrange(3 + 2 * schedule.tokens)
        faults |= {first: "moved", first + random.randint(1, 8): "moved"}
    conditions = schedule.conditions
    if random.random() < 0.3:  # between any two messages, a dozen times
        conditions = replace(conditions, cuts=random.choice((1.0, 3.0)), moves=0.8)
    return replace(schedule, faults=tuple(sorted(faults.items())), conditions=conditions)


def count_results(results: Iterable[tuple[Schedule, ScheduleResult]]) -> Batch:
    """Count results by preset and rule, and collect the schedules that failed."""
    batch: dict[Case, tuple[Counter[str], list[str]]] = {}
    for schedule, result in results:
        found, failed = batch.setdefault((schedule.preset, schedule.rule), (Counter(), []))
        found.update(result.counts, schedules=1)
        if result.verdict:
            found[result.verdict] += 1
        if result.verdict not in ("", "timeout"):
            failed.append(f"{result.verdict}: {result.why}; {schedule}")
    return [(case, *each) for case, each in batch.items()]


def run_schedule(schedule: Schedule) -> ScheduleResult:
    """Decode a schedule, and compare the emitted tokens with the cloud's."""
    decode = decode_of(schedule)
    try:
        finish = decode.run()
    except Hung as hung:
        return ScheduleResult("hung", str(hung), decode.faults.messages, Counter())
    messages = decode.faults.messages
    decode.settle()
    stats = decode.decoder.stats
    counts = Counter(
        resumed=stats.resumed,
        diverged=stats.diverged,
        fallbacks=stats.fallbacks,
        evicted=decode.evicted,
    )
    wrong = mismatch(decode)
    if wrong:
        return ScheduleResult("wrong", wrong, messages, counts)
    if finish.reason in COMPLETE:
        return ScheduleResult("", "", messages, counts)
    given_up = finish.reason == "timeout" and decode.faults.left_out
    verdict = "timeout" if given_up else "failed"
    return ScheduleResult(verdict, f"{finish.reason} {finish.text}", messages, counts)


def decode_of(schedule: Schedule) -> Decode:
    """The decode of a schedule, ready to run."""
    random = Random(schedule.seed)
    preset = _preset(schedule.preset)
    if preset.speculation.ahead:  # drafts for unlikely predictions as well
        ahead = schedule.ahead or preset.speculation.ahead
        preset = replace(preset, speculation=replace(preset.speculation, least=0.0, ahead=ahead))
    rule = schedule.rule
    temperature = {"greedy": 0.0, "coupled": 0.9, "rejection": 1.0}[rule]
    policy = SamplingPolicy(temperature, seed=schedule.seed) if temperature else GREEDY
    models = None
    if schedule.target:
        pass_s = schedule.conditions.draft_pass
        models = CheckpointModels(schedule.target, schedule.drafter, schedule.tokens, pass_s)
    return Decode(
        random,
        tiny(preset) if schedule.tiny else preset,
        rule,
        policy,
        conditions=schedule.conditions,
        seed=schedule.seed,
        draft_noise=random.choice((0.5, 1.5, 5.0)),
        reply_timeout=SCHEDULE_REPLY_TIMEOUT_S,
        spec=spec_of(schedule.tokens, schedule.vocabulary),
        faults=dict(schedule.faults),
        form=schedule.form,
        known=schedule.known,
        models=models,
    )


def tiny(preset: Preset) -> Preset:
    """The preset with very short drafts and residuals, so that they often do not suffice."""
    if preset.draft_length:
        preset = replace(preset, draft_length=2)
    return replace(preset, residual_top_k=1, residual_tail=1)


def mismatch(decode: Decode) -> str:
    """How the emitted tokens differ from the cloud's; empty if they do not."""
    emitted, finish = decode.emitted, decode.outcome
    assert finish is not None
    closing = decode.sent[-1]
    answers = [tuple(held.tokens) for held in decode.sessions]
    answers += [brought for brought, _ in decode.brought]
    # Where the Close or Open was lost, the cloud lacks the token that the robot resampled last.
    may_lack = isinstance(closing, Close) and closing.resampled is not None
    claims = [(brought, held, True) for brought, held in decode.brought]
    for tokens, held, last_may_lack in (*claims, (tuple(emitted), answers, may_lack)):
        if not any(_agree(tokens, answer, last_may_lack) for answer in held or [()]):
            return f"{tokens} was emitted, the cloud holds {held}"
    if decode.settings.rule == "rejection":
        return ""
    own, end = decode.own_answer()
    completed = finish.reason in COMPLETE
    if emitted != own[: len(emitted)] or (completed and (emitted != own or finish.reason != end)):
        return f"{emitted} was emitted ({finish.reason}), the target says {own} ({end})"
    return ""


def _agree(emitted: tuple[int, ...], held: tuple[int, ...], last_may_lack: bool) -> bool:
    """Whether the emitted tokens are a prefix of the cloud's, except for a last token that may be
    missing."""
    known = emitted[:-1] if last_may_lack and len(emitted) > len(held) else emitted
    return known == held[: len(known)]
