"""The verifier as a server: address, TLS, token, health and graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from ..errors import UserError
from ..wire.channel import DEFAULT_ADDRESS, SERVER_OPTIONS, SERVICE, check_address, is_loopback
from .service import DecodeService
from .worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSettings:
    """Where and how to serve. Off loopback, TLS and a token are required; raises UserError.

    ``certificate`` and ``key`` are PEM files; ``grace_s``: seconds for open streams at the end.
    """

    address: str = DEFAULT_ADDRESS
    certificate: str = ""
    key: str = ""
    token: str = ""
    grace_s: float = 2.0

    def __post_init__(self) -> None:
        check_address(self.address)
        if bool(self.certificate) != bool(self.key):
            raise UserError("TLS needs both --certificate and --key")
        if not is_loopback(self.address) and not (self.certificate and self.token):
            raise UserError(
                f"{self.address} can be reached from other machines: give --certificate, --key "
                "and --token-file, or serve on 127.0.0.1 behind a tunnel"
            )


def _read(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"the {what} {path} cannot be read: {error.strerror}") from None


def _credentials(certificate: str, key: str) -> grpc.ServerCredentials:
    pair = (_read(key, "key"), _read(certificate, "certificate"))
    try:  # gRPC would only report that it cannot bind
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        text = f"the certificate {certificate} and the key {key} are no PEM pair: {error}"
        raise UserError(text) from None
    return grpc.ssl_server_credentials([pair])


class Server:
    """A gRPC server around a worker; lives on one asyncio loop."""

    def __init__(self, worker: Worker, settings: ServerSettings) -> None:
        self._worker = worker
        self._settings = settings
        self._service = DecodeService(worker, settings.token)
        self._server: grpc.aio.Server | None = None
        self._health = health.HealthServicer()

    async def start(self) -> str:
        """Bind and serve; returns the address with the port in use. Raises UserError."""
        settings = self._settings
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            if settings.certificate:
                credentials = _credentials(settings.certificate, settings.key)
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
    worker.start()
    try:
        asyncio.run(_serve(worker, settings, on_ready))
    finally:
        worker.stop()
        worker.join(timeout=10)
