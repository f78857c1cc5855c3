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
from grpc_health.v1.health import aio as health

from ..errors import UserError
from ..wire.channel import SERVER_OPTIONS, SERVICE
from .access import AccessSettings, raise_file_limit, server_credentials
from .service import DecodeService
from .worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSettings(AccessSettings):
    """Where and how to serve; ``grace_s``: seconds for open streams at the end."""

    grace_s: float = 2.0


class Server:
    """A gRPC server around a worker; lives on one asyncio loop."""

    def __init__(self, worker: Worker, settings: ServerSettings) -> None:
        self._worker = worker
        self._settings = settings
        self._service = DecodeService(worker, settings)
        self._server: grpc.aio.Server | None = None
        self._health = health.HealthServicer()

    async def start(self) -> str:
        """Bind and serve; returns the address with the port in use. Raises UserError."""
        settings = self._settings
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            credentials = server_credentials(settings)
            if credentials is not None:
                port = server.add_secure_port(settings.address, credentials)
            else:
                port = server.add_insecure_port(settings.address)
        except RuntimeError:
            port = 0
        if not port and not settings.address.startswith("unix:"):
            raise UserError(
                f"cannot listen on {settings.address}: the port is taken or the host unknown"
            )
        await server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        host = settings.address.rpartition(":")[0]
        return settings.address if settings.address.startswith("unix:") else f"{host}:{port}"

    async def stop(self) -> None:
        """Report NOT_SERVING, wait for open streams for the grace period, then end them."""
        await self._health.enter_graceful_shutdown()
        if self._server is None:
            return
        grace = self._settings.grace_s
        stopping = asyncio.ensure_future(self._server.stop(grace + 1.0))
        await asyncio.wait({stopping}, timeout=grace)
        self._service.end()  # gRPC would cancel them with a traceback each
        await stopping


async def _serve(worker: Worker, settings: ServerSettings, on_ready: Callable[[str], None]) -> None:
    server = Server(worker, settings)
    address = await server.start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    on_ready(address)
    await stopped.wait()
    await server.stop()


def serve(
    worker: Worker, settings: ServerSettings, on_ready: Callable[[str], None] = lambda _: None
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
