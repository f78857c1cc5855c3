"""``bench peers``: tokens per second beside transformers' own ways to generate.

These are its plain generate, its assisted generate and its prompt lookup. Prints tokens per second,
and their ratios to the best of these and to its prompt lookup. Same weights, pictures and prompts,
one thread a process, taken in turn within one run. Every request has a picture of its own, whose
vision pass and prefill are part of everyone's time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...decoding.policy import SamplingPolicy
from ...edge.runner import DecodeSettings
from ...errors import UserError
from ...models import EMBEDDED
from ...models.load import load
from ...models.prompt import Request
from ...presets import load_preset
from ...share import rules_text
from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.random_checkpoint import make_pair
from ..harness.server import VerifierProcess
from .command import Options, Row
from .decodes import Decode, in_turn, sample_cases
from .reference import generate, load_reference

PRESETS = ("cloud_ar", "cloud_lookup", "cloud_sd", "dsd")


SHAPES = ("embedded", "0.1B/0.5B")  # of two models
OPTIONS: Options = {
    "--shapes": {"default": ",".join(SHAPES), "help": "(default %(default)s)"},
    "--requests": {"type": int, "default": 24, "help": "of the embedded pair"},
    "--large-requests": {"type": int, "default": 4, "help": "of the larger pair"},
    "--gamma": {"type": int, "default": 4, "help": "draft length of all draft models"},
    "--lookup": {"type": int, "default": 10, "help": "tokens of transformers' lookup"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a peer and shape."""
    rows: list[Row] = []
    shapes = args.shapes.split(",")
    if not set(shapes) <= set(SHAPES):
        raise UserError(f"--shapes are of {', '.join(SHAPES)}, not {args.shapes}")
    for shape in shapes:
        if shape == "embedded":
            target, drafter = (str(EMBEDDED / name) for name in ("target", "drafter"))
            rows += _compare(shape, target, drafter, args.requests, 48, args)
            continue
        # Random weights: passes cost and drafts are right about as much as with trained ones.
        with tempfile.TemporaryDirectory() as folder:
            target, drafter = map(str, make_pair(Path(folder), agreement=0.8))
            rows += _compare(shape, target, drafter, args.large_requests, 32, args)
    return rows


def _compare(
    shape: str, target: str, drafter: str, requests: int, tokens: int, args: argparse.Namespace
) -> list[Row]:
    """tokens: the maximum length of an answer."""
    ours, draft_model = load(target, threads=1), load(drafter, threads=1)
    spec = ours.spec(rules_text(), tokens)
    model, assistant = load_reference(target, ours), load_reference(drafter, ours)
    _prepare(assistant, model, args.gamma)
    options: dict[str, dict[str, Any]] = {
        "transformers generate": {},
        "transformers assisted": {"assistant_model": assistant},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": args.lookup},
    }

    def theirs(name: str, request: Request, policy: SamplingPolicy) -> tuple[int, ...]:
        return generate(model, ours.prompt(request, spec), spec, policy, **options[name])

    def over_grpc(name: str, request: Request, policy: SamplingPolicy) -> tuple[int, ...]:
        preset = load_preset(name)
        if preset.draft_length:
            preset = replace(preset, draft_length=args.gamma)
        return robot.decode(request, DecodeSettings(preset, policy=policy)).tokens

    served = verifier_options(tokens, target, drafter)
    with VerifierProcess(served) as cloud, GrpcRobot(cloud.address, draft_model, spec) as robot:
        decodes = {name: partial(_timed, partial(theirs, name)) for name in options}
        decodes |= {name: partial(_timed, partial(over_grpc, name)) for name in PRESETS}
        found = in_turn(decodes, sample_cases(args.seed, requests + 1))
    speeds = {
        name: statistics.median(len(answer) / seconds for answer, seconds in answers)
        for name, answers in found.items()
    }
    own = [answer for answer, _ in found["transformers generate"]]
    return [
        {
            "name": name,
            "shape": shape,
            "tokens_per_s": speeds[name],
            "tokens_equal": sum(a == b for (a, _), b in zip(answers, own, strict=True)) / requests,
            "over_best_peer": speeds[name] / max(speeds[peer] for peer in options),
            "over_prompt_lookup": speeds[name] / speeds["transformers prompt lookup"],
        }
        for name, answers in found.items()
    ]


def _timed(
    decode: Decode[tuple[int, ...]], request: Request, policy: SamplingPolicy
) -> tuple[tuple[int, ...], float]:
    """The answer, and the seconds that it took."""
    started = time.perf_counter()
    return decode(request, policy), time.perf_counter() - started


def _prepare(assistant: Any, model: Any, gamma: int) -> None:
    """Prepare assisted generation, with drafts of ``gamma`` tokens."""
    size = model.config.text_config.vocab_size
    if assistant.config.text_config.vocab_size != size:
        # a draft model whose padding differs is refused there; ours crops instead
        assistant.resize_token_embeddings(size, mean_resizing=False)
    assistant.generation_config.update(
        num_assistant_tokens=gamma,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
