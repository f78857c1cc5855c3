"""``bench models``: measures a user's pair of checkpoints on the user's pictures.

Both models run here, one after the other. The cost model then says which preset is best over a link
of the given delay and rate, and its speed; a decode of the same pictures over the emulated link
checks that. Several picture limits give a row each, on the same pictures in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_cloud_spec.decoding.cost_model import Costs
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.shape import chain
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.decode_options import DecodeOptions, DecodeSettings
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.drafter import ALL_ROWS
from edge_cloud_spec.models.image import PictureLimits
from edge_cloud_spec.models.llama import LlamaDrafter, LlamaSession, load_llama
from edge_cloud_spec.models.load import DTYPES, load
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.options import arguments
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec.request import Request
from edge_cloud_spec.share import path_of

from ..harness.emulated_link import BYTES_PER_MBIT, LinkProfile
from ..harness.grpc_robot import GrpcRobot
from ..harness.proxy import Proxy
from ..harness.server import VerifierProcess
from ..tokens import ANSWER_TOKENS
from .command import Options, Row
from .decodes import in_turn, local_rounds
from .formulas import promised
from .options import finite
from .passes import timed
from .requests import sample_questions


def promises(costs: Costs) -> dict[str, float]:
    """Expected tokens per second, during an answer, of every preset whose greedy answers are the
    target's; the best first.

    Of presets that differ only under ``rejection``, the first by name is listed. Lookup is left
    out: it depends on earlier answers, which no cost model knows.
    """
    found: dict[object, tuple[str, float]] = {}
    for name in ("cloud_ar", "cloud_sd", "dsd", *preset_names()):
        preset = load_preset(name)
        if preset.verified and preset.exact and preset.drafter != "lookup":
            drafts = preset.drafter, preset.shape, preset.speculation, preset.pacing
            key = "none" if preset.drafter == "none" else drafts
            found.setdefault(key, (name, promised(preset, costs)))
    return dict(sorted(found.values(), key=lambda promise: -promise[1]))


CHAIN_TOKENS = 8  # tokens of the chains that are drafted
DRAFT_SIZES = (1, 2, 4, 8, 16)  # nodes of the draft model's passes that are timed
VERIFY_SIZES = (0, 1, 2, 4, 8, 16, 32)  # drafted tokens of the target's
PASSES_PER_SIZE = 3  # of each size on a picture; the first one warms up


@dataclass
class PairMeasures:
    """Counts and times (s) over all pictures so far."""

    reached: list[int] = field(default_factory=lambda: [0] * CHAIN_TOKENS)
    accepted: list[int] = field(default_factory=lambda: [0] * CHAIN_TOKENS)
    wrong: int = 0  # first choices that were, and those whose second choice was right
    second: int = 0
    tokens: int = 0
    draft: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    verify: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    prefill: list[float] = field(default_factory=list)
    draft_prefill: list[float] = field(default_factory=list)
    draft_rows: list[int] = field(default_factory=list)  # of the draft model's prompts

    @property
    def by_depth(self) -> list[float | None]:
        """The acceptance at each depth, given that all tokens before were accepted."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return [round(a / r, 4) if r else None for a, r in pairs]

    @property
    def acceptance(self) -> float:
        """The acceptance over all depths."""
        return sum(self.accepted) / max(1, sum(self.reached))

    def costs(self, one_way: float) -> Costs:
        """The costs for the cost model; ``one_way``: of the link, s."""
        measures = Measures()
        for nodes in DRAFT_SIZES:
            measures.drafted(nodes, statistics.median(self.draft[nodes]))
        for nodes in VERIFY_SIZES:
            measures.verified(nodes, statistics.median(self.verify[nodes]), None)
        measured = measures.costs()
        return Costs(
            measured.draft,
            measured.verify,
            statistics.median(self.verify[0]),
            one_way,
            min(0.99, self.acceptance),
            self.second / self.wrong if self.wrong else 0.0,
        )


Drafter = Vlm | LlamaDrafter


def opened(model: Drafter, spec: PromptSpec, request: Request) -> tuple[Any, float]:
    """A session after the prompt (of the model's own type), and the prompt's time, s.

    Raises UserError if the model cannot take the request.
    """
    try:
        prompt = model.prompt(request, spec)
    except ValueError as error:
        raise UserError(f"{model.identity} cannot take the picture: {error}") from None

    def read() -> Session | LlamaSession:
        prefill = model.prefill(prompt)
        while not prefill.step(ALL_ROWS):
            pass
        return prefill.session

    return timed(read)


def measure(
    ours: Session, theirs: Session | LlamaSession, spec: PromptSpec, into: PairMeasures
) -> tuple[int, ...]:
    """Decode one request greedily with drafted chains, and time the passes; returns the answer's
    tokens.

    ours, theirs: the target's session and the draft model's, both after the prompt.
    """
    answer: tuple[int, ...] = ()
    for each in local_rounds(ours, theirs, spec, "greedy", GREEDY, chain(CHAIN_TOKENS)):
        answer = (*answer, *each.emitted)[: spec.max_tokens]
        drafted, along = len(each.draft), each.accepted
        for depth in range(min(along + 1, drafted)):
            into.reached[depth] += 1
            into.accepted[depth] += depth < along
        if along < drafted:
            into.wrong += 1
            second = np.argsort(theirs.logits_after(along - 1))[-2]
            into.second += bool(each.emitted[along] == second)
    into.tokens += len(answer)
    _time_passes(ours, VERIFY_SIZES, into.verify)
    _time_passes(theirs, DRAFT_SIZES, into.draft)
    return answer


def _time_passes(
    session: Session | LlamaSession, sizes: Sequence[int], into: dict[int, list[float]]
) -> None:
    """Time passes over chains after an uncomputed last token, as in a round.

    A pass of ``n`` nodes has n tokens in the draft model; in the target it also has the last token
    of the previous verdict.
    """
    last, length = session.tokens[-1], len(session.tokens)
    for size in sizes:
        nodes = [last] * size
        for repeat in range(PASSES_PER_SIZE + 1):
            session.truncate(length - 1)
            session.extend([last])
            _, seconds = timed(partial(session.grow, nodes, range(-1, size - 1)))
            if repeat:
                into[size].append(seconds)


def held_mb() -> float:
    """This process's resident memory, or the GPU's peak; MB."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated() / 1e6)
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def decode_all(
    args: argparse.Namespace,
    drafter: Drafter,
    requests: Sequence[Request],
    preset: Preset,
    limits: Sequence[PictureLimits],
) -> list[list[Outcome]]:
    """Decode every picture under each of the picture ``limits`` in turn.

    Raises UserError.
    """
    names = ["target", "threads", "device", "dtype", "max_tokens", "dialect"]
    if preset.drafter == "cloud":
        names.append("drafter")
    serve = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in names]
    spec = _spec(drafter, args)
    settings = DecodeSettings(preset, "greedy", GREEDY, args.max_tokens, reply_timeout=120.0)
    link = LinkProfile(args.rtt / 2, rate_mbit=args.up_mbps)

    def decode(limit: PictureLimits, request: Request, _: SamplingPolicy) -> Outcome:
        drafter.limit_picture(limit)
        outcome = robot.decode(request, settings)
        if not outcome.completed:
            raise UserError(f"the decode failed: {outcome.text or outcome.reason}")
        return outcome

    with (
        VerifierProcess(serve) as cloud,
        closing(Proxy(cloud.address, link)) as proxy,
        GrpcRobot(proxy.address, drafter, spec) as robot,
    ):
        decodes = {str(place): partial(decode, limit) for place, limit in enumerate(limits)}
        cases = [(request, GREEDY) for request in [requests[0], *requests]]
        return [
            [outcome for outcome in done if outcome.stats.rounds]
            for done in in_turn(decodes, cases).values()
        ]


ROUND_BYTES = 80  # of a greedy draft, with its frames on the wire (``bench payload``)
COLUMNS = {
    "frames": "frames",
    "actions": "actions",
    "max_pixels": "max pixels",
    "max_image_tokens": "image tokens",
    "draft_prompt": "draft prompt",
    "acceptance": "acceptance",
    "draft_prefill_ms": "draft prefill ms",
    "draft_ms": "draft ms",
    "verify_ms": "verify ms",
    "alone_ms": "alone ms",
    "prefill_ms": "prefill ms",
    "memory_mb": "MB",
    "preset": "preset",
    "promised_tokens_per_s": "promised tokens/s",
    "measured_tokens_per_s": "measured",
    "ratio": "ratio",
    "decode_ms": "decode ms",
}


OPTIONS: Options = {
    "--target": {"default": str(EMBEDDED / "target"), "help": "directory or hub name"},
    "--drafter": {"default": str(EMBEDDED / "drafter"), "help": "the same, or a GGUF file"},
    "--bag": {"type": path_of, "help": "pictures and instructions (default: simulated)"},
    "--camera": {"default": "", "metavar": "TOPIC", "help": "the bag's camera"},
    "--instruction": {"default": "", "metavar": "TOPIC", "help": "its instructions"},
    "--say": {"default": "", "metavar": "TEXT", "help": "decode this on all pictures"},
    "--frames": {"type": int, "default": 12, "help": "at most so many (%(default)s)"},
    **arguments(DecodeOptions(max_tokens=ANSWER_TOKENS), "max_tokens", "dialect"),
    "--rtt": {"type": finite, "default": 40.0, "metavar": "MS", "help": "of the link"},
    "--up-mbps": {"type": finite, "default": 20.0, "help": "rate of the uplink"},
    "--dtype": {"choices": DTYPES, "default": "float32", "help": "of both models"},
    "--device": {"default": "cpu", "help": "of both models, cpu or cuda"},
    "--threads": {"type": int, "default": 1, "help": "torch threads of each model"},
    "--max-pixels": {
        "type": int,
        "nargs": "+",
        "default": [],
        "metavar": "N",
        "help": "pixels of the drafter's own picture; a row for each, beside that of the whole one",
    },
    "--max-image-tokens": {
        "type": int,
        "nargs": "+",
        "default": [],
        "metavar": "N",
        "help": "tokens of its picture that the drafter keeps; the same",
    },
    "--preset": {
        "default": "",
        "metavar": "NAME",
        "help": "decode with this one (default: the one that promises most)",
    },
}


def crop_alike(drafter: Drafter, target: Vlm) -> None:
    """Crop both models to their common vocabulary. UserError: their tokenizers differ."""
    if drafter.tokenizer_digest != target.tokenizer_digest:
        raise UserError("the two models have different tokenizers: choose two models of one family")
    vocabulary = min(drafter.vocabulary, target.vocabulary)
    target.crop(vocabulary)
    drafter.crop(vocabulary)


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per picture limit. Raises UserError."""
    _check(args)
    limits = [
        PictureLimits(),
        *(PictureLimits(max_pixels=pixels) for pixels in args.max_pixels),
        *(PictureLimits(max_image_tokens=tokens) for tokens in args.max_image_tokens),
    ]
    requests = _requests(args)
    options = {"device": args.device, "dtype": args.dtype, "threads": args.threads}
    before = held_mb()
    target = load(args.target, **options)
    middle = held_mb()
    if args.drafter.endswith(".gguf"):
        drafter: Drafter = load_llama(args.drafter, device=args.device, threads=args.threads)
    else:
        drafter = load(args.drafter, **options)
    crop_alike(drafter, target)
    spec, dialect, actions = _spec(target, args), load_dialect(args.dialect), 0
    measures = [PairMeasures() for _ in limits]
    for number, request in enumerate(requests, 1):
        ours, seconds = opened(target, spec, request)
        for limit, into in zip(limits, measures, strict=True):
            drafter.limit_picture(limit)
            theirs, draft_seconds = opened(drafter, spec, request)
            into.prefill.append(seconds)
            into.draft_prefill.append(draft_seconds)
            into.draft_rows.append(theirs.prompt_rows)
            ours.truncate(0)
            tokens = measure(ours, theirs, spec, into)
        text = target.tokenizer.decode(tokens, skip_special_tokens=True)
        actions += dialect.action_of(text, tokens[-1] in spec.end_ids) is not None
        print(f"  picture {number} of {len(requests)}: {len(tokens)} tokens", flush=True)
    after = held_mb()
    one_way = args.rtt / 2e3 + ROUND_BYTES / (args.up_mbps * BYTES_PER_MBIT)
    costs = [into.costs(one_way) for into in measures]
    ranked = promises(costs[0])
    for name, speed in ranked.items():
        print(f"  {name:12} {speed:8.1f} tokens/s promised")
    # auto makes this choice while it decodes, and has to learn the costs first; a verifier has no
    # drafter in llama.cpp
    best = next(
        name
        for name in ranked
        if name != "auto"
        and not (isinstance(drafter, LlamaDrafter) and load_preset(name).drafter == "cloud")
    )
    chosen = load_preset(args.preset or best)
    rows: list[Row] = [
        {
            "target": target.identity,
            "drafter": drafter.identity,
            "frames": len(requests),
            "dialect": dialect.name,
            "actions": actions / len(requests),
            "max_pixels": limit.max_pixels,
            "max_image_tokens": limit.max_image_tokens,
            **_row(into, cost),
            "memory_mb": round(after - before, 1),
            "target_memory_mb": round(middle - before, 1),
            "rtt_ms": args.rtt,
            "up_mbps": args.up_mbps,
            "preset": chosen.name,
            "promised_tokens_per_s": promised(chosen, cost),
        }
        for limit, into, cost in zip(limits, measures, costs, strict=True)
    ]
    decodes = decode_all(args, drafter, requests, chosen, limits)
    for row, done in zip(rows, decodes, strict=True):
        rounds = [outcome.stats.rounds for outcome in done]
        seconds = sum(each[-1].settled - each[0].start for each in rounds)
        speed = sum(len(outcome.tokens) for outcome in done) / seconds if seconds else 0.0
        row["measured_tokens_per_s"] = speed
        row["ratio"] = speed / row["promised_tokens_per_s"]
        row["decode_ms"] = 1e3 * statistics.median(outcome.seconds for outcome in done)
    return rows


def _spec(model: Drafter, args: argparse.Namespace) -> PromptSpec:
    return model.spec(args.max_tokens)


def _row(measured: PairMeasures, costs: Costs) -> Row:
    return {
        "tokens": measured.tokens,
        "acceptance": round(measured.acceptance, 4),
        "acceptance_by_depth": measured.by_depth,
        "runner_up": round(costs.runner_up, 4),
        "draft_ms": 1e3 * costs.draft(1),
        "verify_ms": 1e3 * costs.verify(4),
        "alone_ms": 1e3 * costs.generate,
        "prefill_ms": 1e3 * statistics.median(measured.prefill),
        "draft_prefill_ms": 1e3 * statistics.median(measured.draft_prefill),
        "draft_prompt": round(statistics.mean(measured.draft_rows)),
        "promised_by_preset": {name: round(speed, 2) for name, speed in promises(costs).items()},
    }


def _check(args: argparse.Namespace) -> None:
    if args.frames < 1 or args.max_tokens < 2:
        raise UserError("--frames is at least 1, --max-tokens at least 2")
    load_dialect(args.dialect)
    if args.preset and not (preset := load_preset(args.preset)).verified:
        raise UserError(f"the preset {preset.name} needs no link: give one that is verified")
    if args.rtt < 0 or args.up_mbps <= 0:
        raise UserError("--rtt is 0 ms or more, --up-mbps more than 0")


def _requests(args: argparse.Namespace) -> list[Request]:
    """The requests: the bag's pictures, evenly chosen, or simulated views."""
    dialect = load_dialect(args.dialect)
    if args.bag is None:
        made = sample_questions(args.seed, args.frames)
        return [
            dialect.request(args.say or each.instruction, each.jpeg, each.order) for each in made
        ]
    from ..replay.recording import Choice, read_recording

    choice = Choice(args.camera, args.instruction, args.say, every=0.5)
    tasks = read_recording(args.bag, choice).tasks
    step = max(1, len(tasks) // args.frames)
    return [dialect.request(task.instruction, task.jpeg) for task in tasks[::step][: args.frames]]
