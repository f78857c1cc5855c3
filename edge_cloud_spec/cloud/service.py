"""The gRPC face of the worker: bytes in, bytes out, one stream a robot."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from ..wire.channel import METHOD_NAME, SERVICE
from .sessions import Stream
from .worker import Worker

MAX_WAITING = 16  # messages of one stream that the worker has not come to


class DecodeService:
    """Relays each stream to the worker. ``token`` is asked of every robot where it is set."""

    def __init__(self, worker: Worker, token: str = "") -> None:
        self._worker = worker
        self._token = token
        self._outboxes: set[asyncio.Queue[bytes | None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        """For ``server.add_generic_rpc_handlers``; messages stay bytes here."""
        method = grpc.stream_stream_rpc_method_handler(self._decode)
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD_NAME: method})

    def end(self) -> None:
        """End every open stream, as a cloud that goes away should."""
        for outbox in self._outboxes:
            outbox.put_nowait(None)

    async def _decode(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        if self._token:
            await self._authenticate(context)
        loop = asyncio.get_running_loop()
        outbox: asyncio.Queue[bytes | None] = asyncio.Queue()

        def outlet(data: bytes | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server ends
                loop.call_soon_threadsafe(outbox.put_nowait, data)

        stream = Stream(outlet)
        reading = asyncio.ensure_future(self._read(requests, stream, outbox))
        self._outboxes.add(outbox)
        try:
            while (data := await outbox.get()) is not None:
                await context.write(data)
        finally:
            reading.cancel()
            self._outboxes.discard(outbox)
            self._worker.leave(stream)

    async def _read(
        self, requests: AsyncIterator[bytes], stream: Stream, outbox: asyncio.Queue[bytes | None]
    ) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError):  # the robot is gone
            async for data in requests:
                self._worker.receive(stream, data)
                while stream.received - stream.handled > MAX_WAITING:
                    await asyncio.sleep(0.01)  # not read, so that the robot's side is held up
        outbox.put_nowait(None)

    async def _authenticate(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        metadata = dict(context.invocation_metadata() or ())
        given = str(metadata.get("authorization", ""))
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the bearer token is missing or wrong; give the robot the verifier's token",
            )
