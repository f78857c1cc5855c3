"""The worker's gRPC service: bytes in, bytes out, one stream per robot."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from ...presets import preset_names
from ...wire.codec import read_client
from ...wire.messages import Fault, Opened, ServerMessage, WireError
from ..model_thread.engine import fault_of
from ..model_thread.sessions import RobotStream
from ..model_thread.worker import Worker
from .access import AccessSettings, Gate, retry_after
from .client_streams import ClientStreams, SendQueue
from .meter import Meter

log = logging.getLogger(__name__)

NOT_SERVING_RETRY_S = 1.0  # until a robot may check whether the model's thread works again


class DecodeService:
    """Relays each stream to the model's thread, within the limits of ``access``."""

    def __init__(self, worker: Worker, access: AccessSettings) -> None:
        """Raises UserError for an unusable token file."""
        self._worker = worker
        self.gate = Gate(access)
        self.streams = ClientStreams(worker.limits)
        self.meter = Meter(preset_names())
        self.problem = ""  # of the model's thread; while set, no stream is admitted

    def end(self) -> None:
        """End every open stream, before the server stops."""
        for queue in self.streams.streams.values():
            queue.put(None)

    async def decode(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Serve one robot's stream."""
        client, credential = await self.gate.admit(context)
        if not await self._takes(credential, context):
            return
        if self.problem:
            self.gate.refused["not_serving"] += 1
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, self.problem, retry_after(NOT_SERVING_RETRY_S)
            )
        await self.gate.admit_stream(client, context)
        stream, queue = self.streams.open(
            client,
            lambda queue: RobotStream(queue.put, client, self._on_send, credential),
            lambda: writing.cancel(),
        )
        self.meter.opened_streams += 1
        writing = asyncio.ensure_future(self._write(queue, context))
        reading = asyncio.ensure_future(self._read(context, stream, queue))
        try:
            await writing
        except asyncio.CancelledError:
            if not queue.over:
                raise
        finally:
            reading.cancel()
            self.streams.remove(stream)
            self._worker.leave(stream)
        await self.gate.refuse_for("bytes_per_second", queue.refuse_for, client, context)
        if queue.over:  # the robot receives this when it reads again, and resumes
            self.meter.slow_readers += queue.unread
            name = stream.session.name if stream.session else ""
            why = "its robot does not read" if queue.unread else "it made room"
            log.info("a stream is dropped: %s", why, extra={"client": client, "session": name})
            text = "the robot does not read what it is sent, or opens no session"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)

    async def _takes(self, credential: str, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        """Whether this verifier serves a robot with this (valid) credential."""
        return True

    def _on_send(self, stream: RobotStream, message: ServerMessage) -> None:
        """Called in the worker's thread to queue its message."""
        self.meter.sent(stream, message)
        if isinstance(message, Opened):
            about = {"client": stream.client, "session": message.session}
            log.info("a robot is served", extra=about)
        elif isinstance(message, Fault):
            session = stream.session.name if stream.session else ""
            log.info("fault %s", message.code, extra={"client": stream.client, "session": session})

    async def _write(self, queue: SendQueue, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        with contextlib.suppress(grpc.aio.InternalError):  # the robot has left
            while (frame := await queue.take()) is not None:
                await context.write(frame.data)
                self.meter.sent_bytes += len(frame)

    async def _read(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        stream: RobotStream,
        queue: SendQueue,
    ) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError):  # the robot has left
            # Not from gRPC's iterator, which keeps the last message until there is another.
            while (data := await context.read()) is not grpc.aio.EOF:
                self.meter.received_bytes += len(data)
                now = time.monotonic()
                wait = self.gate.rates.take("bytes", stream.client, now, len(data))
                if wait:
                    queue.refuse_for = wait
                    break
                try:
                    frame = read_client(data)
                except WireError as error:
                    stream.send(fault_of(error))
                else:
                    self.meter.received(stream, frame)
                    self._worker.receive(stream, frame)
                    del frame  # nor is it kept here
                while pause := self.gate.rates.take("messages", stream.client, time.monotonic()):
                    await asyncio.sleep(pause)  # a flood must not use up the others' time
                while self.streams.is_behind(stream):
                    # Without reading, so that flow control stops the robot.
                    await asyncio.sleep(0.01)
                del data
        queue.put(None)
