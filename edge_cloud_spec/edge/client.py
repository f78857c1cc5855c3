"""The verifier's client: streams of bytes that reconnect after a break."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ..errors import UserError
from ..wire.channel import CLIENT_OPTIONS, DEFAULT_ADDRESS, METHOD, check_address, is_loopback
from ..wire.codec import encode_client, encode_server
from ..wire.messages import ClientMessage, Close, Fault
from .events import LinkLost, LinkUp
from .session_key import SessionKey
from .transport import OnReceive

log = logging.getLogger(__name__)


UNREACHABLE_S = 1.0  # without a connection for this long, LinkLost is reported
LINGER_S = 0.5  # to send what is queued when a stream is closed

# Statuses that a retry cannot fix: the fault's code, and what to do about it.
_FATAL = {
    grpc.StatusCode.UNAUTHENTICATED: ("unauthenticated", ""),
    grpc.StatusCode.UNIMPLEMENTED: ("not_a_verifier", "check the address and the versions"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        "too_large",
        "send a smaller camera frame, shorter drafts, or use a rule that needs no dense rows",
    ),
    grpc.StatusCode.INVALID_ARGUMENT: ("bad_request", ""),
}


@dataclass(frozen=True)
class ClientSettings:
    """Where the verifier is. ``authority`` is a PEM file with its certificate authority (TLS).

    Off loopback TLS is used in any case, with the system's authorities where none is given.
    ``retry_s``: seconds before a broken stream reconnects. Raises UserError.
    """

    address: str = DEFAULT_ADDRESS
    authority: str = ""
    token: str = ""
    retry_s: float = 0.2

    def __post_init__(self) -> None:
        check_address(self.address)
        if self.authority and not Path(self.authority).is_file():
            raise UserError(f"the certificate authority {self.authority} is not a file")

    @property
    def secure(self) -> bool:
        """Whether the channel is encrypted."""
        return bool(self.authority) or not is_loopback(self.address)


def open_channel(settings: ClientSettings) -> grpc.aio.Channel:
    """A channel to the verifier; on the loop that will use it."""
    if not settings.secure:
        return grpc.aio.insecure_channel(settings.address, options=CLIENT_OPTIONS)
    roots = Path(settings.authority).read_bytes() if settings.authority else None
    credentials = grpc.ssl_channel_credentials(roots)
    return grpc.aio.secure_channel(settings.address, credentials, options=CLIENT_OPTIONS)


class ClientStream:
    """One decode's stream, which reconnects when it breaks. Its methods are for any thread."""

    def __init__(self, client: VerifierClient, on_receive: OnReceive) -> None:
        self._client = client
        self._on_receive = on_receive
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._lost = False  # and LinkLost was reported
        self.closing = False

    def send(self, data: bytes) -> None:
        """Queue these bytes; a reconnect drops what is still queued (see LinkUp)."""
        self._client.run_soon(lambda: self._queue.put_nowait(data))

    def close(self, last: bytes | None = None) -> None:
        """End the stream once everything queued is sent, or at once while it is broken.

        ``last`` is sent before the end. The cloud ends its side after a Close, and that must not
        count as a lost link: so the last message and the close are one call.
        """
        self._client.run_soon(lambda: self._close(last))

    def start(self) -> asyncio.Task[None]:
        """Run the stream; to be called on the client's loop."""
        self._task = asyncio.ensure_future(self._run())
        return self._task

    def _close(self, last: bytes | None) -> None:
        if self.closing:
            return
        assert self._task is not None
        self.closing = True
        if last is not None:
            self._queue.put_nowait(last)
        self._queue.put_nowait(None)
        linger = 0.0 if self._lost else LINGER_S  # for a cloud that does not end its side
        self._task.get_loop().call_later(linger, self._task.cancel)

    async def _run(self) -> None:
        try:
            while not self.closing:
                await self._try_once()
        except _FatalError as error:
            self._on_receive(encode_server(error.fault))
        except Exception as error:
            log.exception("a stream failed")
            fault = Fault("link_failed", f"the link failed on the robot ({error!r}); see its log")
            self._on_receive(encode_server(fault))

    async def _try_once(self) -> None:
        """Connect and relay until the stream ends; pause after a break."""
        connected = False
        try:
            call = await self._connect()
            connected = True
            if self._lost:
                while not self._queue.empty():
                    self._queue.get_nowait()
                self._lost = False
                self._on_receive(LinkUp())
            await self._relay(call)
            reason = "the cloud ended the stream"
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            if error.code() in _FATAL:
                code, advice = _FATAL[error.code()]
                text = f"{reason}; {advice}" if advice else reason
                raise _FatalError(Fault(code, text)) from None
        if not self.closing:
            self._report_loss(reason if connected else self._unreachable(reason))
            await asyncio.sleep(self._client.settings.retry_s)

    async def _connect(self) -> Any:
        """A connected call; LinkLost is reported if that takes longer than UNREACHABLE_S."""
        call = self._client.open_call()
        try:
            await asyncio.wait_for(call.wait_for_connection(), UNREACHABLE_S)
        except asyncio.TimeoutError:
            self._report_loss(self._unreachable("nothing answers there"))
            await call.wait_for_connection()
        return call

    def _unreachable(self, why: str) -> str:
        address = self._client.settings.address
        advice = "; start one there with edge-cloud-spec serve" if is_loopback(address) else ""
        return f"cannot reach the cloud at {address}: {why}{advice}"

    def _report_loss(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._on_receive(LinkLost(reason))

    async def _relay(self, call: Any) -> None:
        writing = asyncio.ensure_future(self._write(call))
        try:
            async for data in call:
                self._on_receive(data)
        finally:
            call.cancel()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)  # reading raises what went wrong

    async def _write(self, call: Any) -> None:
        while (data := await self._queue.get()) is not None:
            await call.write(data)
        await call.done_writing()


class _FatalError(Exception):
    """A failure that a retry cannot fix."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class GrpcTransport:
    """The ``Transport`` of one decode over a gRPC stream of its own."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self._key = SessionKey()

    def send(self, message: ClientMessage) -> int:
        """Encode and send; returns the number of bytes."""
        data = self._key.sign(encode_client(message))
        if isinstance(message, Close):
            self._stream.close(data)
        else:
            self._stream.send(data)
        return len(data)

    def close(self) -> None:
        """End the stream once everything is sent."""
        self._stream.close()


class VerifierClient:
    """A channel to the verifier on an asyncio loop in its own thread; many streams may share it."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._channel: grpc.aio.Channel | None = None
        self._method: Any = None
        self._streams: dict[asyncio.Task[None], ClientStream] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()

    def open(self, on_receive: OnReceive) -> ClientStream:
        """A stream that calls ``on_receive`` for each message, in the client's thread."""
        stream = ClientStream(self, on_receive)
        self.run_soon(lambda: self._start(stream))
        return stream

    def connect(self, on_receive: OnReceive) -> GrpcTransport:
        """The transport of one decode (``DecodeRunner.run``)."""
        return GrpcTransport(self.open(on_receive))

    def run_soon(self, job: Callable[[], None]) -> None:
        """Run a job on the client's loop; from any thread."""
        with contextlib.suppress(RuntimeError):  # the client is closed
            self._loop.call_soon_threadsafe(job)

    def close(self) -> None:
        """End all streams and the thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def open_call(self) -> Any:
        """A fresh bidirectional call of raw bytes; on the client's loop."""
        if self._channel is None:
            self._channel = open_channel(self.settings)
            self._method = self._channel.stream_stream(METHOD)
        token = self.settings.token
        return self._method(metadata=(("authorization", f"Bearer {token}"),) if token else None)

    def _start(self, stream: ClientStream) -> None:
        task = stream.start()
        self._streams[task] = stream
        task.add_done_callback(self._streams.pop)

    async def _shut(self) -> None:
        closing = [task for task, stream in self._streams.items() if stream.closing]
        if closing:
            await asyncio.wait(closing, timeout=LINGER_S)
        tasks = list(self._streams)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
        remaining = asyncio.all_tasks() - {asyncio.current_task()}  # gRPC's own, of ended calls
        if remaining:
            await asyncio.wait(remaining, timeout=LINGER_S)
