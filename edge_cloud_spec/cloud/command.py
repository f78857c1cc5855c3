"""``edge-cloud-spec serve``: the verifier with a model, from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..decoding.draft import MAX_DRAFTED, MAX_NODES
from ..errors import UserError
from ..models import EMBEDDED
from ..models.instruction_pattern import instruction_pattern
from ..models.prompt import ORDERS
from ..nav.answer import answer_grammar
from ..share import rules_text
from ..wire.channel import DEFAULT_ADDRESS
from ..wire.secret_files import read_tokens
from .model_thread.sessions import WorkerLimits
from .model_thread.worker import Worker
from .serving.listening import check_free
from .serving.logs import FORMATS, set_up_logging
from .serving.server import ServerSettings, serve

ENDED = 1  # exit status of what ran and cannot go on; another start may help
MAX_LOOKUP_SUFFIXES = 2**24  # 0.74 GB for each credential


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``serve``."""
    models = parser.add_argument_group("models")
    models.add_argument(
        "--target", default=str(EMBEDDED / "target"), help="directory or hub name of the target"
    )
    models.add_argument("--drafter", default="", help="a drafter beside it, for cloud_sd and auto")
    about = "auto (cuda where it is usable), cpu or cuda (%(default)s)"
    models.add_argument("--device", default="auto", help=about)
    about = "auto (bfloat16 on cuda, float32 on a CPU), float32, bfloat16 or float16 (%(default)s)"
    models.add_argument("--dtype", default="auto", help=about)
    models.add_argument("--quantize", default="none", help="none, int8, int4 or dynamic-int8")
    models.add_argument(
        "--passes",
        default="free",
        help="fixed: verdicts do not depend on who else is in a pass; free is faster (%(default)s)",
    )
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
    link.add_argument(
        "--messages-per-second", type=float, default=500.0, help="of one robot (%(default)s)"
    )
    link.add_argument("--sessions", type=int, default=64, help="robots at once (%(default)s)")
    most = WorkerLimits()
    for name, default, help_text in (
        ("sessions", most.sessions_per_robot, "sessions of one robot's credential at once"),
        ("bytes", most.bytes_per_robot, "of its messages that wait, each way"),
        ("passes", most.passes_per_robot, "of its sessions in one pass"),
    ):
        text = f"{help_text} (%(default)s)"
        link.add_argument(f"--{name}-per-robot", type=int, default=default, help=text)
    for name, default, help_text in (
        ("--batch", most.batch, "sessions in one pass at most; 1: one at a time"),
        ("--batch-rows", most.batch_rows, "tokens in one pass at most, and in a part of a prompt"),
    ):
        text = f"{help_text} (%(default)s)"
        models.add_argument(name, type=int, default=default, help=text)
    models.add_argument(
        "--kv-memory",
        type=int,
        default=0,
        metavar="MB",
        help="for keys and values (default: 2048 on a CPU, the most of what is free on a GPU)",
    )
    models.add_argument(
        "--lookup-suffixes",
        type=int,
        default=most.lookup_suffixes,
        help="of answers to draft from, for each credential; 0: none (%(default)s)",
    )
    link.add_argument("--keep", type=float, default=60.0, help="seconds a lost session is kept")
    add_fleet_arguments(parser)
    watch = parser.add_argument_group("watching")
    watch.add_argument(
        "--metrics", default="", help="HOST:PORT (or a port of this machine) of /metrics"
    )
    watch.add_argument("--log-format", choices=FORMATS, default="text", help="(%(default)s)")
    watch.add_argument(
        "--stuck-after", type=float, default=30.0, help="s of a pass until it is not serving"
    )
    link.add_argument(
        "--draft-tokens",
        type=int,
        default=MAX_DRAFTED,
        help="longest draft, or largest tree (%(default)s)",
    )


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a fleet, which runs on Ray (extra ``fleet``)."""
    fleet = parser.add_argument_group("fleet (extra fleet: Ray)")
    fleet.add_argument("--replicas", type=int, help="verifiers behind one address; none: this one")
    fleet.add_argument("--max-replicas", type=int, help="as many under load (default: --replicas)")
    fleet.add_argument("--replica-cpus", type=float, default=1.0, help="of each (%(default)s)")
    fleet.add_argument(
        "--replica-gpus", type=float, default=1.0, help="of each with --device cuda (%(default)s)"
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the system text {path} cannot be read: {error}") from None


def run_serve(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    set_up_logging(args.log_format)
    settings = ServerSettings(
        address=args.address,
        certificate=args.certificate,
        key=args.key,
        token_file=args.token_file,
        client_authority=args.client_authority,
        streams_per_s=args.streams_per_second,
        bytes_per_s=args.bytes_per_second,
        messages_per_s=args.messages_per_second,
        metrics=args.metrics,
        stuck_s=args.stuck_after,
    )
    if args.token_file:
        read_tokens(args.token_file)  # before the models: seconds that a wrong file should not cost
    if min(args.max_tokens, args.sessions) < 1 or not args.keep >= 0:
        raise UserError("--max-tokens and --sessions must be at least 1, --keep 0 or more")
    if min(args.sessions_per_robot, args.bytes_per_robot, args.passes_per_robot) < 1:
        raise UserError("--sessions-, --bytes- and --passes-per-robot must be at least 1")
    if args.kv_memory < 0:
        raise UserError("--kv-memory must be 1 MB or more, or 0: by the device")
    if min(args.batch, args.batch_rows) < 1:
        raise UserError("--batch and --batch-rows must be at least 1")
    if not (args.lookup_suffixes == 0 or 1 <= args.lookup_suffixes <= MAX_LOOKUP_SUFFIXES):
        raise UserError(
            f"--lookup-suffixes must be 0 (nothing is looked up) or 1 to {MAX_LOOKUP_SUFFIXES}"
        )
    if not 1 <= args.draft_tokens <= MAX_NODES:
        raise UserError(f"--draft-tokens must be 1 to {MAX_NODES}")
    check_free(args.address)  # before the models, as well
    if args.replicas is not None:
        return _serve_fleet(args, settings)
    worker, _ = make_worker(args)
    serve(worker, settings, lambda address: print(f"serving on {address}", flush=True))
    return 0


def _serve_fleet(args: argparse.Namespace, settings: ServerSettings) -> int:
    """A front, and replicas on Ray, which is needed here alone."""
    from ..models.device import choose
    from .fleet.ray_replicas import ReplicaShare
    from .fleet.scaling import ScalingLimits
    from .fleet.serving import serve_fleet

    limits = ScalingLimits(args.replicas, args.max_replicas or args.replicas)
    args.device, args.dtype = choose(args.device, args.dtype)  # of this machine, for all replicas
    gpus = args.replica_gpus if args.device.startswith("cuda") else 0.0
    share = ReplicaShare(args.replica_cpus, gpus)
    make = partial(make_worker, args)
    on_ready = partial(print, "serving on", flush=True)
    if lost := serve_fleet(make, settings, limits, share, on_ready):
        print(f"error: {lost}", file=sys.stderr)
        return ENDED
    return 0


def make_worker(args: argparse.Namespace) -> tuple[Worker, Callable[[], float]]:
    """The worker that these options ask for, and the share of its KV memory that is in use."""
    from ..models.exits import Exits  # torch: seconds that a wrong option should not cost
    from ..models.load import load

    options = {"device": args.device, "dtype": args.dtype, "quantize": args.quantize}
    target = load(args.target, threads=args.threads, passes=args.passes, **options)
    drafter = load(args.drafter, **options) if args.drafter else None
    text = _read(args.system_text) if args.system_text else rules_text()
    spec = target.spec(text, args.max_tokens)
    for order in ORDERS:  # seconds with a large vocabulary, which no robot should wait for
        with suppress(UserError):  # a robot that asks for a grammar is told why there is none
            target.grammar(answer_grammar("action", order), spec)
    exits = Exits.load(Path(args.target) / "exits", target)
    limits = WorkerLimits(
        sessions=args.sessions,
        keep_s=args.keep,
        draft_tokens=args.draft_tokens,
        sessions_per_robot=args.sessions_per_robot,
        bytes_per_robot=args.bytes_per_robot,
        passes_per_robot=args.passes_per_robot,
        batch=args.batch,
        batch_rows=args.batch_rows,
        kv_bytes=args.kv_memory * 2**20,
        lookup_suffixes=args.lookup_suffixes,
    )
    pattern = instruction_pattern(args.target)
    worker = Worker(target, spec, drafter, limits, exits=exits, instructions=pattern)
    print(f"target {target.identity} on {target.transformer.device}", flush=True)
    return worker, lambda: target.memory.usage
