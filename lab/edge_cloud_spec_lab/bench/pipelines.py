"""``bench pipelines``: each preset under the published cost profiles, in virtual or real time.

Prints tokens per second and speed-up over the target alone, beside the papers' formulas and
results. Robot, cloud and codec are the real ones; models are scripted, with a cost profile's times
and acceptance. With ``--cost-profile embedded`` the models are the embedded pair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.measures import Round
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Request

from ..harness.cost_profiles import CostProfile
from ..harness.emulated_link import LinkProfile
from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.proxy import Proxy
from ..harness.scripted.model import ScriptedModels
from ..harness.scripted_robot import (
    CLOUD_MTP,
    SCRIPTED_REPLY_TIMEOUT_S,
    ScriptedHarness,
    draft_model_in_cloud,
    lab_preset,
    seeded_rule,
)
from ..harness.server import VerifierProcess
from ..tokens import ANSWER_TOKENS
from . import formulas
from .command import Options, Row
from .decodes import Case, acceptance, cache_hits, in_turn, sample_cases
from .options import (
    BASELINE_PRESET,
    CHANGES,
    COST_OPTIONS,
    check_counts,
    cost_profiles_of,
    finite,
    profile_of,
    take_link,
)


@dataclass(frozen=True)
class MeasuredAnswers:
    """Answers of one preset; ``equal`` of them equal the target's token by token."""

    outcomes: Sequence[Outcome]
    equal: int

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
        hit = cache_hits(self.outcomes)
        return {
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_round": self.tokens / rounds,
            "acceptance": acceptance(self.outcomes),
            "cache_miss": None if hit is None else 1 - hit,
            "up_bytes_mean": sum(one.up_bytes for one in stats) / rounds,
            "down_bytes_mean": sum(one.down_bytes for one in stats) / rounds,
            "resumed": sum(one.resumed for one in stats),
            "equal": self.equal,
        }


def formula_speedup(cost_profile: CostProfile, preset: str) -> float | None:
    """The speed-up over the target alone by the paper's formula with these costs."""
    length, draft, verify, rtt = (
        cost_profile.gamma,
        cost_profile.draft_ms,
        cost_profile.verify_ms,
        cost_profile.rtt_ms,
    )
    times = {
        "dsd": formulas.stop_and_wait_time(length, draft, rtt, verify),
        "picospec": formulas.picospec_time(length, draft, rtt, verify, cost_profile.alpha),
    }
    if cost_profile.exit_hit:
        miss = 1 - cost_profile.exit_hit
        times["fsd"] = formulas.fsd_time(length, draft, rtt, verify, miss)
    if preset not in times:
        return None
    tokens = formulas.expected_tokens(cost_profile.alpha, length)
    return tokens * cost_profile.ar_ms / times[preset]


def published_speedup(cost_profile: CostProfile, preset: str) -> float | None:
    """The speed-up over the target alone that the paper measured."""
    published = cost_profile.published
    found = {
        "dsd": published.get("ar_to_sd", published.get("vanilla")),
        "fsd": published.get("ar_to_fsd"),
        "picospec": published.get("picospec"),
    }
    if preset == "fsd" and found["fsd"] is None and "sd_to_fsd" in published:
        return published["ar_to_sd"] * published["sd_to_fsd"]
    return found.get(preset)


EMBEDDED_ANSWERS = 10


def embedded_rows(args: argparse.Namespace, presets: Sequence[Preset]) -> list[Row]:
    """A row per round-trip time and preset; the first is always ``cloud_ar``."""
    from edge_cloud_spec.models.load import load  # torch, which scripted models do without

    _check_embedded(args)
    links = [profile_of(args, rtt / 2) for rtt in args.rtt]
    presets = [
        load_preset(BASELINE_PRESET),
        *(preset for preset in presets if preset.name != BASELINE_PRESET),
    ]
    cases = sample_cases(args.seed, args.answers + 1, args.temperature)
    drafter = load(EMBEDDED / "drafter", threads=1)
    rows: list[Row] = []
    with VerifierProcess(verifier_options()) as cloud:
        for profile in links:
            with closing(Proxy(cloud.address, profile, args.seed)) as proxy:
                found = _embedded_answers(proxy.address, profile, presets, drafter, cases)
            for name, done in found.items():
                row = _embedded_row(name, done, found[BASELINE_PRESET])
                rows.append({**row, "rtt_ms": profile.rtt_ms})
                _print_progress(rows[-1])
    return rows


def _embedded_answers(
    address: str,
    profile: LinkProfile,
    presets: Sequence[Preset],
    drafter: Vlm,
    cases: Sequence[Case],
) -> dict[str, list[Outcome]]:
    """Each preset's answers, by a separate robot that keeps its measurements of the link."""
    spec, reply_timeout = (
        drafter.spec(ANSWER_TOKENS),
        SCRIPTED_REPLY_TIMEOUT_S + profile.longest_outage_s,
    )
    with ExitStack() as stack:
        robots = {
            preset: stack.enter_context(GrpcRobot(address, drafter, spec)) for preset in presets
        }

        def decode(preset: Preset, request: Request, policy: SamplingPolicy) -> Outcome:
            rule = seeded_rule(policy.temperature)
            settings = DecodeSettings(preset, rule, policy, reply_timeout=reply_timeout)
            return robots[preset].decode(request, settings)

        return in_turn({each.name: partial(decode, each) for each in presets}, cases)


def _check_embedded(args: argparse.Namespace) -> None:
    """Raise UserError if an option does not apply to real models."""
    if args.cost_profile != "embedded":
        raise UserError("--cost-profile embedded goes alone: the others are scripted")
    if not args.rtt:
        raise UserError("--cost-profile embedded has no link of its own; give --rtt MS or --link")
    if given := [name for name in (*CHANGES, "tokens") if getattr(args, name) is not None]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(
            f"{flags}: only where models are scripted; not with --cost-profile embedded"
        )
    args.answers = EMBEDDED_ANSWERS if args.answers is None else args.answers
    check_counts(args, "answers")


def _embedded_row(name: str, done: Sequence[Outcome], own: Sequence[Outcome]) -> Row:
    """own: the answers of the baseline to the same requests."""
    pairs = zip(done, own, strict=True)
    equal = sum(ours.completed and ours.tokens == theirs.tokens for ours, theirs in pairs)
    answers, baseline = MeasuredAnswers(done, equal), MeasuredAnswers(own, len(own))
    return {
        "cost_profile": "embedded",
        "preset": name,
        **answers.row(),
        "speedup": answers.tokens_per_s / baseline.tokens_per_s,
        "answers": len(own),
        "passed": equal == len(own),
    }


PIPELINE_PRESETS = "cloud_ar,dsd,fsd,picospec,specedge,auto"
TOKENS_PER_ANSWER, ANSWERS_PER_PRESET = 1_000, 3  # of an answer; of each preset
# The fields that a terminal shows, with their headings; --json has all.
COLUMNS = {
    "cost_profile": "cost_profile",
    "preset": "preset",
    "rtt_ms": "rtt ms",
    "tokens_per_s": "tokens/s",
    "speedup": "speedup",
    "formula_speedup": "formula",
    "published": "published",
    "cache_miss": "miss",
    "passed": "equal",
}


OPTIONS: Options = {
    "--cost-profile": {
        "help": "names with commas, custom (custom if its costs are given, else all), or embedded: "
        "not scripted, but the embedded pair's own passes in real time; with --rtt"
    },
    "--presets": {"default": PIPELINE_PRESETS, "help": "(%(default)s)"},
    "--rtt": {
        "type": finite,
        "nargs": "*",
        "default": [],
        "help": "ms, in place of the profile's own",
    },
    "--tokens": {"type": int, "help": "of an answer (1000)"},
    "--answers": {"type": int, "help": "of each preset (3; embedded 10)"},
    "--temperature": {"type": float, "default": 0.0, "help": "above 0: rule coupled"},
    **COST_OPTIONS,
    "--jitter": {"type": finite, "metavar": "MS", "help": "of each way"},
    "--rate": {"type": finite, "metavar": "MBIT", "help": "of each way, a s"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per cost profile, preset and round-trip time."""
    take_link(args)
    if args.link is not None:
        args.rtt = [args.rtt]
    presets = [lab_preset(name) for name in args.presets.split(",")]
    if unverified := [preset.name for preset in presets if not preset.verified]:
        raise UserError(f"{', '.join(unverified)} asks no cloud; leave it out of --presets")
    if "embedded" in (args.cost_profile or "").split(","):
        return embedded_rows(args, presets)
    args.tokens = TOKENS_PER_ANSWER if args.tokens is None else args.tokens
    args.answers = ANSWERS_PER_PRESET if args.answers is None else args.answers
    check_counts(args, "tokens", "answers")
    rows = [
        _row(cost_profile, preset, args, draft_model_in_cloud(cost_profile, preset, presets))
        for cost_profiles in zip(
            *(cost_profiles_of(args, rtt) for rtt in args.rtt or [None]), strict=True
        )
        for cost_profile in cost_profiles
        for preset in presets
        if cost_profile.head or preset.name != CLOUD_MTP
    ]
    if not rows:
        raise UserError(f"{CLOUD_MTP} needs a cost profile with a head: give --head")
    return rows


def _row(
    cost_profile: CostProfile, preset: Preset, args: argparse.Namespace, cloud_drafts: bool
) -> Row:
    """Decode one answer after another; the robot keeps its measurements."""
    answers = []
    models = ScriptedModels(cost_profile, cloud_drafts)
    harness = ScriptedHarness(models, profile_of(args, cost_profile.one_way_ms), args.seed)
    for seed in range(args.seed, args.seed + args.answers):
        policy = SamplingPolicy(args.temperature, seed=seed) if args.temperature else GREEDY
        answers.append(harness.robot.decode(preset, args.tokens, seed, policy))
    done = MeasuredAnswers([each.outcome for each in answers], sum(each.equal for each in answers))
    row = {
        "cost_profile": cost_profile.name,
        "preset": preset.name,
        "rule": seeded_rule(args.temperature),
        "rtt_ms": cost_profile.rtt_ms,
        **done.row(),
        "robot_idle": 1 - harness.robot.busy.total / done.seconds,
        "cloud_idle": 1 - harness.link.cloud.busy.total / done.seconds,
        "speedup": done.tokens_per_s * cost_profile.ar_ms / 1e3,
        "formula_speedup": formula_speedup(cost_profile, preset.name),
        "published": published_speedup(cost_profile, preset.name),
    }
    _print_progress(row)
    return row


def _print_progress(row: Row) -> None:
    name = f"{row['cost_profile']} {row['preset']} at {row['rtt_ms']:g} ms"
    print(f"{name}: {row['speedup']:.2f}", file=sys.stderr)
