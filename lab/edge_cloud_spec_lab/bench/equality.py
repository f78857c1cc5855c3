"""``bench equality``: whether answers over gRPC equal the target's.

Prints, for ``greedy`` and ``coupled``, how many answers equal the target's token by token; for
``rejection`` the chi-square test of many answers to a few prompts against as many that transformers
samples from the target.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from edge_cloud_spec.cloud.command import ANY
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.edge.decode_options import DecodeOptions, DecodeSettings
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED, VLLM
from edge_cloud_spec.models.checkpoint import checkpoint_directory
from edge_cloud_spec.models.draft_head import has_head
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.models.passes.layer import QUANTIZATIONS
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import Dialect
from edge_cloud_spec.nav.history import HistorySpec
from edge_cloud_spec.options import arguments
from edge_cloud_spec.pilot.memory import MissionMemory
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.request import Request
from edge_cloud_spec.share import path_of

from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.reference import generate, load_reference, sample
from ..harness.server import VerifierProcess
from ..tokens import ANSWER_TOKENS
from .chi_square import compare
from .command import Options, Row
from .decodes import acceptance
from .options import check_counts
from .requests import sample_questions, sample_requests, text_requests

SAMPLED_TOKENS = 6  # of an answer that is compared by distribution
SAMPLED_PROMPTS = 2
MISSION = 12  # decisions of a mission, with --history


OPTIONS: Options = {
    "--prompts": {
        "type": int,
        "default": 200,
        "help": "with pictures, or of text if the target reads text alone (%(default)s)",
    },
    **arguments(DecodeOptions(max_tokens=ANSWER_TOKENS), "max_tokens", "temperature"),
    "--samples": {"type": int, "default": 300, "help": "of each prompt under rejection"},
    "--presets": {"default": "all", "help": "names with commas (%(default)s verified)"},
    "--target": {
        "default": str(EMBEDDED / "target"),
        "help": "if it has a head, that drafts in the cloud",
    },
    "--engine": {"default": "", "help": f"{VLLM}http://HOST:PORT of a vLLM server of the target"},
    "--drafter": {"default": str(EMBEDDED / "drafter")},
    "--quantize": {"choices": QUANTIZATIONS, "default": "none", "help": "of the drafter"},
    "--tokenizer": {"default": "", "help": "of a drafter openai:URL: a checkpoint's directory"},
    "--model": {"default": "", "help": "of a drafter openai:URL: what the server calls it"},
    "--history": {"type": int, "default": 0, "help": "earlier frames in a prompt (%(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per preset and rule."""
    check_counts(args, "prompts")
    if args.samples < 0:
        raise UserError("--samples is 0 or more")
    presets = _presets(args.presets)
    if args.engine and args.presets == "all":  # before vLLM there is no draft model in the cloud
        presets = [preset for preset in presets if preset.drafter != "cloud"]
    target = load(args.target, threads=1)
    reference, spec = load_reference(args.target, target), target.spec(args.max_tokens)
    try:
        history = HistorySpec(args.history)
    except ValueError as error:
        raise UserError(f"--history: {error}") from None
    dialect = replace(ours(), history=history)
    rows: list[Row] = []
    own_head = not args.engine and has_head(checkpoint_directory(args.target))
    in_cloud = args.drafter if path_of(args.drafter).is_dir() and not own_head else ""
    here = DraftModelSettings(device="cpu", dtype="float32", tokenizer=args.tokenizer)
    here = replace(here, path=args.drafter, name=args.model, quantize=args.quantize)
    drafter = load_drafter(here)
    options = verifier_options(args.target, in_cloud, args.engine)
    options += ["--max-tokens", str(args.max_tokens)]
    if not target.reads_pictures:
        options += ["--dialect", ANY]
    with (
        VerifierProcess(options) as cloud,
        GrpcRobot(cloud.address, drafter, spec) as robot,
    ):
        for rule, temperature in (("greedy", 0.0), ("coupled", args.temperature)):
            cases = _own(args, temperature, reference, target, spec, dialect)
            for preset in presets:
                done = [robot.decode(r, DecodeSettings(preset, rule, p)) for r, p, _ in cases]
                equal = [
                    outcome.completed and outcome.tokens == own
                    for outcome, (_, _, own) in zip(done, cases, strict=True)
                ]
                failed = sum(not outcome.completed for outcome in done)
                row = _row(preset, rule, temperature, args.prompts, done)
                rows.append(row | {"failed": failed, "equal": sum(equal)})
        if args.samples:
            rows += _by_distribution(args, presets, reference, target, spec, robot)
    return rows


def _own(
    args: argparse.Namespace,
    temperature: float,
    reference: Any,
    target: Vlm,
    spec: PromptSpec,
    dialect: Dialect,
) -> list[tuple[Request, SamplingPolicy, tuple[int, ...]]]:
    """Requests, each with the target's own answer: of missions, or of text."""
    cases: list[tuple[Request, SamplingPolicy, tuple[int, ...]]] = []

    def answer(r: Request) -> str:
        policy = SamplingPolicy(temperature, seed=args.seed + len(cases))
        cases.append((r, policy, generate(reference, target.prompt(r, spec), spec, policy)))
        return str(target.tokenizer.decode(cases[-1][-1], skip_special_tokens=True))

    if not target.reads_pictures:
        for r in text_requests(args.seed, args.prompts):
            answer(r)
        return cases
    memory, first, history = MissionMemory(), 0, dialect.history
    asked = sample_questions(args.seed, args.prompts)
    for number, question in enumerate(asked):
        first = first if number % MISSION and history.frames else number
        begun, turns = asked[first], memory.turns(str(first), history)
        text = answer(dialect.request(begun.instruction, question.jpeg, begun.order, turns))
        memory.add(str(first), history, question.jpeg, text)
    return cases


def _row(
    preset: Preset, rule: str, temperature: float, prompts: int, done: Sequence[Outcome]
) -> Row:
    return {
        "preset": preset.name,
        "lookup": preset.lookup,
        "rule": rule,
        "temperature": temperature,
        "prompts": prompts,
        "tokens": (tokens := sum(len(outcome.tokens) for outcome in done)),
        "acceptance": acceptance(done) or 0.0,
        "tokens_per_round": tokens / max(1, sum(len(each.stats.rounds) for each in done)),
        "tokens_per_s": tokens / sum(outcome.seconds for outcome in done),
    }


def _presets(names: str) -> list[Preset]:
    chosen = preset_names() if names == "all" else names.split(",")
    presets = [load_preset(name) for name in chosen]
    unverified = [preset.name for preset in presets if not preset.verified]
    if unverified and names != "all":
        raise UserError(
            f"{', '.join(unverified)}: unverified output equals no target's; leave it out"
        )
    return [preset for preset in presets if preset.verified]


def _by_distribution(
    args: argparse.Namespace,
    presets: Iterable[Preset],
    reference: Any,
    target: Vlm,
    spec: PromptSpec,
    robot: GrpcRobot,
) -> Iterator[Row]:
    """Compare the first tokens of many answers with the target's samples."""
    sampled = sample_requests if target.reads_pictures else text_requests
    requests = sampled(args.seed, args.prompts)[:SAMPLED_PROMPTS]
    policy = SamplingPolicy(args.temperature, seed=args.seed)
    own = [
        (i, tokens)
        for i, request in enumerate(requests)
        for tokens in sample(
            reference, target.prompt(request, spec), spec, policy, args.samples, SAMPLED_TOKENS
        )
    ]
    for preset in presets:
        done = [
            (i, robot.decode(request, DecodeSettings(preset, "rejection", drawn, SAMPLED_TOKENS)))
            for i, request in enumerate(requests)
            for each in range(args.samples)
            for drawn in [replace(policy, seed=args.seed + 1_000 * i + each)]
        ]
        test = compare([(i, outcome.tokens) for i, outcome in done], own)
        outcomes = [outcome for _, outcome in done]
        yield _row(preset, "rejection", args.temperature, len(requests), outcomes) | {
            "samples": len(done),
            "exact": preset.exact,
            **asdict(test),
        }
