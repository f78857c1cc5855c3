"""``bench equality``: whether what is decoded over gRPC is the target's own output.

Prints, for ``greedy`` and ``coupled``, how many answers equal the target's token by token; for
``rejection`` the chi-square test of many answers to a few prompts against as many that transformers
samples from the target.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...decoding.policy import SamplingPolicy
from ...decoding.preset import Preset
from ...edge.runner import DecodeSettings, Outcome
from ...errors import UserError
from ...models import EMBEDDED
from ...models.load import load
from ...models.prompt import PromptSpec, Request
from ...models.vlm import Vlm
from ...presets import load_preset, preset_names
from ...share import rules_text
from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.server import VerifierProcess
from .chi_square import compare
from .command import Options, Row
from .reference import generate, load_reference, sample
from .requests import sample_requests

MAX_TOKENS = 48
SAMPLED_TOKENS = 6  # of an answer that is compared by distribution
SAMPLED_PROMPTS = 2


OPTIONS: Options = {
    "--prompts": {"type": int, "default": 200, "help": "with pictures (%(default)s)"},
    "--samples": {"type": int, "default": 300, "help": "of each prompt under rejection"},
    "--presets": {"default": "all", "help": "names with commas (%(default)s verified)"},
    "--target": {"default": str(EMBEDDED / "target")},
    "--drafter": {"default": str(EMBEDDED / "drafter")},
    "--temperature": {"type": float, "default": 0.8, "help": "of coupled and rejection"},
    "--lookup": {"action": "store_true", "help": "all presets look up, too"},
}


@dataclass
class EqualityBench:
    """Both sides of the comparison: transformers' target, and a robot."""

    target: Vlm
    reference: Any
    spec: PromptSpec
    robot: GrpcRobot


def run(args: argparse.Namespace) -> list[Row]:
    """A row a preset and rule."""
    presets = [replace(p, lookup=p.lookup or args.lookup) for p in _presets(args.presets)]
    target = load(args.target, threads=1)
    spec = target.spec(rules_text(), MAX_TOKENS)
    requests = sample_requests(args.seed, args.prompts)
    rows = []
    options = verifier_options(MAX_TOKENS, args.target, args.drafter)
    with (
        VerifierProcess(options) as cloud,
        GrpcRobot(cloud.address, load(args.drafter), spec) as robot,
    ):
        bench = EqualityBench(target, load_reference(args.target, target), spec, robot)
        for rule, temperature in (("greedy", 0.0), ("coupled", args.temperature)):
            policies = [
                SamplingPolicy(temperature, seed=args.seed + i) for i in range(len(requests))
            ]
            rows += _token_by_token(bench, presets, rule, requests, policies)
        if args.samples:
            rows += _by_distribution(bench, presets, requests[:SAMPLED_PROMPTS], args)
    return rows


def _presets(names: str) -> list[Preset]:
    chosen = preset_names() if names == "all" else names.split(",")
    presets = [load_preset(name) for name in chosen]
    unverified = [preset.name for preset in presets if not preset.verified]
    if unverified and names != "all":
        raise UserError(
            f"{', '.join(unverified)}: unverified output equals no target's; leave it out"
        )
    return [preset for preset in presets if preset.verified]


def _token_by_token(
    bench: EqualityBench,
    presets: Iterable[Preset],
    rule: str,
    requests: Sequence[Request],
    policies: Sequence[SamplingPolicy],
) -> list[Row]:
    """How many answers equal the target's to the last token."""
    cases = list(zip(requests, policies, strict=True))
    own = [
        generate(bench.reference, bench.target.prompt(request, bench.spec), bench.spec, policy)
        for request, policy in cases
    ]
    rows = []
    for preset in presets:
        done = [bench.robot.decode(r, DecodeSettings(preset, rule, policy)) for r, policy in cases]
        rows.append(
            {
                "preset": preset.name,
                "lookup": preset.lookup,
                "rule": rule,
                "temperature": policies[0].temperature,
                "prompts": len(done),
                "equal": sum(o.completed and o.tokens == t for o, t in zip(done, own, strict=True)),
                "tokens": sum(len(outcome.tokens) for outcome in done),
                "acceptance": _acceptance(done),
            }
        )
    return rows


def _by_distribution(
    bench: EqualityBench,
    presets: Iterable[Preset],
    requests: Sequence[Request],
    args: argparse.Namespace,
) -> list[Row]:
    """The first tokens of many answers beside the target's own samples."""
    own = [
        (i, tokens)
        for i, request in enumerate(requests)
        for tokens in sample(
            bench.reference,
            bench.target.prompt(request, bench.spec),
            bench.spec,
            SamplingPolicy(args.temperature, seed=args.seed),
            args.samples,
            SAMPLED_TOKENS,
        )
    ]
    rows = []
    for preset in presets:
        done = []
        found = []
        for i, request in enumerate(requests):
            for each in range(args.samples):
                policy = SamplingPolicy(args.temperature, seed=args.seed + 1_000 * i + each)
                settings = DecodeSettings(preset, "rejection", policy, SAMPLED_TOKENS)
                done.append(bench.robot.decode(request, settings))
                found.append((i, done[-1].tokens))
        test = compare(found, own)
        rows.append(
            {
                "preset": preset.name,
                "lookup": preset.lookup,
                "rule": "rejection",
                "temperature": args.temperature,
                "prompts": len(requests),
                "samples": len(found),
                "chi_square": test.chi_square,
                "freedom": test.freedom,
                "p_value": test.p_value,
                "exact": preset.exact,
                "tokens": sum(len(outcome.tokens) for outcome in done),
                "acceptance": _acceptance(done),
            }
        )
    return rows


def _acceptance(done: Sequence[Outcome]) -> float:
    tested = sum(outcome.stats.tested for outcome in done)
    return sum(outcome.stats.accepted for outcome in done) / tested if tested else 0.0
