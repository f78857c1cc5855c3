"""``edge-cloud-spec decode``: decodes one request and prints its words as they are verified."""

from __future__ import annotations

import argparse
import sys

from ..errors import UserError, check_writable, write_json
from ..models.load_drafter import DraftModelSettings
from ..options import add_options, from_options, given
from ..share import path_of
from .decode_options import DecodeOptions
from .link.route import ClientSettings


def add_decode_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``decode``."""
    parser.add_argument("image", type=path_of, help="a JPEG file")
    parser.add_argument("instruction", help="such as 'find the silver bottle'")
    add_options(parser, ClientSettings())
    add_options(parser, DraftModelSettings())
    add_options(parser, DecodeOptions())
    parser.add_argument("--json", type=path_of, help="write the outcome there")


def run_decode(args: argparse.Namespace) -> int:
    """Decode once; returns 0 when the answer is complete. Raises UserError."""
    try:
        jpeg = args.image.read_bytes()
    except OSError as error:
        raise UserError(f"{args.image} cannot be read: {error.strerror}") from None
    if args.json:
        check_writable(args.json)
    from .picture_decoder import PictureDecoder

    cloud, drafter = from_options(ClientSettings(), args), from_options(DraftModelSettings(), args)
    options, cautions = given(DecodeOptions(), args), list[str]()
    with PictureDecoder(cloud, drafter, report=cautions.append, **options) as decoder:
        end = ""
        try:
            for words in decoder.stream(jpeg, args.instruction):
                end = "\n"
                print(words, end="", flush=True)
        finally:
            print(end=end)  # so that later output begins a new line
    answer = decoder.answer
    assert answer is not None, "the stream came to its end"
    for caution in cautions:
        print(caution, file=sys.stderr)
    outcome, stats = answer.outcome, answer.outcome.stats
    print(f"action: {answer.action or 'none'}")
    figures = {
        "tokens": len(outcome.tokens),
        "rounds": len(stats.rounds),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "up_bytes": stats.up_bytes,
        "down_bytes": stats.down_bytes,
        "ms": round(1e3 * outcome.seconds, 2),
        "tokens_per_s": round(len(outcome.tokens) / outcome.seconds, 1),
    }
    print(", ".join(f"{name} {value:g}" for name, value in figures.items()))
    if args.json:
        write_json(args.json, {"answer": answer.text, "action": answer.action, **figures})
    return 0
