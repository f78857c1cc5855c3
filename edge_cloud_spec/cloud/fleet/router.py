"""The fleet's router: it gives each robot a replica's address and a lease.

It receives at most a robot's first message, never a round. A robot that knows it talks to a router
sends metadata only (``ASK``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from ...wire.channel import ASK, AVOID
from ...wire.codec import encode_server
from ...wire.messages import Code, Fault
from ..serving.access import AccessSettings, Gate, retry_after
from ..serving.server import HealthyServer
from .lease import sign
from .registry import Registry

LEASE_S = 60.0  # for opening streams at a replica
NO_REPLICA_S = 0.1  # until a robot may ask again if no replica serves
FIRST_MESSAGE_S = 10.0  # for a robot's first message
OLD_ROBOT = "this address is a fleet's router; update edge_cloud_spec on the robot"
HEALTH_S = 0.1  # between two checks whether any replica serves


class RouterServer(HealthyServer):
    """The router's server: address, TLS and health; it runs no model.

    It assigns clients to the registry's replicas, within the limits of ``access``.
    """

    def __init__(self, registry: Registry, key: bytes, access: AccessSettings) -> None:
        """key: signs the leases. Raises UserError."""
        super().__init__(access, self._assign)
        self._registry, self._key = registry, key
        self._gate = Gate(access)

    async def _assign(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        client, credential = await self._gate.admit(context)
        await self._gate.admit_stream(client, context)
        metadata = dict(context.invocation_metadata() or ())
        if ASK not in metadata and not await _sends_a_message(requests):
            return
        # Robots that share a token are distinguished by connection.
        found = self._registry.place(f"{client} {context.peer()}", {str(metadata.get(AVOID, ""))})
        if found is None:
            text = "no replica of this fleet serves now"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text, retry_after(NO_REPLICA_S))
            return
        name, address = found
        expires = time.time() + self._registry.ahead_s(name) + LEASE_S
        lease = sign(credential, name, expires, self._key)
        fault = Fault(Code.MOVED, OLD_ROBOT, address=address, lease=lease, lease_s=LEASE_S)
        await context.write(encode_server(fault).data)

    async def stop(self) -> None:
        """Stop at once; a router's streams are short."""
        await super().stop()
        if self._server is not None:
            await self._server.stop(1.0)

    async def _watch(self) -> None:
        """Report that the router serves while any replica does."""
        while True:
            await self._report(bool(self._registry.loads))
            await asyncio.sleep(HEALTH_S)


async def _sends_a_message(requests: AsyncIterator[bytes]) -> bool:
    """Whether the robot sends a message; a probe (``doctor``) does not."""
    try:
        await asyncio.wait_for(anext(aiter(requests)), FIRST_MESSAGE_S)
    except (StopAsyncIteration, asyncio.TimeoutError):
        return False
    return True
