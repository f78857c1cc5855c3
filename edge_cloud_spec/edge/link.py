"""The link's client end: streams of bytes to the verifier that come back after they broke."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ..errors import UserError
from ..wire.channel import CLIENT_OPTIONS, METHOD, is_loopback
from ..wire.codec import encode_client, encode_server
from ..wire.messages import ClientMessage, Fault
from .events import LinkLost, LinkUp

Inlet = Callable[[bytes | LinkLost | LinkUp], None]

# Trying again cannot mend these.
_FINAL = {
    grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
    grpc.StatusCode.UNIMPLEMENTED: "not_a_verifier",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "too_large",
    grpc.StatusCode.INVALID_ARGUMENT: "bad_request",
}


@dataclass(frozen=True)
class LinkSettings:
    """Where the verifier is. ``authority`` is a PEM file with its certificate authority (TLS);

    off loopback TLS is used in any case, with the system's authorities where none is given.
    """

    address: str = "127.0.0.1:50151"
    authority: str = ""
    token: str = ""
    retry_s: float = 0.2

    def __post_init__(self) -> None:
        if ":" not in self.address:
            raise UserError(f"the cloud address must be HOST:PORT, not {self.address!r}")
        if self.authority and not Path(self.authority).is_file():
            raise UserError(f"the certificate authority {self.authority} is not a file")

    @property
    def secure(self) -> bool:
        """Whether the channel is encrypted."""
        return bool(self.authority) or not is_loopback(self.address)


class Stream:
    """One decode's stream. ``send`` and ``close`` may be called from any thread."""

    def __init__(self, link: Link, inlet: Inlet) -> None:
        self._link = link
        self._inlet = inlet
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False

    def send(self, data: bytes) -> None:
        """Queue these bytes; what is sent while the stream is down is dropped (see LinkUp)."""
        self._link.call(lambda: self._outbox.put_nowait(data))

    def close(self) -> None:
        """End the stream once everything queued is out."""
        self._closed = True
        self._link.call(lambda: self._outbox.put_nowait(None))

    async def run(self) -> None:
        """Connect, relay, and connect again until closed (on the link's loop)."""
        lost = False
        while not self._closed:
            try:
                await self._link.ready()
                call = self._link.open_call()
                if lost:
                    self._drain()
                    self._inlet(LinkUp())
                await self._relay(call)
                reason = "the cloud ended the stream"
            except grpc.aio.AioRpcError as error:
                code = _FINAL.get(error.code())
                if code:
                    self._inlet(encode_server(Fault(code, error.details() or code)))
                    return
                reason = error.details() or error.code().name
            if self._closed:
                return
            if not lost:
                self._inlet(LinkLost(reason))
            lost = True
            await asyncio.sleep(self._link.settings.retry_s)

    def _drain(self) -> None:
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._outbox.get_nowait()

    async def _relay(self, call: Any) -> None:
        writing = asyncio.ensure_future(self._write(call))
        try:
            async for data in call:
                self._inlet(data)
        finally:
            writing.cancel()
            call.cancel()

    async def _write(self, call: Any) -> None:
        while (data := await self._outbox.get()) is not None:
            await call.write(data)
        await call.done_writing()


class GrpcOutlet:
    """A decode's way to the cloud over a stream of its own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def send(self, message: ClientMessage) -> int:
        """Encode and send; the number of bytes."""
        data = encode_client(message)
        self._stream.send(data)
        return len(data)

    def close(self) -> None:
        """End the stream once everything is out."""
        self._stream.close()


class Link:
    """A channel to the verifier on an asyncio loop in its own thread; many streams may share it."""

    def __init__(self, settings: LinkSettings) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._channel: grpc.aio.Channel | None = None
        self._method: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()

    def open(self, inlet: Inlet) -> Stream:
        """A stream whose messages go to ``inlet`` (called in the link's thread)."""
        stream = Stream(self, inlet)
        self.call(lambda: self._spawn(stream))
        return stream

    def connect(self, inlet: Inlet) -> GrpcOutlet:
        """The way to the cloud for one decode (``DecodeRunner.run``)."""
        return GrpcOutlet(self.open(inlet))

    def call(self, job: Callable[[], None]) -> None:
        """Run a job on the link's loop; from any thread."""
        with contextlib.suppress(RuntimeError):  # the link is closed
            self._loop.call_soon_threadsafe(job)

    def close(self) -> None:
        """End all streams and the thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    async def ready(self) -> None:
        """Wait until the channel is connected."""
        if self._channel is None:
            self._channel = self._connect()
            self._method = self._channel.stream_stream(METHOD)
        await self._channel.channel_ready()

    def open_call(self) -> Any:
        """A fresh bidirectional call of raw bytes."""
        token = self.settings.token
        return self._method(metadata=(("authorization", f"Bearer {token}"),) if token else None)

    def _connect(self) -> grpc.aio.Channel:
        settings = self.settings
        if not settings.secure:
            return grpc.aio.insecure_channel(settings.address, options=CLIENT_OPTIONS)
        roots = Path(settings.authority).read_bytes() if settings.authority else None
        credentials = grpc.ssl_channel_credentials(roots)
        return grpc.aio.secure_channel(settings.address, credentials, options=CLIENT_OPTIONS)

    def _spawn(self, stream: Stream) -> None:
        task = self._loop.create_task(stream.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shut(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
