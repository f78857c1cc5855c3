"""The verifier as a server: address, TLS, token, health and graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ...errors import UserError
from ...wire.channel import SERVER_OPTIONS, SERVICE
from ..model_thread.worker import Worker
from .access import AccessSettings, raise_file_limit
from .health import HealthService
from .listening import listen
from .metrics import MetricsServer, VerifierCollector, metrics_address
from .model_watch import ModelWatch
from .service import DecodeService

log = logging.getLogger(__name__)

WATCH_S = 0.5  # between two looks at the model's thread


@dataclass(frozen=True)
class ServerSettings(AccessSettings):
    """Where and how to serve; ``grace_s``: seconds for open streams at the end.

    ``metrics``: HOST:PORT of ``/metrics``; empty: none. ``stuck_s``: how long a pass may last, or
    the verifier counts as not serving. Raises UserError.
    """

    grace_s: float = 2.0
    metrics: str = ""
    stuck_s: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metrics:
            metrics_address(self.metrics)
        if not self.stuck_s > 0:
            raise UserError("--stuck-after must be above 0")


class Server:
    """A gRPC server around a worker; lives on one asyncio loop."""

    def __init__(
        self, worker: Worker, settings: ServerSettings, service: DecodeService | None = None
    ) -> None:
        """service: of a replica, which admits by lease."""
        self._worker = worker
        self._settings = settings
        self._service = service or DecodeService(worker, settings)
        self._server: grpc.aio.Server | None = None
        self._health = HealthService()
        self._watch = ModelWatch(worker, settings.stuck_s)
        self._watching: asyncio.Task[None] | None = None
        self.metrics: MetricsServer | None = None

    async def start(self) -> str:
        """Bind and serve; returns the address with the port in use. Raises UserError."""
        settings = self._settings
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        address = listen(server, settings)
        if settings.metrics:
            collector = VerifierCollector(self._worker, self._service)
            self.metrics = MetricsServer(settings.metrics, collector)
        await server.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        self._watching = asyncio.ensure_future(self._watch_model())
        self._server = server
        return address

    async def stop(self) -> None:
        """Report NOT_SERVING, wait for open streams for the grace period, then end them."""
        if self._watching is not None:
            self._watching.cancel()
        await self._health.enter_graceful_shutdown()
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.stop)
        if self._server is None:
            return
        grace = self._settings.grace_s
        stopping = asyncio.ensure_future(self._server.stop(grace + 1.0))
        await asyncio.wait({stopping}, timeout=grace)
        self._service.end()  # gRPC would cancel them with a traceback each
        await stopping

    async def _watch_model(self) -> None:
        """Report NOT_SERVING while the model's thread is dead or stuck, and refuse new streams."""
        status = health_pb2.HealthCheckResponse
        while True:
            await asyncio.sleep(min(WATCH_S, self._settings.stuck_s / 4))
            problem, before = self._watch.look(), self._service.problem
            if problem == before:
                continue
            self._service.problem = problem
            if problem:
                log.error("not serving: %s", problem)
            else:
                log.warning("serving again: the model's thread goes on")
            await self._say(status.NOT_SERVING if problem else status.SERVING)

    async def _say(self, status: int) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)


async def _serve(
    worker: Worker,
    settings: ServerSettings,
    on_ready: Callable[[str], None],
    service: DecodeService | None,
) -> None:
    server = Server(worker, settings, service)
    address = await server.start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    on_ready(address)
    if server.metrics is not None:
        log.info("metrics on http://%s/metrics", server.metrics.address)
    await stopped.wait()
    await server.stop()


def serve(
    worker: Worker,
    settings: ServerSettings,
    on_ready: Callable[[str], None] = lambda _: None,
    service: DecodeService | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; raises UserError.

    ``on_ready`` is called with the address once robots can connect; service: one to look into.
    """
    raise_file_limit()
    worker.start()
    try:
        asyncio.run(_serve(worker, settings, on_ready, service))
    finally:
        worker.stop()
        worker.join(timeout=10)
