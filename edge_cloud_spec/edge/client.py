"""The verifier's client: gRPC streams of frames that reconnect after a break.

It adds the secret that proves a session to be this robot's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from ..health import Health, Level
from ..loop_thread import LoopThread, cancel
from ..wire.channel import (
    ASK,
    AVOID,
    CLIENT_OPTIONS,
    LEASE,
    METHOD,
    NO_PROXY,
    host_of,
    is_loopback,
)
from ..wire.codec import encode_client
from ..wire.messages import ClientMessage, Close, Open, Resume, key_of
from ..wire.secret_files import Reloaded
from .events import OnReceive
from .link.probe import UNREACHABLE, probe
from .link.route import ClientSettings, KnownPlace, Place, Route
from .link.stream import LINGER_S, ClientStream

PROBE_TIMEOUT_S, CLIENT_CLOSE_S = 2.0, 5.0
MAX_CHANNELS = 8  # to the verifier and the replicas that were used last


def open_channel(
    cloud: str, credentials: grpc.ChannelCredentials | None, address: str = ""
) -> grpc.aio.Channel:
    """A channel to the verifier ``cloud``, or to another address that must show its certificate.

    Call this on the loop that will use it.
    """
    address = address or cloud
    options: tuple[tuple[str, int | str], ...] = CLIENT_OPTIONS
    if is_loopback(address):
        options = (*options, *NO_PROXY)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    if host_of(address) != host_of(cloud):
        options = (*options, ("grpc.ssl_target_name_override", host_of(cloud)))
    return grpc.aio.secure_channel(address, credentials, options=options)


class SessionKey:
    """The secret of one decode, added to its messages when they leave for the cloud.

    The first Open carries only the secret's hash, so that whoever sees that message cannot take
    over the session; a message that continues a session (Resume, or a repeated Open) carries the
    secret.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)
        self._opened = False

    def sign(self, message: ClientMessage) -> ClientMessage:
        """Add the secret or its hash to a message that needs one."""
        match message:
            case Open():
                secret = self._secret if self._opened else b""
                self._opened = True
                return replace(message, key=key_of(self._secret), secret=secret)
            case Resume():
                return replace(message, secret=self._secret)
            case _:
                return message


class GrpcTransport:
    """The ``Transport`` of one decode over its own gRPC stream."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self._key = SessionKey()

    def send(self, message: ClientMessage) -> int:
        """Encode and send; returns the number of bytes."""
        frame = encode_client(self._key.sign(message))
        if isinstance(message, Close):
            self._stream.close(frame)
        else:
            self._stream.send(frame)
        return len(frame)

    def close(self) -> None:
        """End the stream once everything is sent."""
        self._stream.close()


class VerifierClient:
    """A channel to the verifier on an asyncio loop in its own thread; shared by many streams.

    Raises UserError for an invalid token, certificate or key.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._token = Reloaded(settings.read_token, settings.token_file)
        pem_files = settings.authority, settings.certificate, settings.key
        self._credentials = Reloaded(settings.credentials, *pem_files)
        self._known = KnownPlace()
        self._channels: dict[str, grpc.aio.Channel] = {}  # by address, the last one used last
        self._streams: dict[asyncio.Task[None], ClientStream] = {}
        self._probes: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Future[None]] = set()  # of channels that nobody takes any more
        self._thread = LoopThread("link", timeout_s=CLIENT_CLOSE_S)

    def open(self, on_receive: OnReceive) -> ClientStream:
        """A stream that calls ``on_receive`` for each frame, in the client's thread."""
        route = Route(self.settings, self._known, time.monotonic())
        stream = ClientStream(self.settings, route, self._open_call, self.run_soon, on_receive)
        self.run_soon(lambda: self._start(stream))
        return stream

    def connect(self, on_receive: OnReceive) -> GrpcTransport:
        """The transport of one decode (``DecodeRunner.run``)."""
        return GrpcTransport(self.open(on_receive))

    def probe(self, on_found: Callable[[Health], None]) -> None:
        """Check whether the verifier serves this robot; calls back in the client's thread."""

        async def look() -> None:
            try:
                found = await probe(self._open_channel(), self.settings, PROBE_TIMEOUT_S)
            except Exception as error:
                found = Health(
                    Level.ERROR,
                    f"{self.settings.cloud} cannot be probed: {error!r}",
                    check=UNREACHABLE,
                )
            on_found(found)

        def start() -> None:
            self._probes.add(task := asyncio.ensure_future(look()))
            task.add_done_callback(self._probes.discard)

        self.run_soon(start)

    def forget_replica(self) -> None:
        """Forget the current replica, so that the next stream asks the router; from any thread."""
        self.run_soon(self._known.clear)

    def run_soon(self, job: Callable[[], None]) -> None:
        """Run a job on the client's loop; from any thread."""
        with contextlib.suppress(RuntimeError):  # the client is closed
            self._thread.loop.call_soon_threadsafe(job)

    def close(self) -> None:
        """End all streams and the thread."""
        if self._thread.loop.is_closed():
            return
        self._thread.run(self._shut())
        self._thread.close()

    def _open_call(self, place: Place | None, avoid: str) -> Any:
        """A fresh bidirectional call of raw bytes; on the client's loop (``OpenCall``)."""
        token = self._token.current
        metadata: list[tuple[str, str | bytes]] = []
        if token:
            metadata.append(("authorization", f"Bearer {token}"))
        if place is None:
            metadata.append((ASK, "1"))
        elif place.lease:
            metadata.append((LEASE, place.lease))
        if avoid:
            metadata.append((AVOID, avoid))
        channel = self._open_channel(self.settings.cloud if place is None else place.address)
        return channel.stream_stream(METHOD)(metadata=tuple(metadata) or None)

    def _open_channel(self, address: str = "") -> grpc.aio.Channel:
        """The channel to the verifier or a replica; a new one if certificates were replaced."""
        channels, cloud, credentials = self._channels, self.settings.cloud, self._credentials
        if channels and credentials.renew():
            self._retire([*channels])
        address = address or cloud
        channel = channels.pop(address, None) or open_channel(cloud, credentials.value, address)
        channels[address] = channel
        # Replicas come and go; the router, which is asked for the next one, stays.
        self._retire([each for each in channels if each != cloud][: 1 - MAX_CHANNELS])
        return channel

    def _retire(self, addresses: list[str]) -> None:
        async def close(channel: grpc.aio.Channel) -> None:  # once what is under way has ended
            await asyncio.gather(*self._streams, *self._probes, return_exceptions=True)
            await channel.close()

        for address in addresses:
            self._closing.add(task := asyncio.ensure_future(close(self._channels.pop(address))))
            task.add_done_callback(self._closing.discard)

    def _start(self, stream: ClientStream) -> None:
        task = stream.start()
        self._streams[task] = stream
        task.add_done_callback(self._streams.pop)

    async def _shut(self) -> None:
        closing = [task for task, stream in self._streams.items() if stream.closing]
        if closing:
            await asyncio.wait(closing, timeout=LINGER_S)
        await cancel([*self._streams, *self._probes])
        self._retire([*self._channels])
        await asyncio.gather(*self._closing)
        remaining = asyncio.all_tasks() - {asyncio.current_task()}  # gRPC's tasks of ended calls
        if remaining:
            await asyncio.wait(remaining, timeout=LINGER_S)
