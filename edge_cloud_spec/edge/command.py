"""``edge-cloud-spec decode``: decode one request and print its words as they are settled."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..decoding.policy import RULES
from ..errors import UserError, check_writable, write_json
from ..models.load_drafter import DraftModelSettings
from ..nav.answer import CLAUSES_FORM, GRAMMARS
from ..options import add_options, from_options
from ..presets import preset_names
from .client import ClientSettings
from .runner import Outcome

# Options that a decode takes as they are.
GIVEN = ("preset", "rule", "temperature", "seed", "grammar", "dialect", "order")


def add_decode_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``decode``."""
    parser.add_argument("image", type=Path, help="a JPEG file")
    parser.add_argument("instruction", help="such as 'find the silver bottle'")
    add_options(parser, ClientSettings())
    add_options(parser, DraftModelSettings())
    parser.add_argument("--preset", default="auto", help=", ".join(preset_names()))
    parser.add_argument("--rule", default="greedy", help=", ".join(RULES))
    parser.add_argument("--temperature", type=float, default=None, help="0.8 unless greedy")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the sampling, as decode_stats reports it"
    )
    parser.add_argument(
        "--grammar", default="none", choices=GRAMMARS, help="action: the answer is one"
    )
    parser.add_argument(
        "--dialect", default=CLAUSES_FORM, help="of the answer, a name or a YAML file (%(default)s)"
    )
    parser.add_argument("--order", default="action first", help="or 'reason first'")
    parser.add_argument("--json", type=Path, help="write the outcome there")


def run_decode(args: argparse.Namespace) -> int:
    """Decode once; returns 0 when the answer is complete. Raises UserError."""
    try:
        jpeg = args.image.read_bytes()
    except OSError as error:
        raise UserError(f"{args.image} cannot be read: {error.strerror}") from None
    if args.json:
        check_writable(args.json)
    from .picture_decoder import PictureDecoder

    given = {name: getattr(args, name) for name in GIVEN}
    cloud = from_options(ClientSettings(), args)
    with PictureDecoder(cloud, from_options(DraftModelSettings(), args), **given) as decoder:
        end = ""
        try:
            for words in decoder.stream(jpeg, args.instruction):
                end = "\n"
                print(words, end="", flush=True)
        finally:
            print(end=end)  # what is said next begins a line
    answer = decoder.answer
    assert answer is not None, "the stream came to its end"
    if answer.outcome.stats.failure:
        print(f"the cloud went on alone: {answer.outcome.stats.failure}", file=sys.stderr)
    print(f"action: {answer.action or 'none'}")
    figures = figures_of(answer.outcome)
    print(", ".join(f"{name} {value:g}" for name, value in figures.items()))
    if args.json:
        write_json(args.json, {"answer": answer.text, "action": answer.action, **figures})
    return 0


def figures_of(outcome: Outcome) -> dict[str, float]:
    """What one decode cost, as printed and as written by ``--json``."""
    stats = outcome.stats
    return {
        "tokens": len(outcome.tokens),
        "rounds": len(stats.rounds),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "up_bytes": stats.up_bytes,
        "down_bytes": stats.down_bytes,
        "ms": round(1e3 * outcome.seconds, 2),
        "tokens_per_s": round(len(outcome.tokens) / outcome.seconds, 1),
    }
