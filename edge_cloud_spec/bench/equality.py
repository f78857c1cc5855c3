"""``bench equality``: the tokens that come over the link are the target's own."""

from __future__ import annotations

import argparse
import secrets

from ..cloud.process import VerifierProcess
from ..decoding.policy import SamplingPolicy
from ..decoding.preset import load_preset
from ..edge.link import Link, LinkSettings
from ..edge.runner import DecodeRunner, DecodeSettings
from ..models import EMBEDDED
from ..models.load import load
from ..share import rules_text
from .command import Row
from .reference import generate, load_reference
from .requests import sample_requests

MAX_TOKENS = 48


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--prompts", type=int, default=200, help="with pictures (%(default)s)")
    parser.add_argument("--presets", default="dsd,cloud_sd,cloud_ar", help="(%(default)s)")
    parser.add_argument("--target", default=str(EMBEDDED / "target"))
    parser.add_argument("--drafter", default=str(EMBEDDED / "drafter"))
    parser.add_argument("--temperature", type=float, default=0.8, help="of the coupled rule")


def run(args: argparse.Namespace) -> list[Row]:
    """A row a preset and rule: how many answers equal the target's to the last token."""
    target = load(args.target, threads=1)
    reference = load_reference(args.target, target)
    spec = target.spec(rules_text(), MAX_TOKENS)
    runner = DecodeRunner(load(args.drafter), spec)
    requests = sample_requests(args.seed, args.prompts)
    rows = []
    options = ["--target", args.target, "--drafter", args.drafter, "--threads", "1"]
    with VerifierProcess([*options, "--max-tokens", str(MAX_TOKENS)]) as cloud:
        link = Link(LinkSettings(cloud.address))
        for rule, temperature in (("greedy", 0.0), ("coupled", args.temperature)):
            policies = [
                SamplingPolicy(temperature, seed=args.seed + i) for i in range(len(requests))
            ]
            own = [
                generate(reference, target.prompt(request, spec), spec, policy)
                for request, policy in zip(requests, policies, strict=True)
            ]
            for name in args.presets.split(","):
                preset = load_preset(name)
                equal = tokens = drafted = accepted = 0
                for i, (request, policy) in enumerate(zip(requests, policies, strict=True)):
                    settings = DecodeSettings(preset, rule, policy)
                    nonce = secrets.randbits(64)
                    outcome = runner.run(request, settings, nonce, link.connect)
                    equal += outcome.completed and outcome.tokens == own[i]
                    tokens += len(outcome.tokens)
                    drafted += outcome.ledger.tested
                    accepted += outcome.ledger.accepted
                rows.append(
                    {
                        "preset": name,
                        "rule": rule,
                        "temperature": temperature,
                        "prompts": len(requests),
                        "equal": equal,
                        "tokens": tokens,
                        "acceptance": accepted / drafted if drafted else 0.0,
                    }
                )
        link.close()
    return rows
