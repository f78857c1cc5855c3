"""Serves the endpoint by uvicorn (the extra ``endpoint``): sockets, TLS, silent connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UserError
from ..signals import handled
from ..wire.channel import host_of
from ..wire.secret_files import Reloaded, read_pair
from .server import ChatApp

REQUEST_S = 30.0  # within which a connection begins a request
READ_S = 30.0  # within which a client reads what fills its connection
MOST_CONNECTIONS = 256
LAST_ANSWERS_S = 2  # for answers under way, when it ends


class Connection(H11Protocol):
    """A connection that is closed where the client sends no request, or does not read its answer;
    uvicorn's own waits for both without end."""

    _deadline: asyncio.TimerHandle | None = None
    _before: object = None  # the request before the one that is awaited

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Await the first request."""
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        """Await the next request."""
        self._await_request()  # first: a pipelined one begins in here
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._expect(self.transport.abort, READ_S)

    def resume_writing(self) -> None:
        """It has read; another request may be awaited by now."""
        super().resume_writing()
        self._expect(self._close_silent, REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _await_request(self) -> None:
        self._before = self.cycle
        self._expect(self._close_silent, REQUEST_S)

    def _close_silent(self) -> None:
        if self.cycle is self._before:
            self.transport.abort()

    def _expect(self, otherwise: Callable[[], None], seconds: float) -> None:
        """Do this unless something else is expected before."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, otherwise)


def listen(address: str) -> socket.socket:
    """A socket that listens at HOST:PORT; raises UserError."""
    host, port = host_of(address), address.rpartition(":")[2]
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        where = host, int(port)
        listening = socket.create_server(where, family=family, backlog=MOST_CONNECTIONS)
    except (OSError, OverflowError, ValueError):
        raise UserError(
            f"cannot listen on {address}: give HOST:PORT with a host of this machine and a free "
            "port (--address)"
        ) from None
    # Inherited by connections, for which asyncio does not set it: words would wait for a client's
    # delayed acknowledgement, 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def tls_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """The server's side of TLS, which takes files that were replaced; None without a certificate.
    Raises UserError."""
    if not certificate:
        return None
    files = Reloaded(lambda: read_pair(certificate, key), certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def renew(*_: Any) -> None:  # of the handshakes after this one
        if files.renew():
            context.load_cert_chain(certificate, key)

    context.sni_callback = renew
    return context


def make_server(app: Callable[..., Any], tls: ssl.SSLContext | None) -> uvicorn.Server:
    """The HTTP server of an ASGI application."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=int(REQUEST_S),
        timeout_graceful_shutdown=LAST_ANSWERS_S,
    )
    config.load()
    config.ssl = tls
    return uvicorn.Server(config)


def serve(app: ChatApp, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP."""
    server = make_server(app, tls)

    def stop(*_: Any) -> None:  # uvicorn raises the signal again when it has stopped
        server.should_exit = True

    async def run() -> None:
        await server.serve([listening])
        await app.close()

    with handled(stop):
        asyncio.run(run())
