"""The verifier as a server: address, TLS, token, health, metrics and graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

from ...errors import check_installed
from ...loop_thread import event_of
from ...options import bounded, chosen, described
from ...wire.channel import (
    EARLIER_SERVICE,
    METHOD_NAME,
    SERVER_OPTIONS,
    SERVICE,
    cannot_listen,
)
from ...wire.messages import PROTOCOL
from ..model_thread.worker import Worker
from .access import AccessSettings, raise_file_limit, server_credentials
from .logs import FORMATS
from .memory import trim
from .metrics import MetricsServer, metrics_address, verifier_metrics
from .service import DecodeService

log = logging.getLogger(__name__)

WATCH_S = 0.5  # between two checks of the model's thread
TRIMMED_BYTES = 32 * 2**20  # received, after which freed memory is given back
LOOKS = 8  # from one time to the next that it is also after streams have ended


def listen(server: grpc.aio.Server, access: AccessSettings) -> str:
    """Bind a server; returns its address with the port in use. Raises UserError."""
    address, credentials = access.address, server_credentials(access)
    try:
        if credentials is not None:
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except RuntimeError:
        raise cannot_listen(address) from None
    if address.startswith("unix:"):
        return address
    if not port:
        raise cannot_listen(address)
    return f"{address.rpartition(':')[0]}:{port}"


class HealthService(aio.HealthServicer):  # type: ignore[misc] # untyped
    """gRPC's health service without ``Watch``, whose streams would be unbounded.

    By the health checking protocol, a client stops watching when it gets UNIMPLEMENTED.
    """

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Abort with UNIMPLEMENTED."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "health is asked for with Check here")


def handler_of(decode: Callable[..., object], service: str = SERVICE) -> grpc.GenericRpcHandler:
    """The handler of a gRPC service whose only method is ``decode``; its messages stay bytes."""
    method = grpc.stream_stream_rpc_method_handler(decode)
    return grpc.method_handlers_generic_handler(service, {METHOD_NAME: method})


async def _refuse_earlier(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Refuse a robot with a protocol before 4, which calls another service."""
    text = f"the robot speaks a protocol before 4 and the cloud protocol {PROTOCOL}"
    code = grpc.StatusCode.INVALID_ARGUMENT  # a status that no robot retries on
    await context.abort(code, f"{text}; update edge_cloud_spec on the robot")


class ModelWatch:
    """Detects a model thread that is dead, or stuck in one step for ``stuck_s`` seconds."""

    def __init__(
        self,
        worker: Worker,
        stuck_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._stuck_s, self._clock = worker, stuck_s, clock
        self._steps = -1
        self._since = clock()  # last time that a step ended or the thread was idle

    def look(self) -> str:
        """What is wrong with the model's thread; empty if nothing is. Call it regularly."""
        worker, now = self._worker, self._clock()
        if not worker.is_alive():
            return "the model's thread has ended; start the verifier again"
        if worker.idle or worker.steps != self._steps:
            self._steps, self._since = worker.steps, now
        if now - self._since > self._stuck_s:
            return f"a pass of the model lasts longer than {self._stuck_s:g} s"
        return ""


@dataclass(frozen=True)
class ServerSettings(AccessSettings):
    """Where and how to serve; ``grace_s``: how long open streams may continue at shutdown, s.

    Raises UserError.
    """

    grace_s: float = 2.0
    metrics: str = described("", "HOST:PORT (or a port of this machine) of /metrics; empty: none")
    stuck_s: float = bounded(
        30.0, 1e-3, inf, "s of a pass until it is not serving", flag="--stuck-after"
    )
    log_format: str = chosen("text", FORMATS, "of the log")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metrics:  # before any model is loaded
            check_installed("prometheus_client", "--metrics")
            metrics_address(self.metrics)


class HealthyServer:
    """A gRPC server of one service, with health reports; belongs to one asyncio loop."""

    def __init__(self, access: AccessSettings, decode: Callable[..., object]) -> None:
        """decode: the service's method."""
        self._access, self._decode = access, decode
        self._server: grpc.aio.Server | None = None
        self._health = HealthService()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind and serve; returns the address with the port in use. Raises UserError."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        earlier = handler_of(_refuse_earlier, EARLIER_SERVICE)
        server.add_generic_rpc_handlers((handler_of(self._decode), earlier))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        address = listen(server, self._access)
        self._prepare()
        await server.start()
        self._server = server
        self._watching = asyncio.ensure_future(self._watch())
        return address

    def _prepare(self) -> None:
        """For subclasses: prepare before serving. Raises UserError."""

    async def _watch(self) -> None:
        """For subclasses: report the server's health repeatedly."""
        raise NotImplementedError

    async def _report(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", SERVICE, EARLIER_SERVICE):
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self) -> None:
        """Report NOT_SERVING; a subclass also ends the streams."""
        if self._watching is not None:
            self._watching.cancel()
        await self._health.enter_graceful_shutdown()


class Server(HealthyServer):
    """The verifier's gRPC server; passes streams to a worker (the model's thread)."""

    def __init__(
        self, worker: Worker, settings: ServerSettings, service: DecodeService | None = None
    ) -> None:
        """service: a replica's service, which checks leases."""
        self._worker = worker
        self._settings = settings
        self._service = service or DecodeService(worker, settings)
        self._model_watch = ModelWatch(worker, settings.stuck_s)
        self.metrics: MetricsServer | None = None
        super().__init__(settings, self._service.decode)

    async def start(self) -> str:
        """Bind and serve; returns the address with the port in use. Raises UserError."""
        address = await super().start()
        await self._report(True)
        return address

    def _prepare(self) -> None:
        if self._settings.metrics:
            collect = partial(verifier_metrics, self._worker, self._service)
            self.metrics = MetricsServer(self._settings.metrics, collect)

    async def stop(self) -> None:
        """Report NOT_SERVING, wait up to ``grace_s`` for open streams, then end them."""
        await super().stop()
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.stop)
        if self._server is None:
            return
        grace = self._settings.grace_s
        stopping = asyncio.ensure_future(self._server.stop(grace + 1.0))
        await asyncio.wait({stopping}, timeout=grace)
        self._service.end()  # otherwise gRPC cancels each stream with a traceback
        await stopping

    async def _watch(self) -> None:
        """Report NOT_SERVING while the model's thread is dead or stuck, and refuse new streams;
        give memory back that messages took."""
        meter, streams = self._service.meter, self._service.streams.streams
        trimmed, left, again = 0, 0, False  # again: what was in use then may be free by now
        for look in count():
            await asyncio.sleep(min(WATCH_S, self._settings.stuck_s / 4))
            received, ended = meter.received_bytes, meter.opened_streams - len(streams)
            # A stream that has ended may have held a message that was not whole.
            due = received - trimmed > TRIMMED_BYTES or (ended != left and look % LOOKS == 0)
            if due or again:
                await asyncio.to_thread(trim)
                trimmed, left, again = received, ended, due
            problem, before = self._model_watch.look(), self._service.problem
            if problem == before:
                continue
            self._service.problem = problem
            if problem:
                log.error("not serving: %s", problem)
            else:
                log.warning("serving again: the model's thread goes on")
            await self._report(not problem)


async def _serve(
    worker: Worker,
    settings: ServerSettings,
    on_ready: Callable[[str], None],
) -> None:
    server = Server(worker, settings)
    address = await server.start()
    stopped = event_of((signal.SIGINT, signal.SIGTERM))
    on_ready(address)
    if server.metrics is not None:
        log.info("metrics on http://%s/metrics", server.metrics.address)
    await stopped.wait()
    await server.stop()


def serve(
    worker: Worker,
    settings: ServerSettings,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; raises UserError.

    ``on_ready`` is called with the address once robots can connect.
    """
    raise_file_limit()
    worker.start()
    try:
        asyncio.run(_serve(worker, settings, on_ready))
    finally:
        worker.stop()
        worker.join(timeout=10)
