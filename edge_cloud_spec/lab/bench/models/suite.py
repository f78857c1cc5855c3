"""``bench models``: what two checkpoints of one's own come to on one's own pictures.

Both models run here, one after the other. The cost model then says which preset to take over a link
of the given delay and rate, and what it promises; that promise is held against a decode of the same
pictures through the emulated link. With several picture limits there is a row for each, on the
same pictures in turn.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from ....decoding.cost_model import Costs
from ....errors import UserError
from ....models import EMBEDDED
from ....models.image import PictureLimits
from ....models.load import DTYPES, load
from ....models.prompt import Request
from ....models.tokenizer import common_vocabulary
from ....presets import load_preset
from ....share import rules_text
from ...harness.emulated_link import BYTES_PER_MBIT
from ..command import Row
from .check import decode_all
from .measure import PairMeasures, measure, memory_mb, opened
from .promise import promised, promises

ROUND_BYTES = 80  # of a greedy draft, with its frames on the wire (``bench payload``)
COLUMNS = {
    "frames": "frames",
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--target", default=str(EMBEDDED / "target"), help="directory or hub name")
    parser.add_argument("--drafter", default=str(EMBEDDED / "drafter"), help="the same")
    parser.add_argument("--bag", type=Path, help="pictures and instructions (default: simulated)")
    parser.add_argument("--camera", default="", metavar="TOPIC", help="the bag's camera")
    parser.add_argument("--instruction", default="", metavar="TOPIC", help="its instructions")
    parser.add_argument("--say", default="", metavar="TEXT", help="decode this on all pictures")
    parser.add_argument("--frames", type=int, default=12, help="at most so many (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer (%(default)s)")
    parser.add_argument("--rtt", type=float, default=40.0, metavar="MS", help="of the link")
    parser.add_argument("--up-mbps", type=float, default=20.0, help="rate of the uplink")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of both models")
    parser.add_argument("--device", default="cpu", help="of both models, cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each model")
    about = "pixels of the drafter's own picture; a row for each, beside that of the whole one"
    parser.add_argument("--max-pixels", type=int, nargs="+", default=[], metavar="N", help=about)
    about = "tokens of its picture that the drafter keeps; the same"
    parser.add_argument(
        "--max-image-tokens", type=int, nargs="+", default=[], metavar="N", help=about
    )
    about = "decode with this one (default: the one that promises most)"
    parser.add_argument("--preset", default="", metavar="NAME", help=about)
    parser.add_argument("--no-check", action="store_true", help="promise only; nothing is measured")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each picture limit. Raises UserError."""
    _check(args)
    limits = [PictureLimits()]
    limits += [PictureLimits(max_pixels=pixels) for pixels in args.max_pixels]
    limits += [PictureLimits(max_image_tokens=tokens) for tokens in args.max_image_tokens]
    requests = _requests(args)
    options = {"device": args.device, "dtype": args.dtype, "threads": args.threads}
    before = memory_mb()
    target = load(args.target, **options)
    middle = memory_mb()
    drafter = load(args.drafter, **options)
    vocabulary = common_vocabulary(drafter.tokenizer, target.tokenizer, None, target.vocabulary)
    target.crop(vocabulary)
    drafter.crop(vocabulary)
    spec = target.spec(rules_text(), args.max_tokens)
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
        print(f"  picture {number} of {len(requests)}: {tokens} tokens", flush=True)
    after = memory_mb()
    one_way = args.rtt / 2e3 + ROUND_BYTES / (args.up_mbps * BYTES_PER_MBIT)
    costs = [into.costs(one_way) for into in measures]
    ranked = promises(costs[0])
    for promise in ranked:
        print(f"  {promise.preset:12} {promise.tokens_per_s:8.1f} tokens/s promised")
    # auto makes this choice while it decodes, and has to learn the costs first
    best = next(promise.preset for promise in ranked if promise.preset != "auto")
    chosen = load_preset(args.preset or best)
    memory = {"memory_mb": round(after - before, 1), "target_memory_mb": round(middle - before, 1)}
    rows: list[Row] = [
        {
            "target": target.identity,
            "drafter": drafter.identity,
            "frames": len(requests),
            "max_pixels": limit.max_pixels,
            "max_image_tokens": limit.max_image_tokens,
            **_row(into, cost),
            **memory,
            "rtt_ms": args.rtt,
            "up_mbps": args.up_mbps,
            "preset": chosen.name,
            "promised_tokens_per_s": promised(chosen, cost),
        }
        for limit, into, cost in zip(limits, measures, costs, strict=True)
    ]
    if not args.no_check:
        decodes = decode_all(args, drafter, requests, chosen, limits)
        for row, found in zip(rows, decodes, strict=True):
            row["measured_tokens_per_s"] = found.rate
            row["ratio"] = found.rate / row["promised_tokens_per_s"]
            row["decode_ms"] = 1e3 * statistics.median(found.whole)
    return rows


def _row(measured: PairMeasures, costs: Costs) -> Row:
    return {
        "tokens": measured.tokens,
        "acceptance": round(measured.acceptance, 4),
        "acceptance_by_depth": measured.by_depth,
        "runner_up": round(costs.runner_up, 4),
        "draft_ms": 1e3 * costs.draft(1),
        "verify_ms": 1e3 * costs.verify(4),
        "alone_ms": 1e3 * costs.alone,
        "prefill_ms": 1e3 * statistics.median(measured.prefill),
        "draft_prefill_ms": 1e3 * statistics.median(measured.draft_prefill),
        "draft_prompt": round(statistics.mean(measured.draft_rows)),
        "promised_by_preset": {p.preset: round(p.tokens_per_s, 2) for p in promises(costs)},
    }


def _check(args: argparse.Namespace) -> None:
    if args.frames < 1 or args.max_tokens < 2:
        raise UserError("--frames is at least 1, --max-tokens at least 2")
    if args.preset and not (preset := load_preset(args.preset)).verified:
        raise UserError(f"the preset {preset.name} needs no link: give one that is verified")
    if args.rtt < 0 or args.up_mbps <= 0:
        raise UserError("--rtt is 0 ms or more, --up-mbps more than 0")


def _requests(args: argparse.Namespace) -> list[Request]:
    """The bag's pictures, spread over it; or simulated views."""
    if args.bag is None:
        from ..requests import sample_requests

        made = sample_requests(args.seed, args.frames)
        return [Request(args.say or each.instruction, each.jpeg, each.order) for each in made]
    from ....replay.recording import Choice, read_recording

    choice = Choice(args.camera, args.instruction, args.say, every=0.5)
    tasks = read_recording(args.bag, choice).tasks
    step = max(1, len(tasks) // args.frames)
    return [Request(task.instruction, task.jpeg) for task in tasks[::step][: args.frames]]
