"""A replica's streams: those that show the front's lease; sent elsewhere when it drains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio

from ...wire.channel import LEASE
from ...wire.codec import encode_server
from ...wire.frames import ends_decode, server_kind_of
from ...wire.messages import MOVED, Fault
from ..model_thread.worker import Worker
from ..serving.access import AccessSettings, credential_of
from ..serving.send_queue import SendQueue
from ..serving.service import DecodeService
from .lease import lease_problem

DRAIN_S = 1.0  # after which a stream without a verdict is sent elsewhere, too
GO_ELSEWHERE = encode_server(
    Fault(MOVED, "this replica drains; update edge_cloud_spec on the robot to go on elsewhere")
)


class ReplicaService(DecodeService):
    """The service of one replica, which has a name in its fleet."""

    def __init__(
        self,
        worker: Worker,
        access: AccessSettings,
        name: str,
        key: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """key: of the fleet. clock: Unix time, s. Raises UserError."""
        super().__init__(worker, access)
        self.draining = False
        self._name, self._key, self._clock = name, key, clock

    def drain(self) -> None:
        """Take no more robots, and send those that are here elsewhere, each after its next verdict.

        On the loop that serves.
        """
        self.draining = True
        for stream, queue in self.streams.streams.items():
            stream.send_bytes = partial(_send_last, queue)
        asyncio.get_running_loop().call_later(DRAIN_S, self._end_rest)

    def _end_rest(self) -> None:
        for queue in list(self.streams.streams.values()):
            queue.put(GO_ELSEWHERE)
            queue.put(None)

    async def _decode(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        metadata = dict(context.invocation_metadata() or ())
        token = self._tokens.admit(str(metadata.get("authorization", "")))
        if token is not None:  # else it is refused as everywhere
            shown, client = metadata.get(LEASE, b""), credential_of(context, token)
            problem = lease_problem(bytes(shown), self._key, client, self._name, self._clock())
            if problem:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
            if self.draining:
                await context.write(GO_ELSEWHERE)
                return
        await super()._decode(requests, context)


def _send_last(queue: SendQueue, data: bytes | None) -> None:
    """Send this, and the robot elsewhere where its round ends with it."""
    queue.put(data)
    if data is not None and server_kind_of(data) == "verdict" and not ends_decode(data):
        queue.put(GO_ELSEWHERE)
        queue.put(None)
