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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...decoding.policy import GREEDY
from ...edge.runner import DecodeSettings
from ...models import EMBEDDED
from ...models.load import load
from ...models.prompt import PromptSpec, Request
from ...presets import load_preset
from ...share import rules_text
from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.random_checkpoint import make_pair
from ..harness.server import VerifierProcess
from .command import Options, Row
from .reference import generate, load_reference
from .requests import sample_requests

Decode = Callable[[Request], tuple[int, ...]]


OPTIONS: Options = {
    "--shapes": {"default": "embedded,0.1B/0.5B", "help": "(default %(default)s)"},
    "--requests": {"type": int, "default": 24, "help": "of the embedded pair"},
    "--large-requests": {"type": int, "default": 4, "help": "of the larger pair"},
    "--gamma": {"type": int, "default": 4, "help": "draft length of all draft models"},
    "--lookup": {"type": int, "default": 10, "help": "tokens of transformers' lookup"},
}


@dataclass(frozen=True)
class ModelPair:
    """A target and a draft model; ``tokens`` is the maximum length of an answer."""

    shape: str
    target: str
    drafter: str
    requests: int
    tokens: int


def run(args: argparse.Namespace) -> list[Row]:
    """A row a peer and shape."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in args.shapes.split(","):
            pair = _pair(shape, args, Path(folder))
            rows += _compare(pair, args)
    return rows


def _pair(shape: str, args: argparse.Namespace, folder: Path) -> ModelPair:
    if shape == "embedded":
        target, drafter = str(EMBEDDED / "target"), str(EMBEDDED / "drafter")
        return ModelPair(shape, target, drafter, args.requests, 48)
    # Random weights: passes cost and drafts are right about as much as with trained ones.
    checkpoints = make_pair(folder, agreement=0.8)
    target, drafter = map(str, checkpoints)
    return ModelPair(shape, target, drafter, args.large_requests, 32)


def _compare(pair: ModelPair, args: argparse.Namespace) -> list[Row]:
    target, drafter = load(pair.target, threads=1), load(pair.drafter, threads=1)
    spec = target.spec(rules_text(), pair.tokens)
    options = verifier_options(pair.tokens, pair.target, pair.drafter)
    with VerifierProcess(options) as cloud, GrpcRobot(cloud.address, drafter, spec) as robot:
        peers: dict[str, Decode] = {
            **_transformers(pair, target, spec, args.gamma, args.lookup),
            **{
                name: _ours(robot, name, args.gamma)
                for name in ("cloud_ar", "cloud_lookup", "cloud_sd", "dsd")
            },
        }
        requests = sample_requests(args.seed, pair.requests + 1)
        for decode in peers.values():
            decode(requests[0])  # warm up
        speeds: dict[str, list[float]] = {name: [] for name in peers}
        equal = dict.fromkeys(peers, 0)
        for request in requests[1:]:
            answers: dict[str, tuple[int, ...]] = {}
            for place, (name, decode) in enumerate(peers.items()):
                # the verifier caches the last picture by its bytes; each decode gets other bytes
                own = replace(request, jpeg=request.jpeg + bytes([place]))
                started = time.perf_counter()
                answers[name] = decode(own)
                speeds[name].append(len(answers[name]) / (time.perf_counter() - started))
                equal[name] += answers[name] == answers["transformers generate"]
    medians = {name: statistics.median(speeds[name]) for name in peers}
    best = max(medians[name] for name in peers if "transformers" in name)
    return [
        {
            "name": name,
            "shape": pair.shape,
            "tokens_per_s": medians[name],
            "tokens_equal": equal[name] / pair.requests,
            "over_best_peer": medians[name] / best,
            "over_prompt_lookup": medians[name] / medians["transformers prompt lookup"],
        }
        for name in peers
    ]


def _transformers(
    pair: ModelPair, target: Any, spec: PromptSpec, gamma: int, lookup: int
) -> dict[str, Decode]:
    model, assistant = load_reference(pair.target, target), load_reference(pair.drafter, target)
    if assistant.config.text_config.vocab_size != model.config.text_config.vocab_size:
        # assisted generation refuses a draft whose padding differs; ours crops instead
        assistant.resize_token_embeddings(model.config.text_config.vocab_size, mean_resizing=False)
    assistant.generation_config.num_assistant_tokens = gamma
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0

    def alone(request: Request) -> tuple[int, ...]:
        return generate(model, target.prompt(request, spec), spec, GREEDY)

    def assisted(request: Request) -> tuple[int, ...]:
        prompt = target.prompt(request, spec)
        return generate(model, prompt, spec, GREEDY, assistant_model=assistant)

    def looked_up(request: Request) -> tuple[int, ...]:
        prompt = target.prompt(request, spec)
        return generate(model, prompt, spec, GREEDY, prompt_lookup_num_tokens=lookup)

    return {
        "transformers generate": alone,
        "transformers assisted": assisted,
        "transformers prompt lookup": looked_up,
    }


def _ours(robot: GrpcRobot, name: str, gamma: int) -> Decode:
    preset = load_preset(name)
    if preset.draft_length:
        preset = replace(preset, draft_length=gamma)
    settings = DecodeSettings(preset)
    return lambda request: robot.decode(request, settings).tokens
