"""``edge-cloud-spec serve``: the verifier with a model, from the command line."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ..decoding.draft import MAX_DRAFTED, MAX_NODES
from ..errors import UserError
from ..models import EMBEDDED
from ..share import rules_text
from ..wire.channel import DEFAULT_ADDRESS
from ..wire.secret_files import read_tokens
from .server import ServerSettings, serve
from .sessions import WorkerLimits
from .worker import Worker


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``serve``."""
    models = parser.add_argument_group("models")
    models.add_argument(
        "--target", default=str(EMBEDDED / "target"), help="directory or hub name of the target"
    )
    models.add_argument("--drafter", default="", help="a drafter beside it, for preset cloud_sd")
    models.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    models.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    models.add_argument("--quantize", default="none", help="none, int8, int4 or dynamic-int8")
    models.add_argument("--threads", type=int, default=None, help="torch threads")
    models.add_argument("--max-tokens", type=int, default=128, help="longest answer")
    models.add_argument("--system-text", default="", help="file with another system text")
    link = parser.add_argument_group("link")
    link.add_argument("--address", default=DEFAULT_ADDRESS, help="HOST:PORT (%(default)s)")
    link.add_argument("--certificate", default="", help="PEM file; TLS (with --key)")
    link.add_argument("--key", default="", help="PEM file of the certificate's key")
    link.add_argument("--token-file", default="", help="file with the tokens robots may show")
    link.add_argument(
        "--client-authority", default="", help="PEM file of the robots' authority (mutual TLS)"
    )
    link.add_argument(
        "--streams-per-second", type=float, default=200.0, help="of one robot (%(default)s)"
    )
    link.add_argument(
        "--bytes-per-second", type=float, default=64.0 * 2**20, help="of one robot (%(default)s)"
    )
    link.add_argument("--sessions", type=int, default=64, help="robots at once (%(default)s)")
    link.add_argument("--keep", type=float, default=60.0, help="seconds a lost session is kept")
    link.add_argument(
        "--draft-tokens",
        type=int,
        default=MAX_DRAFTED,
        help="longest draft, or largest tree (%(default)s)",
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the system text {path} cannot be read: {error}") from None


def run_serve(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    settings = ServerSettings(
        address=args.address,
        certificate=args.certificate,
        key=args.key,
        token_file=args.token_file,
        client_authority=args.client_authority,
        streams_per_s=args.streams_per_second,
        bytes_per_s=args.bytes_per_second,
    )
    if args.token_file:
        read_tokens(args.token_file)  # before the models: seconds that a wrong file should not cost
    if min(args.max_tokens, args.sessions) < 1 or not args.keep >= 0:
        raise UserError("--max-tokens and --sessions must be at least 1, --keep 0 or more")
    if not 1 <= args.draft_tokens <= MAX_NODES:
        raise UserError(f"--draft-tokens must be 1 to {MAX_NODES}")
    from ..models.exits import Exits  # torch: seconds that a wrong option should not cost
    from ..models.load import load

    options = {"device": args.device, "dtype": args.dtype, "quantize": args.quantize}
    target = load(args.target, threads=args.threads, **options)
    drafter = load(args.drafter, **options) if args.drafter else None
    text = _read(args.system_text) if args.system_text else rules_text()
    spec = target.spec(text, args.max_tokens)
    exits = Exits.load(Path(args.target) / "exits", target)
    limits = WorkerLimits(args.sessions, args.keep, draft_tokens=args.draft_tokens)
    worker = Worker(target, spec, drafter, limits, exits=exits)
    print(f"target {target.identity}", flush=True)
    serve(worker, settings, lambda address: print(f"serving on {address}", flush=True))
    return 0
