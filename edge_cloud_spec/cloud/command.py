"""``edge-cloud-spec serve``: runs the verifier from the command line."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from ..dialects import load_dialect
from ..errors import UserError, check_installed, refuse
from ..instruction import instruction_pattern
from ..models import EMBEDDED, OPENAI, VLLM
from ..models.load_drafter import LoadSettings, no_garbage_collection
from ..models.openai_server import KEY_VARIABLE, OpenAiServer, Unavailable
from ..nav.answer import CLAUSES_FORM, ORDERS, Dialect
from ..options import add_options, bounded, chosen, described, from_options
from ..request import MOST_PICTURES
from ..share import path_of
from ..wire.channel import check_free
from ..wire.secret_files import read_tokens
from .model_thread.limits import WorkerLimits
from .model_thread.worker import Worker
from .serving.access import server_credentials
from .serving.logs import set_up_logging
from .serving.memory import bound_memory
from .serving.server import ServerSettings, serve
from .session.drafts import SERVER_TOKENS

log = logging.getLogger(__name__)

NONE = "none"  # the drafter of a verifier that drafts nothing itself
ANY = "any"  # the dialect of a verifier that imposes none
ENDED = 1  # exit status of a server that cannot continue; a restart may help


@dataclass(frozen=True)
class ModelSettings(LoadSettings):
    """The models and their answers."""

    target: str = described(
        str(EMBEDDED / "target"), "directory or hub name, openai:URL or vllm:URL"
    )
    drafter: str = described(
        "",
        "a drafter beside it, for cloud_sd and auto; without one a head of the target drafts, if "
        "it has one; none: nothing does",
    )
    generation_config: str = chosen(
        "auto", ("auto", "none"), "none: leave out what the target's does to logits"
    )
    no_check: bool = described(False, "do not compare a first answer with transformers' own")
    max_tokens: int = bounded(128, 1, inf, "longest answer")
    dialect: str = described(
        CLAUSES_FORM,
        "with whose system text a request begins, a name or a YAML file; any: with what it likes",
    )
    pictures: int = bounded(MOST_PICTURES, 0, MOST_PICTURES, "of a request at most")

    @property
    def imposed(self) -> Dialect | None:
        """The dialect that requests keep to; None: any. UserError: there is no such dialect."""
        return None if self.dialect == ANY else load_dialect(self.dialect)

    @property
    def system_text(self) -> str | None:
        """With which a request begins; empty: with none; None: as it likes. Raises UserError."""
        dialect = self.imposed
        return None if dialect is None else dialect.system_text


@dataclass(frozen=True)
class RemoteSettings:
    """A target on another server (extra openai)."""

    checkpoint: str = described("", "with --target vllm:http://HOST:PORT: its model's directory")
    model: str = described("", "its name there; with --target openai:http://HOST:PORT/v1")
    api_key_file: str = described("", f"its key (or in the environment: {KEY_VARIABLE})")
    api_timeout: float = bounded(30.0, 1e-3, inf, "s for an answer, from request to end")
    requests_per_hour: int = bounded(0, 0, inf, "at most; 0: no bound")
    tokens_per_hour: int = bounded(
        0, 0, inf, "at most, of pictures, prompts and answers; 0: no bound"
    )
    structured: str = chosen(
        "auto", ("auto", "vllm", "llguidance", "sglang", "none"), "how a grammar is sent"
    )


@dataclass(frozen=True)
class FleetSettings:
    """Several verifiers behind one address (extra fleet: Ray)."""

    replicas: int = bounded(0, 0, inf, "verifiers behind one address; 0: this one alone")
    max_replicas: int = bounded(0, 0, inf, "as many under load; 0: as --replicas")
    replica_cpus: float = bounded(1.0, 0.0, inf, "of each")
    replica_gpus: float = bounded(1.0, 0.0, inf, "of each with --device cuda")


@dataclass(frozen=True)
class ServeSettings:
    """The options of ``serve``. Raises UserError for options that exclude each other."""

    models: ModelSettings = field(default_factory=ModelSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    server: ServerSettings = field(default_factory=ServerSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)

    def __post_init__(self) -> None:
        models, remote, fleet = self.models, self.remote, self.fleet
        target, on_openai, on_vllm = models.target, self.on_openai, self.on_vllm
        others = {
            "--drafter": models.drafter,
            "--replicas": fleet.replicas,
            # With vLLM it is part of the target's name.
            "--quantize": models.quantize != "none" and not on_vllm,
            "--generation-config": models.generation_config != "auto" and not on_vllm,
            "--no-check": models.no_check,
        }
        wrong = [name for name, given in others.items() if given]
        refuse(
            (
                (on_openai or on_vllm) and wrong,
                f"with --target {target} the model runs elsewhere: leave out {', '.join(wrong)}",
            ),
            (
                remote.model and not on_openai,
                f"--model goes with --target {OPENAI}http://HOST:PORT/v1",
            ),
            (
                remote.api_key_file and not (on_openai or on_vllm),
                f"--api-key-file goes with --target {OPENAI}http://HOST:PORT/v1 or {VLLM}...",
            ),
            (
                on_vllm != bool(remote.checkpoint),
                f"--target {VLLM}http://HOST:PORT and --checkpoint DIRECTORY go together",
            ),
            (
                fleet.max_replicas and not fleet.replicas,
                "--max-replicas needs --replicas, the number without load",
            ),
        )

    @property
    def on_openai(self) -> bool:
        """Whether the target is behind an API."""
        return self.models.target.startswith(OPENAI)

    @property
    def on_vllm(self) -> bool:
        """Whether the target is on vLLM."""
        return self.models.target.startswith(VLLM)


add_serve_arguments = partial(add_options, settings=ServeSettings())
"""The options of ``serve``; those of a fleet, which runs on Ray, need its extra."""


def run_serve(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    settings = from_options(ServeSettings(), args)
    server = settings.server
    set_up_logging(server.log_format)
    if server.token_file:  # before the models are loaded, so that a wrong file costs no time
        read_tokens(server.token_file)
    server_credentials(server)
    _ = settings.models.imposed  # read here for the same reason
    check_free(server.address)  # before the models are loaded, too
    if settings.fleet.replicas:
        return _serve_fleet(settings)
    serve(make_worker(settings), server, lambda address: print(f"serving on {address}", flush=True))
    return 0


def _serve_fleet(settings: ServeSettings) -> int:
    """Serve a router and replicas on Ray, the only use of Ray."""
    from .fleet.ray_fleet import serve_fleet
    from .fleet.registry import ScalingLimits

    fleet, models = settings.fleet, settings.models
    limits = ScalingLimits(fleet.replicas, fleet.max_replicas or fleet.replicas)
    check_installed("ray", "--replicas")
    from ..models.load import choose  # imports torch

    device, dtype = choose(models.device, models.dtype)  # this machine's, for all replicas
    gpus = fleet.replica_gpus if device.startswith("cuda") else 0.0
    models = replace(models, device=device, dtype=dtype)
    make = partial(make_worker, replace(settings, models=models))
    on_ready = partial(print, "serving on", flush=True)
    if lost := serve_fleet(make, settings.server, limits, fleet.replica_cpus, gpus, on_ready):
        print(f"error: {lost}", file=sys.stderr)
        return ENDED
    return 0


def make_worker(settings: ServeSettings) -> Worker:
    """Build the worker and load its models, in the process that serves it: this one, or a
    replica's."""
    bound_memory()
    make = _make_remote if settings.on_openai else _make_vllm if settings.on_vllm else _make_local
    worker = make(settings)
    gc.freeze()  # what was loaded stays: no collection of garbage, a pause for all, goes over it
    return worker


def _make_local(settings: ServeSettings) -> Worker:
    """Make the worker for a target in this process."""
    from ..models.checkpoint import checkpoint_directory

    models = settings.models
    # What is missing or wrong costs no time: it is said before torch is imported.
    for package in ("torch", "transformers"):
        check_installed(package, f"a target in torch ({models.target})")
    checkpoint_directory(models.target)
    options = models.load_options
    own, check = models.generation_config, not models.no_check
    with no_garbage_collection():
        from ..models.draft_head import DraftHead
        from ..models.exits import Exits
        from ..models.load import load
        from ..models.processor import first_request

        target = load(models.target, **options, generation_config=own, check=check)
    drafter = head = None
    if not models.drafter:
        head = DraftHead.load(checkpoint_directory(models.target), target)
    elif models.drafter != NONE:
        drafter = load(models.drafter, **options, generation_config="none", check=False)
    spec = target.spec(models.max_tokens, models.system_text, models.pictures)
    target.prompt(first_request(spec), spec)  # the chat template is rendered
    if (dialect := models.imposed) is not None:
        for order in ORDERS:  # takes seconds with a large vocabulary: now, so that no robot waits
            with suppress(UserError):  # reported to robots that ask for a grammar
                target.grammar(dialect.grammar("action", order), spec)
    exits = Exits.load(path_of(models.target) / "exits", target)
    pattern = instruction_pattern(models.target)
    limits = settings.limits
    worker = Worker(target, spec, drafter, limits, exits=exits, instructions=pattern, head=head)
    print(f"target {target.identity} on {target.transformer.device}", flush=True)
    if head is not None:
        print(f"head: {head.name}, drafts {SERVER_TOKENS}", flush=True)
    return worker


def _make_remote(settings: ServeSettings) -> Worker:
    """Make the worker for a target behind an API, which need not be reachable yet."""
    from ..models.byte_drafter import byte_spec
    from .openai_target import Allowance, OpenAiModels

    remote, models = settings.remote, settings.models
    url = models.target.removeprefix(OPENAI)
    server = OpenAiServer(url, remote.model, remote.api_key_file, timeout_s=remote.api_timeout)
    try:
        server.check()
    except Unavailable as error:
        log.warning("%s", error)
    name = f"{OPENAI}{server.model} at {server.url}, exact: false"
    spec = byte_spec(models.max_tokens, name, models.system_text, models.pictures)
    allowance = Allowance(remote.requests_per_hour, remote.tokens_per_hour)
    runner = OpenAiModels(server, spec, allowance, remote.structured)
    print(f"target {spec.target}", flush=True)
    limits = replace(settings.limits, draft_tokens=0, lookup_suffixes=0)
    return Worker(runner, spec, limits=limits)


def _make_vllm(settings: ServeSettings) -> Worker:
    """Make the worker for a target on vLLM; UserError: no server, or another model."""
    from ..models.checkpoint import checkpoint_directory, checkpoint_files
    from ..models.processor import Processor
    from .vllm_server import VllmServer
    from .vllm_target import VllmModels

    remote, model = settings.remote, settings.models
    url = model.target.removeprefix(VLLM)
    server = VllmServer(url, remote.api_key_file, timeout_s=remote.api_timeout)
    served = server.submit(server.served()).result()
    server.model = served.model
    told = f"{model.dtype}:{model.quantize}"  # from the options, as the server does not report it
    identity = f"vllm-{served.version}:{served.model}:{told}"
    files = checkpoint_files(checkpoint_directory(remote.checkpoint), model.generation_config)
    processor = Processor(replace(files, positions=0), identity)  # --max-model-len is the limit
    spec = processor.spec(model.max_tokens, model.system_text, model.pictures)
    models = VllmModels(processor, spec, server, served)
    models.probe()
    print(f"target {processor.identity} on {server.url}", flush=True)
    pattern = instruction_pattern(remote.checkpoint)
    return Worker(models, spec, limits=settings.limits, instructions=pattern)
