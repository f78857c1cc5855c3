"""gRPC health, which anybody may ask: it is the one thing that needs no token."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
from grpc_health.v1.health import aio


class HealthService(aio.HealthServicer):  # type: ignore[misc] # untyped
    """``Check``, which holds nothing; no ``Watch``, whose streams strangers could open without end.

    A client that would watch takes UNIMPLEMENTED for "do not" (gRPC's health checking protocol).
    """

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Refused."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "health is asked for with Check here")
