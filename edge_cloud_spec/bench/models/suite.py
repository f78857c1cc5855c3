"""``bench models``: what two checkpoints of one's own come to on one's own pictures.

Both models run here, one after the other. The cost model then says which preset to take over a link
of the given delay and rate, and what it promises; that promise is held against a decode of the same
pictures through the emulated link.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from ...decoding.policy import GREEDY
from ...edge.client import ClientSettings, VerifierClient
from ...edge.runner import DecodeRunner, DecodeSettings
from ...errors import UserError
from ...harness.emulated_link import BYTES_PER_MBIT, LinkProfile
from ...harness.proxy import Proxy
from ...harness.verifier_process import VerifierProcess
from ...models import EMBEDDED
from ...models.load import DTYPES, load
from ...models.prompt import Request
from ...models.vlm import Vlm
from ...models.vocabulary import common_vocabulary
from ...presets import load_preset
from ...share import rules_text
from ..command import Row
from .measure import PairMeasures, measure, memory_mb
from .promise import Promise, promises

ROUND_BYTES = 80  # of a greedy draft, with its frames on the wire (``bench payload``)
COLUMNS = {
    "frames": "frames",
    "acceptance": "acceptance",
    "draft_ms": "draft ms",
    "verify_ms": "verify ms",
    "alone_ms": "alone ms",
    "prefill_ms": "prefill ms",
    "memory_mb": "MB",
    "preset": "preset",
    "promised_tokens_per_s": "promised tokens/s",
    "measured_tokens_per_s": "measured",
    "ratio": "ratio",
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
    parser.add_argument("--no-check", action="store_true", help="promise only; nothing is measured")


def run(args: argparse.Namespace) -> list[Row]:
    """One row. Raises UserError."""
    _check(args)
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
    measured = PairMeasures()
    for number, request in enumerate(requests, 1):
        tokens = measure(target, drafter, spec, request, measured)
        print(f"  picture {number} of {len(requests)}: {tokens} tokens", flush=True)
    after = memory_mb()
    one_way = args.rtt / 2e3 + ROUND_BYTES / (args.up_mbps * BYTES_PER_MBIT)
    costs = measured.costs(one_way)
    ranked = promises(costs)
    for promise in ranked:
        print(f"  {promise.preset:12} {promise.tokens_per_s:8.1f} tokens/s promised")
    # auto makes this choice while it decodes, and has to learn the costs first
    chosen = next(promise for promise in ranked if promise.preset != "auto")
    row: Row = {
        "target": target.identity,
        "drafter": drafter.identity,
        "frames": len(requests),
        "tokens": measured.tokens,
        "acceptance": round(measured.acceptance, 4),
        "acceptance_by_depth": measured.by_depth,
        "runner_up": round(costs.runner_up, 4),
        "draft_ms": 1e3 * costs.draft(1),
        "verify_ms": 1e3 * costs.verify(4),
        "alone_ms": 1e3 * costs.alone,
        "prefill_ms": 1e3 * _mean(measured.prefill),
        "draft_prefill_ms": 1e3 * _mean(measured.draft_prefill),
        "memory_mb": round(after - before, 1),
        "target_memory_mb": round(middle - before, 1),
        "rtt_ms": args.rtt,
        "up_mbps": args.up_mbps,
        "preset": chosen.preset,
        "promised_tokens_per_s": chosen.tokens_per_s,
        "promised_by_preset": {p.preset: round(p.tokens_per_s, 2) for p in ranked},
    }
    if not args.no_check:
        rate = _measured(args, drafter, requests, chosen)
        row |= {"measured_tokens_per_s": rate, "ratio": rate / chosen.tokens_per_s}
    return [row]


def _check(args: argparse.Namespace) -> None:
    if args.frames < 1 or args.max_tokens < 2:
        raise UserError("--frames is at least 1, --max-tokens at least 2")
    if args.rtt < 0 or args.up_mbps <= 0:
        raise UserError("--rtt is 0 ms or more, --up-mbps more than 0")


def _requests(args: argparse.Namespace) -> list[Request]:
    """The bag's pictures, spread over it; or simulated views."""
    if args.bag is None:
        from ..requests import sample_requests

        made = sample_requests(args.seed, args.frames)
        return [Request(args.say or each.instruction, each.jpeg, each.order) for each in made]
    from ...replay.recording import Choice, read_recording

    choice = Choice(args.camera, args.instruction, args.say, every=0.5)
    tasks = read_recording(args.bag, choice).tasks
    step = max(1, len(tasks) // args.frames)
    return [Request(task.instruction, task.jpeg) for task in tasks[::step][: args.frames]]


def _measured(
    args: argparse.Namespace, drafter: Vlm, requests: Sequence[Request], chosen: Promise
) -> float:
    """Tokens per second of the chosen preset through the emulated link, from the first draft on."""
    serve = ["--target", args.target, "--threads", str(args.threads), "--device", args.device]
    serve += ["--dtype", args.dtype, "--max-tokens", str(args.max_tokens)]
    preset = load_preset(chosen.preset)
    if preset.drafter == "cloud":
        serve += ["--drafter", args.drafter]
    tokens, seconds = 0, 0.0
    with VerifierProcess(serve) as cloud:
        proxy = Proxy(cloud.address, LinkProfile(args.rtt / 2, rate_mbit=args.up_mbps))
        client = VerifierClient(ClientSettings(proxy.address))
        runner = DecodeRunner(drafter, drafter.spec(rules_text(), args.max_tokens))
        settings = DecodeSettings(preset, "greedy", GREEDY, args.max_tokens, patience=120.0)
        try:
            for number, request in enumerate([requests[0], *requests]):
                outcome = runner.run(request, settings, secrets.randbits(64), client.connect)
                if not outcome.completed:
                    raise UserError(f"the decode failed: {outcome.text or outcome.reason}")
                rounds = outcome.stats.rounds
                if number and rounds:  # the first warms up
                    tokens += len(outcome.tokens)
                    seconds += rounds[-1].settled - rounds[0].start
        finally:
            client.close()
            proxy.close()
    return tokens / seconds if seconds else 0.0


def _mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)
