"""The gRPC face of the worker: bytes in, bytes out, one stream a robot."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from ..wire.channel import METHOD_NAME, RETRY_AFTER, SERVICE
from ..wire.stamps import MAX_STAMPED, Echo, sent_of, with_echo
from .access import AccessSettings, ClientRates, Tokens, client_of
from .send_queue import SendQueue
from .sessions import RobotStream
from .worker import Worker

MAX_WAITING = 16  # messages of one stream that wait for the worker; with more it is not read


class DecodeService:
    """Relays each stream to the worker, within what ``access`` allows each robot."""

    def __init__(self, worker: Worker, access: AccessSettings) -> None:
        """Raises UserError for a token file that cannot be used."""
        self._worker = worker
        self._tokens = Tokens(access)
        self._rates = ClientRates(access)
        self._queues: dict[RobotStream, SendQueue] = {}  # of open streams, the oldest first
        # A robot opens a new stream while the cloud has not noticed the end of the old one.
        self._max_streams = 2 * worker.limits.sessions

    def handler(self) -> grpc.GenericRpcHandler:
        """For ``server.add_generic_rpc_handlers``; messages stay bytes here."""
        method = grpc.stream_stream_rpc_method_handler(self._decode)
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD_NAME: method})

    def end(self) -> None:
        """End every open stream, before the server stops."""
        for queue in self._queues.values():
            queue.put(None)

    async def _decode(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        await self._authenticate(context)
        client = client_of(context)
        await _refuse_for(self._rates.stream(client, time.monotonic()), context)
        self._make_room()
        queue = SendQueue(self._worker.limits.queue_bytes, lambda: writing.cancel())
        writing = asyncio.ensure_future(self._write(queue, context))
        stream = RobotStream(queue.put)
        reading = asyncio.ensure_future(self._read(requests, stream, queue, client))
        self._queues[stream] = queue
        try:
            await writing
        except asyncio.CancelledError:
            if not queue.over:
                raise
        finally:
            reading.cancel()
            self._queues.pop(stream, None)
            self._worker.leave(stream)
        await _refuse_for(queue.refuse_for, context)
        if queue.over:  # the robot gets this when it reads again, and resumes
            text = "the robot does not read what it is sent, or opens no session"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)

    async def _write(self, queue: SendQueue, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        with contextlib.suppress(grpc.aio.InternalError):  # the robot is gone
            while (data := await queue.take()) is not None:
                await context.write(_echoing(data, queue))

    def _make_room(self) -> None:
        """End the oldest stream without a session, where there are too many."""
        if len(self._queues) >= self._max_streams:
            idle = (stream for stream in self._queues if stream.session is None)
            oldest = next(idle, next(iter(self._queues)))
            self._queues.pop(oldest).drop()

    async def _read(
        self, requests: AsyncIterator[bytes], stream: RobotStream, queue: SendQueue, client: str
    ) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError):  # the robot is gone
            async for data in requests:
                wait = self._rates.message(client, len(data), time.monotonic())
                if wait:
                    queue.refuse_for = wait
                    break
                if sent_ns := sent_of(data):
                    queue.stamp = (sent_ns, time.time_ns())
                self._worker.receive(stream, data)
                while self._is_behind(stream, queue):
                    await asyncio.sleep(0.01)  # nothing is read, so that the robot cannot send
        queue.put(None)

    def _is_behind(self, stream: RobotStream, queue: SendQueue) -> bool:
        """Whether too much of this stream waits for the worker, or for its robot."""
        (messages, size), most = stream.backlog, self._worker.limits.queue_bytes
        return messages > MAX_WAITING or max(size, 2 * queue.size) > most

    async def _authenticate(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        metadata = dict(context.invocation_metadata() or ())
        if not self._tokens.admit(str(metadata.get("authorization", ""))):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the bearer token is missing or wrong; give the robot the verifier's token",
            )


async def _refuse_for(seconds: float, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Refuse a robot that asks too much, and say when it may try again; 0: do not."""
    if seconds:
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"this robot asks more than it may; it tries again after {seconds:.1f} s",
            ((RETRY_AFTER, str(math.ceil(1e3 * seconds))),),
        )


def _echoing(data: bytes, queue: SendQueue) -> bytes:
    """The message as it is sent: the first small one after a stamped message carries the times."""
    if queue.stamp is None or len(data) > MAX_STAMPED:
        return data
    (sent_ns, received_ns), queue.stamp = queue.stamp, None
    return with_echo(data, Echo(sent_ns, received_ns, time.time_ns()))
