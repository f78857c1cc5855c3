"""``bench pipelines``: each preset under the published regimes, in virtual or in real time.

Prints tokens per second and speed-up over the target alone, beside the papers' formulas and
results. Robot, cloud and codec are the real ones; models are scripted: they cost what a regime says
and agree as often. With ``--regime embedded`` the models are the embedded pair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from ...decoding.policy import GREEDY, SamplingPolicy
from ...decoding.preset import Preset
from ...edge.measures import Round
from ...edge.runner import DecodeSettings, Outcome
from ...errors import UserError
from ...models import EMBEDDED
from ...models.prompt import Request
from ...models.vlm import Vlm
from ...presets import load_preset
from ...share import rules_text
from ..harness.emulated_link import LinkProfile
from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.proxy import Proxy
from ..harness.regimes import Regime
from ..harness.server import VerifierProcess
from ..harness.virtual import PATIENCE, seeded_rule
from . import formulas
from .acceptance import ChoiceShares, cache_hits
from .command import Options, Row
from .decodes import acceptance, in_turn, sample_cases
from .options import (
    CHANGES,
    COST_OPTIONS,
    HARNESSES,
    check_counts,
    finite,
    profile_of,
    regimes_of,
    take_link,
)


@dataclass(frozen=True)
class MeasuredAnswers:
    """Answers of one preset; ``equal`` of them are token by token the target's.

    Idle is the share of the time in which that side's model computed nothing.
    """

    outcomes: Sequence[Outcome]
    equal: int
    robot_idle: float | None
    cloud_idle: float | None

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def tokens(self) -> int:
        return sum(len(outcome.tokens) for outcome in self.outcomes)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def rounds(self) -> list[Round]:
        return [r for outcome in self.outcomes for r in outcome.stats.rounds]

    def row(self) -> Row:
        """The fields of a row that need no other preset's answers."""
        rounds, stats = len(self.rounds), [outcome.stats for outcome in self.outcomes]
        hit = cache_hits(self.rounds).value
        return {
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_round": self.tokens / rounds,
            "acceptance": acceptance(self.outcomes),
            "cache_miss": None if hit is None else 1 - hit,
            "robot_idle": self.robot_idle,
            "cloud_idle": self.cloud_idle,
            "up_bytes_mean": sum(one.up_bytes for one in stats) / rounds,
            "down_bytes_mean": sum(one.down_bytes for one in stats) / rounds,
            "resumed": sum(one.resumed for one in stats),
            "equal": self.equal,
        }


def formula_speedup(regime: Regime, preset: str) -> float | None:
    """The paper's own formula with these costs, over the target alone."""
    length, draft, verify, rtt = regime.gamma, regime.draft_ms, regime.verify_ms, regime.rtt_ms
    tokens = formulas.expected_tokens(regime.alpha, length)
    if preset == "dsd":
        return tokens * regime.ar_ms / formulas.stop_and_wait_time(length, draft, rtt, verify)
    if preset == "fsd" and regime.exit_hit:
        miss = 1 - regime.exit_hit
        return tokens * regime.ar_ms / formulas.fsd_time(length, draft, rtt, verify, miss)
    if preset == "picospec":
        time = formulas.picospec_time(length, draft, rtt, verify, regime.alpha)
        return tokens * regime.ar_ms / time
    return None


def published_speedup(regime: Regime, preset: str) -> float | None:
    """The paper's measurement, over the target alone."""
    published = regime.published
    found = {
        "dsd": published.get("ar_to_sd", published.get("vanilla")),
        "fsd": published.get("ar_to_fsd"),
        "picospec": published.get("picospec"),
    }
    if preset == "fsd" and found["fsd"] is None and "sd_to_fsd" in published:
        return published["ar_to_sd"] * published["sd_to_fsd"]
    return found.get(preset)


EMBEDDED_ANSWERS = 10
MAX_TOKENS = 48
BASELINE = "cloud_ar"


def embedded_rows(args: argparse.Namespace, presets: Sequence[Preset]) -> list[Row]:
    """A row a round-trip time and preset; the first is always ``cloud_ar``."""
    from ...models.load import load  # torch, which scripted models do without

    _check_embedded(args)
    links = [profile_of(args, rtt / 2) for rtt in args.rtt]
    presets = [load_preset(BASELINE), *(preset for preset in presets if preset.name != BASELINE)]
    cases = sample_cases(args.seed, args.answers + 1, args.temperature)
    drafter = load(EMBEDDED / "drafter", threads=1)
    rows: list[Row] = []
    with VerifierProcess(verifier_options(MAX_TOKENS)) as cloud:
        for profile in links:
            with closing(Proxy(cloud.address, profile, args.seed)) as proxy, ExitStack() as stack:
                robots = [
                    EmbeddedRobot(preset, drafter, proxy.address, profile) for preset in presets
                ]
                for robot in robots:
                    stack.callback(robot.close)
                found = in_turn({robot.preset.name: robot.answer for robot in robots}, cases)
            own = found[BASELINE]
            rows += [
                _embedded_row(name, done, own, profile.rtt_ms, args.temperature)
                for name, done in found.items()
            ]
    return rows


def _check_embedded(args: argparse.Namespace) -> None:
    """UserError where an option does not apply to real models."""
    if args.regime != "embedded":
        raise UserError("--regime embedded goes alone: the others are scripted")
    if args.harness != "grpc":
        raise UserError("--regime embedded computes, which takes real time; add --harness grpc")
    if not args.rtt:
        raise UserError("--regime embedded has no link of its own; give --rtt MS or --link")
    if given := [name for name in (*CHANGES, "tokens") if getattr(args, name) is not None]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(f"{flags}: only where models are scripted; not with --regime embedded")
    args.answers = EMBEDDED_ANSWERS if args.answers is None else args.answers
    check_counts(args, "answers")


@dataclass(frozen=True)
class EmbeddedAnswer:
    """An answer, and how long the models were busy from its first to its last verdict.

    ``window_s`` is that time; before it both prefill, for a time that no message carries.
    """

    outcome: Outcome
    choices: ChoiceShares
    window_s: float
    robot_s: float
    cloud_s: float


class EmbeddedRobot(GrpcRobot):
    """Decodes under one preset, over a channel of its own, and measures its idle time."""

    def __init__(self, preset: Preset, model: Vlm, address: str, profile: LinkProfile) -> None:
        self.preset = preset
        self._passes: list[tuple[float, float]] = []  # begin and end, of the draft model's
        self._patience = PATIENCE + profile.longest_outage_s
        super().__init__(address, model, model.spec(rules_text(), MAX_TOKENS))
        self.runner.on_pass = lambda begin, end, *_: self._passes.append((begin, end))

    def answer(self, request: Request, policy: SamplingPolicy) -> EmbeddedAnswer:
        """The next one; measurements of link and models are kept."""
        rule, before = seeded_rule(policy.temperature), ChoiceShares.of(self.runner.measures)
        self._passes.clear()
        settings = DecodeSettings(self.preset, rule, policy, patience=self._patience)
        outcome = self.decode(request, settings)
        verdicts = [r.settled for r in outcome.stats.rounds] or [0.0]
        begin, end = verdicts[0], verdicts[-1]
        return EmbeddedAnswer(
            outcome,
            ChoiceShares.of(self.runner.measures) - before,
            end - begin,
            sum(max(0.0, min(b, end) - max(a, begin)) for a, b in self._passes),
            sum(r.verify_s for r in outcome.stats.rounds[1:]),
        )


def _embedded_row(
    name: str,
    done: Sequence[EmbeddedAnswer],
    own: Sequence[EmbeddedAnswer],
    rtt_ms: float,
    temperature: float,
) -> Row:
    """own: the answers of the baseline to the same requests."""
    outcomes, expected = ([each.outcome for each in answers] for answers in (done, own))
    pairs = zip(outcomes, expected, strict=True)
    equal = sum(ours.completed and ours.tokens == theirs.tokens for ours, theirs in pairs)
    window = sum(each.window_s for each in done)
    busy = sum(each.robot_s for each in done), sum(each.cloud_s for each in done)
    idle = [1 - seconds / window if window else None for seconds in busy]
    answers = MeasuredAnswers(outcomes, equal, *idle)
    speed = MeasuredAnswers(expected, len(own), None, None).tokens_per_s
    choices = sum((each.choices for each in done), ChoiceShares())
    print(f"{name} at {rtt_ms:g} ms: {answers.tokens_per_s / speed:.2f}", file=sys.stderr)
    return {
        "regime": "embedded",
        "preset": name,
        "rule": seeded_rule(temperature),
        "rtt_ms": rtt_ms,
        "harness": "grpc",
        **answers.row(),
        "speedup": answers.tokens_per_s / speed,
        "first_choice": choices.first.value,
        "second_choice": choices.second.value,
        "answers": len(own),
        "passed": equal == len(own),
    }


EMBEDDED_PAIR = "embedded"  # in place of a regime's name
PRESETS = "cloud_ar,dsd,fsd,picospec,specedge,auto"
SIZES = {"virtual": (1_000, 3), "grpc": (150, 1)}  # tokens of an answer, answers
# The fields that a terminal shows, with their headings; --json has all.
COLUMNS = {
    "regime": "regime",
    "preset": "preset",
    "rtt_ms": "rtt ms",
    "tokens_per_s": "tokens/s",
    "speedup": "speedup",
    "formula_speedup": "formula",
    "published": "published",
    "cache_miss": "miss",
    "first_choice": "1st choice",
    "second_choice": "2nd choice",
    "passed": "equal",
    "real_over_virtual": "real/virtual",
}


OPTIONS: Options = {
    "--regime": {
        "help": "names with commas, custom (custom if its costs are given, else all), or embedded: "
        "not scripted, but the embedded pair's own passes; with --harness grpc and --rtt"
    },
    "--presets": {"default": PRESETS, "help": "(%(default)s)"},
    "--rtt": {"type": finite, "nargs": "*", "default": [], "help": "ms, in place of its own"},
    "--tokens": {"type": int, "help": "of an answer (1000; over gRPC 150)"},
    "--answers": {"type": int, "help": "of each preset (3; over gRPC 1; embedded 10)"},
    "--temperature": {"type": float, "default": 0.0, "help": "above 0: rule coupled"},
    "--harness": {
        "choices": list(HARNESSES),
        "default": "virtual",
        "help": "virtual time, or real time over gRPC on this machine (%(default)s)",
    },
    **COST_OPTIONS,
    "--jitter": {"type": finite, "metavar": "MS", "help": "of each way"},
    "--rate": {"type": finite, "metavar": "MBIT", "help": "of each way, a s"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a regime, preset and round-trip time."""
    take_link(args)
    if args.link is not None:
        args.rtt = [args.rtt]
    presets = [load_preset(name) for name in args.presets.split(",")]
    if unverified := [preset.name for preset in presets if not preset.verified]:
        raise UserError(f"{', '.join(unverified)} asks no cloud; leave it out of --presets")
    if args.regime and EMBEDDED_PAIR in args.regime.split(","):
        return embedded_rows(args, presets)
    tokens, answers = SIZES[args.harness]
    args.tokens = tokens if args.tokens is None else args.tokens
    args.answers = answers if args.answers is None else args.answers
    check_counts(args, "tokens", "answers")
    return [
        row
        for regimes in zip(*(regimes_of(args, rtt) for rtt in args.rtt or [None]), strict=True)
        for regime in regimes
        for row in _rows(regime, presets, args)
    ]


def _rows(regime: Regime, presets: Sequence[Preset], args: argparse.Namespace) -> list[Row]:
    rows = []
    for preset in presets:
        rows.append(_row(regime, preset, args))
        print(_progress(rows[-1]), file=sys.stderr)
    return rows


def measure(
    harness_name: str, regime: Regime, preset: Preset, args: argparse.Namespace
) -> MeasuredAnswers:
    """One answer after another; the robot keeps its measurements from one to the next."""
    answers = []
    drafts = preset.drafter == "cloud"
    make, profile = HARNESSES[harness_name], profile_of(args, regime.one_way_ms)
    with closing(make(regime, profile, args.seed, cloud_drafts=drafts)) as harness:
        for seed in range(args.seed, args.seed + args.answers):
            policy = SamplingPolicy(args.temperature, seed=seed) if args.temperature else GREEDY
            answers.append(harness.robot.decode(preset, args.tokens, seed, policy))
        seconds = sum(answer.outcome.seconds for answer in answers)
        return MeasuredAnswers(
            [answer.outcome for answer in answers],
            sum(answer.equal for answer in answers),
            1 - harness.robot.busy.total / seconds,
            1 - harness.cloud_busy.total / seconds,
        )


def _row(regime: Regime, preset: Preset, args: argparse.Namespace) -> Row:
    done = measure(args.harness, regime, preset, args)
    row: Row = {
        "regime": regime.name,
        "preset": preset.name,
        "rule": seeded_rule(args.temperature),
        "rtt_ms": regime.rtt_ms,
        "harness": args.harness,
        **done.row(),
        "speedup": done.tokens_per_s * regime.ar_ms / 1e3,
        "formula_speedup": formula_speedup(regime, preset.name),
        "published": published_speedup(regime, preset.name),
    }
    if args.harness != "virtual":
        virtual = measure("virtual", regime, preset, args).tokens_per_s
        row["virtual_tokens_per_s"] = virtual
        row["real_over_virtual"] = done.tokens_per_s / virtual
    return row


def _progress(row: Row) -> str:
    text = f"{row['regime']} {row['preset']} at {row['rtt_ms']:g} ms: {row['speedup']:.2f}"
    if "real_over_virtual" in row:
        text += f", {row['real_over_virtual']:.3f} of the speed in virtual time"
    return text
