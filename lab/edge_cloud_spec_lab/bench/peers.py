"""``bench peers``: tokens per second compared with transformers' own ways to generate.

These are its plain generate, its assisted generate and its prompt lookup. Prints tokens per second,
and their ratios to the best of these. Same weights, pictures and prompts, one thread per process,
in turn within one run. Every request has its own picture, whose vision pass and prefill are part of
all times.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Request

from ..harness.grpc_robot import GrpcRobot, verifier_options
from ..harness.reference import generate, load_reference
from ..harness.server import VerifierProcess
from ..tokens import ANSWER_TOKENS
from .command import Options, Row
from .decodes import in_turn, sample_cases
from .options import check_counts
from .passes import timed

Timed = tuple[tuple[int, ...], float]  # an answer, and its time in s
PEER_PRESETS = ("cloud_ar", "cloud_lookup", "cloud_sd", "dsd")
OPTIONS: Options = {
    "--requests": {"type": int, "default": 24, "help": "(default %(default)s)"},
    "--target": {"default": str(EMBEDDED / "target")},
    "--drafter": {"default": str(EMBEDDED / "drafter")},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per peer."""
    check_counts(args, "requests")
    ours, draft_model = load(args.target, threads=1), load(args.drafter, threads=1)
    spec = ours.spec(ANSWER_TOKENS)
    model, assistant = (load_reference(each, ours) for each in (args.target, args.drafter))
    _prepare(assistant, model)
    options: dict[str, dict[str, Any]] = {
        "transformers generate": {},
        "transformers assisted": {"assistant_model": assistant},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
    }

    def theirs(chosen: dict[str, Any], request: Request, policy: SamplingPolicy) -> Timed:
        return timed(lambda: generate(model, ours.prompt(request, spec), spec, policy, **chosen))

    def over_grpc(name: str, request: Request, policy: SamplingPolicy) -> Timed:
        settings = DecodeSettings(load_preset(name), policy=policy)
        return timed(lambda: robot.decode(request, settings).tokens)

    served = verifier_options(args.target, args.drafter)
    with VerifierProcess(served) as cloud, GrpcRobot(cloud.address, draft_model, spec) as robot:
        decodes = {name: partial(theirs, chosen) for name, chosen in options.items()}
        decodes |= {name: partial(over_grpc, name) for name in PEER_PRESETS}
        found = in_turn(decodes, sample_cases(args.seed, args.requests + 1))
    speeds = {
        name: statistics.median(len(answer) / seconds for answer, seconds in answers)
        for name, answers in found.items()
    }
    own = [answer for answer, _ in found["transformers generate"]]
    return [
        {
            "name": name,
            "tokens_per_s": speeds[name],
            "tokens_equal": sum(a == b for (a, _), b in zip(answers, own, strict=True)) / len(own),
            "over_best_peer": speeds[name] / max(speeds[peer] for peer in options),
        }
        for name, answers in found.items()
    ]


def _prepare(assistant: Any, model: Any) -> None:
    """Prepare assisted generation, with drafts as long as ``dsd``'s."""
    size = model.config.text_config.vocab_size
    if assistant.config.text_config.vocab_size != size:
        # a draft model whose padding differs is refused there; ours crops instead
        assistant.resize_token_embeddings(size, mean_resizing=False)
    assistant.generation_config.update(
        num_assistant_tokens=load_preset("dsd").draft_length,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
