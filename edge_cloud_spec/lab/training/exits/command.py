"""``edge-cloud-spec train exits``: adapters for early exits of a target that stays as it is.

Answering and training can both be interrupted and continued later.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ....errors import UserError
from ....models import EMBEDDED
from ....models.exits import shape_of
from ....models.load import load
from ....models.prompt import Request
from ....models.vlm import Vlm
from ....share import rules_text
from .data import Collector, picture_requests, simulated_requests
from .trainer import ExitTrainer, frequent_tokens


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec train exits``."""
    parser.add_argument("--target", default=str(EMBEDDED / "target"), help="directory or hub name")
    parser.add_argument("--out", type=Path, default=Path("exits"), help="(default %(default)s)")
    parser.add_argument("--layers", default="", help="an exit after so many layers, such as 2,3")
    parser.add_argument("--rank", type=int, default=64, help="of the adapters (%(default)s)")
    parser.add_argument(
        "--shortlist",
        type=int,
        default=1024,
        help="tokens an exit may predict, 0: all (%(default)s)",
    )
    parser.add_argument("--pictures", type=Path, help="folder to learn from (default: simulated)")
    parser.add_argument("--prompts", type=Path, help="text file, an instruction a line")
    parser.add_argument("--requests", type=int, default=4000, help="to answer (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=48, help="longest answer (%(default)s)")
    parser.add_argument("--minutes", type=float, default=4.0, help="of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of requests, answers and weights")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--threads", type=int, default=2, help="of torch; processes that render")
    parser.add_argument("--resume", action="store_true", help="continue from what OUT holds")


def run_train(args: argparse.Namespace) -> int:
    """Run the command; 0 when the exits are written. UserError: an option does not fit."""
    if min(args.requests, args.rank, args.threads) < 1 or args.minutes <= 0 or args.shortlist < 0:
        raise UserError(
            "training needs --requests, --rank and --threads of 1 or more, --minutes above 0 and "
            "--shortlist of 0 or more"
        )
    work: Path = args.out / "training"
    if not args.resume and work.exists():
        raise UserError(f"{work} holds a training: add --resume, or choose another --out")
    vlm = load(args.target, device=args.device, dtype=args.dtype, threads=args.threads)
    layers = _layers(args.layers, vlm)
    requests = _requests(args, work)
    work.mkdir(parents=True, exist_ok=True)
    collector = Collector(vlm, vlm.spec(rules_text(), args.max_tokens), layers, args.seed, work)
    rows = collector.collect(requests, args.requests)
    tokens = frequent_tokens(rows, args.shortlist, vlm.vocabulary)
    trainer = ExitTrainer(vlm, layers, args.rank, tokens, rows, args.seed, work / "adapters.pt")
    if args.resume:
        trainer.resume()
    trainer.run(60 * args.minutes)
    trainer.exits.save(args.out, tokens if args.shortlist else ())
    print(f"{args.out}: {trainer.report()}", flush=True)
    return 0


def _layers(text: str, vlm: Vlm) -> tuple[int, ...]:
    """After how many layers there are exits; by default after a third and a half of them."""
    count = shape_of(vlm.transformer)["num_hidden_layers"]
    try:
        layers = {int(part) for part in text.split(",")} if text else {count // 3, count // 2}
    except ValueError:
        raise UserError(f"--layers {text}: give numbers of layers with commas, like 2,3") from None
    if not all(1 <= layer <= count for layer in layers):
        raise UserError(f"--layers {text}: give some of 1 to {count}, the target's layers")
    return tuple(sorted(layers))


def _requests(args: argparse.Namespace, work: Path) -> Iterator[Request]:
    """The requests to learn from, the same for a seed at any time."""
    if (args.pictures is None) != (args.prompts is None):
        raise UserError("--pictures and --prompts go together")
    if args.pictures is not None:
        return picture_requests(args.pictures, args.prompts, args.seed)
    return simulated_requests(work / "views", args.requests, args.seed, args.threads)
