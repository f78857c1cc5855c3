"""The front as a server: address, TLS and health; it runs no model."""

from __future__ import annotations

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ...wire.channel import SERVER_OPTIONS, SERVICE
from ..serving.access import AccessSettings
from ..serving.health import HealthService
from ..serving.listening import listen
from .front import FrontService
from .roster import Roster

HEALTH_S = 0.1  # between two looks at whether any replica serves


class FrontServer:
    """A gRPC server around a front; lives on one asyncio loop."""

    def __init__(self, roster: Roster, key: bytes, access: AccessSettings) -> None:
        """Raises UserError."""
        self._roster, self._access = roster, access
        self._service = FrontService(roster, key, access)
        self._server: grpc.aio.Server | None = None
        self._health = HealthService()
        self._telling: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind and serve; returns the address with the port in use. Raises UserError."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        address = listen(server, self._access)
        await server.start()
        self._server = server
        self._telling = asyncio.ensure_future(self._tell_health())
        return address

    async def stop(self) -> None:
        """End it; streams here are short."""
        if self._telling is not None:
            self._telling.cancel()
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(1.0)

    async def _tell_health(self) -> None:
        """The front serves while any replica does."""
        status = health_pb2.HealthCheckResponse
        while True:
            serving = status.SERVING if self._roster.loads else status.NOT_SERVING
            for name in ("", SERVICE):
                await self._health.set(name, serving)
            await asyncio.sleep(HEALTH_S)
