"""``edge-cloud-spec serve``: the verifier with a model, from the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..decoding.draft import MAX_DRAFTED, MAX_NODES
from ..dialects import load_dialect
from ..errors import UserError
from ..instruction import instruction_pattern
from ..models import EMBEDDED, OPENAI, VLLM
from ..models.openai_server import KEY_VARIABLE, OpenAiServer, Unavailable
from ..models.prompt import ORDERS
from ..nav.answer import CLAUSES_FORM, Dialect
from ..wire.channel import DEFAULT_ADDRESS
from ..wire.secret_files import read_tokens
from .model_thread.sessions import WorkerLimits
from .model_thread.worker import Worker
from .serving.logs import FORMATS, set_up_logging
from .serving.server import ServerSettings, check_free, serve

log = logging.getLogger(__name__)

ENDED = 1  # exit status of what ran and cannot go on; another start may help
MAX_LOOKUP_SUFFIXES = 2**24  # 0.74 GB for each credential


_MOST = WorkerLimits()
# What each option is called, its default, what it is for, and what else argparse is told of it.
_Option = tuple[str, Any, str, dict[str, Any]]
_OPTIONS: dict[str, tuple[_Option, ...]] = {
    "models": (
        ("--target", str(EMBEDDED / "target"), "directory or hub name, openai:URL or vllm:URL", {}),
        ("--drafter", "", "a drafter beside it, for cloud_sd and auto", {}),
        ("--device", "auto", "auto (cuda where it is usable), cpu or cuda (%(default)s)", {}),
        (
            "--dtype",
            "auto",
            "auto (bfloat16 on cuda, float32 on a CPU), float32, bfloat16 or float16 (%(default)s)",
            {},
        ),
        ("--quantize", "none", "none, int8, int4 or dynamic-int8", {}),
        ("--threads", None, "torch threads", {"type": int}),
        ("--max-tokens", 128, "longest answer", {}),
        ("--dialect", CLAUSES_FORM, "of its answers, a name or a YAML file (%(default)s)", {}),
        ("--system-text", "", "file with another system text than the dialect's", {}),
        (
            "--batch",
            _MOST.batch,
            "sessions in one pass at most; 1: one at a time (%(default)s)",
            {},
        ),
        (
            "--batch-rows",
            _MOST.batch_rows,
            "tokens in one pass at most, and in a part of a prompt (%(default)s)",
            {},
        ),
        (
            "--kv-memory",
            0,
            "for keys and values (default: 2048 on a CPU, the most of what is free on a GPU)",
            {"metavar": "MB"},
        ),
        (
            "--lookup-suffixes",
            _MOST.lookup_suffixes,
            "of answers to draft from, for each credential; 0: none (%(default)s)",
            {},
        ),
    ),
    "a target on a server (extra openai)": (
        ("--checkpoint", "", "with --target vllm:http://HOST:PORT: its model's directory", {}),
        ("--model", "", "its name there; with --target openai:http://HOST:PORT/v1", {}),
        ("--api-key-file", "", f"its key (or in the environment: {KEY_VARIABLE})", {}),
        ("--api-timeout", 30.0, "s for an answer, from request to end (%(default)s)", {}),
        ("--requests-per-hour", 0, "at most; 0: no bound", {}),
        ("--tokens-per-hour", 0, "at most, of pictures, prompts and answers; 0: no bound", {}),
        (
            "--structured",
            "auto",
            "how a grammar is sent: auto, vllm, llguidance, sglang or none (%(default)s)",
            {"choices": ("auto", "vllm", "llguidance", "sglang", "none")},
        ),
    ),
    "link": (
        ("--address", DEFAULT_ADDRESS, "HOST:PORT (%(default)s)", {}),
        ("--certificate", "", "PEM file; TLS (with --key)", {}),
        ("--key", "", "PEM file of the certificate's key", {}),
        ("--token-file", "", "file with the tokens robots may show", {}),
        ("--client-authority", "", "PEM file of the robots' authority (mutual TLS)", {}),
        ("--streams-per-second", 200.0, "of one robot (%(default)s)", {}),
        ("--bytes-per-second", 64.0 * 2**20, "of one robot (%(default)s)", {}),
        ("--messages-per-second", 500.0, "of one robot (%(default)s)", {}),
        ("--sessions", 64, "robots at once (%(default)s)", {}),
        (
            "--sessions-per-robot",
            _MOST.sessions_per_robot,
            "sessions of one robot's credential at once (%(default)s)",
            {},
        ),
        (
            "--bytes-per-robot",
            _MOST.bytes_per_robot,
            "of its messages that wait, each way (%(default)s)",
            {},
        ),
        (
            "--passes-per-robot",
            _MOST.passes_per_robot,
            "of its sessions in one pass (%(default)s)",
            {},
        ),
        ("--keep", 60.0, "seconds a lost session is kept", {}),
        ("--draft-tokens", MAX_DRAFTED, "longest draft, or largest tree (%(default)s)", {}),
    ),
    "fleet (extra fleet: Ray)": (
        ("--replicas", None, "verifiers behind one address; none: this one", {"type": int}),
        ("--max-replicas", None, "as many under load (default: --replicas)", {"type": int}),
        ("--replica-cpus", 1.0, "of each (%(default)s)", {}),
        ("--replica-gpus", 1.0, "of each with --device cuda (%(default)s)", {}),
    ),
    "watching": (
        ("--metrics", "", "HOST:PORT (or a port of this machine) of /metrics", {}),
        ("--log-format", "text", "(%(default)s)", {"choices": FORMATS}),
        ("--stuck-after", 30.0, "s of a pass until it is not serving", {}),
    ),
}


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``serve``; those of a fleet, which runs on Ray, need its extra."""
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, default, about, more in options:
            if default is not None:
                more = {"type": type(default)} | more
            group.add_argument(name, default=default, help=about, **more)


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
    _check(args)
    load_dialect(args.dialect)
    check_free(args.address)  # before the models, as well
    if args.replicas is not None:
        return _serve_fleet(args, settings)
    serve(make_worker(args), settings, lambda address: print(f"serving on {address}", flush=True))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UserError for a number that cannot be."""
    per_robot = args.sessions_per_robot, args.bytes_per_robot, args.passes_per_robot
    remote, on_vllm = args.target.startswith(OPENAI), args.target.startswith(VLLM)
    others = {
        "--drafter": args.drafter,
        "--replicas": args.replicas is not None,
        "--quantize": args.quantize != "none" and not on_vllm,  # there it is a part of the name
    }
    wrong = [name for name, given in others.items() if given]
    for good, text in (
        (
            not ((remote or on_vllm) and wrong),
            f"with --target {args.target} the model runs elsewhere: leave out {', '.join(wrong)}",
        ),
        (
            remote or not args.model,
            f"--model goes with --target {OPENAI}http://HOST:PORT/v1",
        ),
        (
            remote or on_vllm or not args.api_key_file,
            f"--api-key-file goes with --target {OPENAI}http://HOST:PORT/v1 or {VLLM}...",
        ),
        (
            on_vllm == bool(args.checkpoint),
            f"--target {VLLM}http://HOST:PORT and --checkpoint DIRECTORY go together",
        ),
        (
            args.api_timeout > 0 and min(args.requests_per_hour, args.tokens_per_hour) >= 0,
            "--api-timeout must be above 0, --requests- and --tokens-per-hour 0 or more",
        ),
        (
            min(args.max_tokens, args.sessions) >= 1 and args.keep >= 0,
            "--max-tokens and --sessions must be at least 1, --keep 0 or more",
        ),
        (min(per_robot) >= 1, "--sessions-, --bytes- and --passes-per-robot must be at least 1"),
        (
            args.max_replicas is None or args.replicas is not None,
            "--max-replicas needs --replicas, the number without load",
        ),
        (args.kv_memory >= 0, "--kv-memory must be 1 MB or more, or 0: by the device"),
        (min(args.batch, args.batch_rows) >= 1, "--batch and --batch-rows must be at least 1"),
        (
            0 <= args.lookup_suffixes <= MAX_LOOKUP_SUFFIXES,
            f"--lookup-suffixes must be 0 (nothing is looked up) or 1 to {MAX_LOOKUP_SUFFIXES}",
        ),
        (1 <= args.draft_tokens <= MAX_NODES, f"--draft-tokens must be 1 to {MAX_NODES}"),
    ):
        if not good:
            raise UserError(text)


def _serve_fleet(args: argparse.Namespace, settings: ServerSettings) -> int:
    """Serve a front and replicas on Ray, the only use of Ray."""
    from ..models.load import choose
    from .fleet.ray_fleet import serve_fleet
    from .fleet.roster import ScalingLimits

    limits = ScalingLimits(args.replicas, args.max_replicas or args.replicas)
    args.device, args.dtype = choose(args.device, args.dtype)  # of this machine, for all replicas
    gpus = args.replica_gpus if args.device.startswith("cuda") else 0.0
    make = partial(make_worker, args)
    on_ready = partial(print, "serving on", flush=True)
    if lost := serve_fleet(make, settings, limits, args.replica_cpus, gpus, on_ready):
        print(f"error: {lost}", file=sys.stderr)
        return ENDED
    return 0


def make_worker(args: argparse.Namespace) -> Worker:
    """The worker that these options ask for."""
    dialect = load_dialect(args.dialect)
    if dialect.several_frames:
        print(f"{dialect.name} was trained on several pictures: it is shown one", flush=True)
    text = _read(args.system_text) if args.system_text else dialect.system_text
    if args.target.startswith(OPENAI):
        return _make_remote(args, text, dialect)
    if args.target.startswith(VLLM):
        return _make_vllm(args, text, dialect)
    from ..models.exits import Exits  # torch: seconds that a wrong option should not cost
    from ..models.load import load

    options = {"device": args.device, "dtype": args.dtype, "quantize": args.quantize}
    target = load(args.target, threads=args.threads, **options)
    drafter = load(args.drafter, **options) if args.drafter else None
    spec = target.spec(text, args.max_tokens, dialect.user_text, dialect.identity)
    for order in ORDERS:  # seconds with a large vocabulary, which no robot should wait for
        with suppress(UserError):  # a robot that asks for a grammar is told why there is none
            target.grammar(dialect.grammar("action", order), spec)
    exits = Exits.load(Path(args.target) / "exits", target)
    pattern = instruction_pattern(args.target)
    limits = _limits(args)
    worker = Worker(
        target, spec, drafter, limits, exits=exits, instructions=pattern, dialect=dialect
    )
    print(f"target {target.identity} on {target.transformer.device}", flush=True)
    return worker


def _make_remote(args: argparse.Namespace, system_text: str, dialect: Dialect) -> Worker:
    """The worker of a target behind an API; one that is away now may come."""
    from ..models.byte_drafter import byte_spec
    from .openai_target import Allowance, OpenAiModels

    server = OpenAiServer(
        args.target.removeprefix(OPENAI), args.model, args.api_key_file, timeout_s=args.api_timeout
    )
    try:
        server.check()
    except Unavailable as error:
        log.warning("%s", error)
    spec = byte_spec(
        system_text,
        args.max_tokens,
        f"{OPENAI}{server.model} at {server.url}, exact: false",
        dialect.user_text,
        dialect.identity,
    )
    allowance = Allowance(args.requests_per_hour, args.tokens_per_hour)
    models = OpenAiModels(server, spec, allowance, args.structured)
    print(f"target {spec.target}", flush=True)
    limits = replace(_limits(args), draft_tokens=0, lookup_suffixes=0)
    return Worker(models, spec, limits=limits)


def _make_vllm(args: argparse.Namespace, system_text: str, dialect: Dialect) -> Worker:
    """The worker of a target on vLLM; UserError where the server is not there, or has another."""
    from ..models.checkpoint import checkpoint_directory, checkpoint_files
    from ..models.processor import Processor
    from .vllm_server import VllmServer
    from .vllm_target import VllmModels

    server = VllmServer(
        args.target.removeprefix(VLLM), args.api_key_file, timeout_s=args.api_timeout
    )
    served = server.ask(lambda client: server.served())
    server.model = served.model
    told = f"{args.dtype}:{args.quantize}"  # as the owner says: the server does not
    identity = f"vllm-{served.version}:{served.model}:{told}"
    processor = Processor(checkpoint_files(checkpoint_directory(args.checkpoint)), identity)
    spec = processor.spec(system_text, args.max_tokens, dialect.user_text, dialect.identity)
    models = VllmModels(processor, spec, dialect, server, served)
    models.probe()
    print(f"target {processor.identity} on {server.url}", flush=True)
    pattern = instruction_pattern(args.checkpoint)
    return Worker(models, spec, limits=_limits(args), instructions=pattern, dialect=dialect)


def _limits(args: argparse.Namespace) -> WorkerLimits:
    return WorkerLimits(
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
