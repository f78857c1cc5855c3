"""``bench pipelines --regime embedded``: the embedded pair's own passes, over an emulated link.

The cloud is a process of its own, reached over gRPC through a proxy that delays messages. Every
preset has a robot of its own; all decode the same requests, which no model was trained on, in turn.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from ....decoding.policy import SamplingPolicy, seeded_rule
from ....decoding.preset import Preset
from ....edge.client import ClientSettings, VerifierClient
from ....edge.rounds import Round
from ....edge.runner import DecodeRunner, DecodeSettings, Outcome
from ....errors import UserError
from ....models import EMBEDDED
from ....models.load import load
from ....models.prompt import Request
from ....models.vlm import Vlm
from ....presets import load_preset
from ....share import rules_text
from ...harness.emulated_link import LinkProfile
from ...harness.proxy import Proxy
from ...harness.robot import PATIENCE
from ...harness.verifier_process import VerifierProcess
from ..acceptance import ChoiceShares
from ..command import Row
from ..options import CHANGES, check_counts
from ..requests import sample_requests
from .measured import MeasuredAnswers

ANSWERS = 10
MAX_TOKENS = 48
BASELINE = "cloud_ar"

Policies = Sequence[SamplingPolicy]


def embedded_rows(args: argparse.Namespace, presets: Sequence[Preset]) -> list[Row]:
    """A row a round-trip time and preset; the first is always ``cloud_ar``."""
    _check(args)
    links = [LinkProfile(rtt / 2, args.jitter, args.rate, *args.outage) for rtt in args.rtt]
    presets = [load_preset(BASELINE), *(preset for preset in presets if preset.name != BASELINE)]
    requests = sample_requests(args.seed, args.answers + 1)
    seeds = range(args.seed, args.seed + len(requests))
    policies = [SamplingPolicy(args.temperature, seed=seed) for seed in seeds]
    drafter = load(EMBEDDED / "drafter", threads=1)
    target, beside = str(EMBEDDED / "target"), str(EMBEDDED / "drafter")
    options = ["--target", target, "--drafter", beside, "--threads", "1"]
    rows: list[Row] = []
    with VerifierProcess([*options, "--max-tokens", str(MAX_TOKENS)]) as cloud:
        for profile in links:
            with closing(Proxy(cloud.address, profile, args.seed)) as proxy:
                robots = [
                    EmbeddedRobot(preset, drafter, proxy.address, profile) for preset in presets
                ]
                _decode(robots, requests, policies)
                for robot in robots:
                    robot.close()
            rows += [_row(robot, robots[0], 2 * profile.delay_ms, policies) for robot in robots]
    return rows


def _check(args: argparse.Namespace) -> None:
    """UserError where an option does not apply to real models."""
    if args.regime != "embedded":
        raise UserError("--regime embedded goes alone: the others are scripted")
    if args.harness != "grpc":
        raise UserError("--regime embedded computes, which takes real time; add --harness grpc")
    if not args.rtt:
        raise UserError("--regime embedded has no link of its own; give --rtt MS")
    if given := [name for name in (*CHANGES, "tokens", "out") if getattr(args, name) is not None]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(f"{flags}: only where models are scripted; not with --regime embedded")
    args.answers = ANSWERS if args.answers is None else args.answers
    check_counts(args, "answers")


class EmbeddedRobot:
    """Decodes under one preset, over a channel of its own, and measures its idle time."""

    def __init__(self, preset: Preset, model: Vlm, address: str, profile: LinkProfile) -> None:
        self.preset = preset
        self.outcomes: list[Outcome] = []
        self.windows = 0.0  # seconds from an answer's first verdict to its last, of all answers
        self.robot_s = self.cloud_s = 0.0  # of passes in them
        self._passes: list[tuple[float, float]] = []  # begin and end, of the draft model's
        self._patience = PATIENCE + profile.outage_s
        self._client = VerifierClient(ClientSettings(address))
        self._runner = DecodeRunner(model, model.spec(rules_text(), MAX_TOKENS))
        self._runner.on_pass = lambda begin, end, *_: self._passes.append((begin, end))
        self._before = ChoiceShares()

    def warm_up(self, request: Request, policy: SamplingPolicy) -> None:
        """Decode without a record; measurements of link and models are kept."""
        self._run(request, policy)
        self._before = ChoiceShares.of(self._runner.measures)

    def decode(self, request: Request, policy: SamplingPolicy) -> None:
        """The next answer."""
        outcome = self._run(request, policy)
        self.outcomes.append(outcome)
        if outcome.stats.rounds:
            self._add_busy_time(outcome.stats.rounds)

    @property
    def choices(self) -> ChoiceShares:
        """How often the draft model's choices were right in the recorded answers."""
        return ChoiceShares.of(self._runner.measures) - self._before

    def close(self) -> None:
        """End the channel."""
        self._client.close()

    def _run(self, request: Request, policy: SamplingPolicy) -> Outcome:
        rule = seeded_rule(policy.temperature)
        settings = DecodeSettings(self.preset, rule, policy, patience=self._patience)
        self._passes.clear()
        return self._runner.run(request, settings, secrets.randbits(64), self._client.connect)

    def _add_busy_time(self, rounds: Sequence[Round]) -> None:
        """From the first verdict on: before it both prefill, for a time that no message carries."""
        begin, end = rounds[0].settled, rounds[-1].settled
        self.windows += end - begin
        self.cloud_s += sum(r.verify_s for r in rounds[1:])
        self.robot_s += sum(max(0.0, min(b, end) - max(a, begin)) for a, b in self._passes)


def _decode(
    robots: Sequence[EmbeddedRobot], requests: Sequence[Request], policies: Policies
) -> None:
    """Every request by every robot in turn, so that all see the same load of this machine."""
    for number, (request, policy) in enumerate(zip(requests, policies, strict=True)):
        for place, robot in enumerate(robots):
            # Cloud and robot cache the last pictures and prompts by the JPEG's bytes, so each robot
            # gets other bytes; those after the picture's end are not decoded.
            own = replace(request, jpeg=request.jpeg + bytes([place]))
            if number:
                robot.decode(own, policy)
            else:
                robot.warm_up(own, policy)


def _row(robot: EmbeddedRobot, baseline: EmbeddedRobot, rtt_ms: float, policies: Policies) -> Row:
    expected = [outcome.tokens for outcome in baseline.outcomes]
    equal = sum(
        o.completed and o.tokens == t for o, t in zip(robot.outcomes, expected, strict=True)
    )
    idle = [
        1 - s / robot.windows if robot.windows else None for s in (robot.robot_s, robot.cloud_s)
    ]
    done = MeasuredAnswers(robot.outcomes, equal, *idle)
    speedup = (
        done.tokens_per_s
        / MeasuredAnswers(baseline.outcomes, len(expected), None, None).tokens_per_s
    )
    print(f"{robot.preset.name} at {rtt_ms:g} ms: {speedup:.2f}", file=sys.stderr)
    return {
        "regime": "embedded",
        "preset": robot.preset.name,
        "rule": seeded_rule(policies[0].temperature),
        "rtt_ms": rtt_ms,
        "harness": "grpc",
        **done.row(),
        "speedup": speedup,
        "first_choice": robot.choices.first.value,
        "second_choice": robot.choices.second.value,
        "answers": len(expected),
        "passed": equal == len(expected),
    }
