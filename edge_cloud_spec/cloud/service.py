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
from .send_queue import SendQueue
from .sessions import RobotStream
from .worker import Worker

MAX_WAITING = 16  # messages of one stream that the worker has not come to


class DecodeService:
    """Relays each stream to the worker. ``token`` is asked of every robot where it is set."""

    def __init__(self, worker: Worker, token: str = "") -> None:
        self._worker = worker
        self._token = token
        self._outboxes: dict[RobotStream, SendQueue] = {}  # of open streams, the oldest first
        # A robot opens a new stream while the cloud has not noticed the end of the old one.
        self._most_streams = 2 * worker.limits.sessions

    def handler(self) -> grpc.GenericRpcHandler:
        """For ``server.add_generic_rpc_handlers``; messages stay bytes here."""
        method = grpc.stream_stream_rpc_method_handler(self._decode)
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD_NAME: method})

    def end(self) -> None:
        """End every open stream, as a cloud that goes away should."""
        for outbox in self._outboxes.values():
            outbox.put(None)

    async def _decode(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        if self._token:
            await self._authenticate(context)
        self._make_room()
        outbox = SendQueue(self._worker.limits.queue_bytes, lambda: writing.cancel())
        writing = asyncio.ensure_future(self._write(outbox, context))
        stream = RobotStream(outbox.put)
        reading = asyncio.ensure_future(self._read(requests, stream, outbox))
        self._outboxes[stream] = outbox
        try:
            await writing
        except asyncio.CancelledError:
            if not outbox.over:
                raise
        finally:
            reading.cancel()
            self._outboxes.pop(stream, None)
            self._worker.leave(stream)
        if outbox.over:  # it hears of it when it reads on, and resumes; gRPC has no harder way
            text = "the robot does not read what it is sent, or opens no session"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)

    async def _write(self, outbox: SendQueue, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        with contextlib.suppress(grpc.aio.InternalError):  # the robot is gone
            while (data := await outbox.take()) is not None:
                await context.write(data)

    def _make_room(self) -> None:
        """End the oldest stream without a session, where there are too many."""
        if len(self._outboxes) >= self._most_streams:
            idle = (stream for stream in self._outboxes if stream.session is None)
            oldest = next(idle, next(iter(self._outboxes)))
            self._outboxes.pop(oldest).drop()

    async def _read(
        self, requests: AsyncIterator[bytes], stream: RobotStream, outbox: SendQueue
    ) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError):  # the robot is gone
            async for data in requests:
                self._worker.receive(stream, data)
                while self._is_behind(stream, outbox):
                    await asyncio.sleep(0.01)  # not read, so that the robot's side is held up
        outbox.put(None)

    def _is_behind(self, stream: RobotStream, outbox: SendQueue) -> bool:
        """Whether the worker has to catch up with this robot, or the robot with its answers."""
        (messages, size), most = stream.backlog, self._worker.limits.queue_bytes
        return messages > MAX_WAITING or max(size, 2 * outbox.size) > most

    async def _authenticate(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        metadata = dict(context.invocation_metadata() or ())
        given = str(metadata.get("authorization", ""))
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the bearer token is missing or wrong; give the robot the verifier's token",
            )
