"""``edge-cloud-spec decode``: decode one request and print its words as they are settled."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..decoding.policy import RULES
from ..errors import UserError, check_writable, write_json
from ..models import EMBEDDED
from ..nav.answer import CLAUSES_FORM, GRAMMARS
from ..options import add_options, from_options
from ..presets import preset_names
from .client import ClientSettings
from .runner import Outcome

# Options that a decode and its drafter take as they are.
GIVEN = ("preset", "rule", "temperature", "seed", "grammar", "dialect", "order")
LOAD = (
    *("device", "dtype", "quantize", "threads"),
    *("max_pixels", "max_image_tokens", "tokenizer", "key_file"),
)


def add_decode_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``decode``."""
    parser.add_argument("image", type=Path, help="a JPEG file")
    parser.add_argument("instruction", help="such as 'find the silver bottle'")
    add_options(parser, ClientSettings())
    about = "the draft model: a directory, a hub name, a .gguf file, openai:URL or bytes"
    parser.add_argument("--drafter", default=str(EMBEDDED / "drafter"), help=about)
    about = "of openai: a checkpoint's directory, for its tokenizer"
    parser.add_argument("--tokenizer", default="", help=about)
    parser.add_argument("--model", default="", help="of openai: the server's name of the model")
    parser.add_argument("--key-file", default="", help="of openai: file with the server's key")
    parser.add_argument(
        "--threads", type=int, default=1, help="torch threads of the draft model (%(default)s)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    about = "auto, float32, bfloat16 or float16 (%(default)s)"
    parser.add_argument("--dtype", default="auto", help=about)
    about = "none, int8, int4 or dynamic-int8 (%(default)s)"
    parser.add_argument("--quantize", default="none", help=about)
    about = "pixels of the draft model's own picture; 0: as the target's"
    parser.add_argument("--max-pixels", type=int, default=0, help=about)
    about = "tokens of its picture that it keeps; 0: all"
    parser.add_argument("--max-image-tokens", type=int, default=0, help=about)
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

    load = {name: getattr(args, name) for name in LOAD}
    given = {name: getattr(args, name) for name in GIVEN}
    with PictureDecoder(
        from_options(ClientSettings(), args),
        args.drafter,
        load={**load, "server_model": args.model},
        **given,
    ) as decoder:
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
