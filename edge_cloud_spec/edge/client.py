"""The verifier's client: streams of bytes that reconnect after a break.

It signs what proves a session to be this robot's, and measures how far the cloud's clock is ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio

from ..wire.channel import ASK, AVOID, CLIENT_OPTIONS, LEASE, METHOD, host_of
from ..wire.codec import decode_client, encode_client
from ..wire.frames import MAX_STAMPED, echo_of, kind_of, with_sent
from ..wire.messages import ClientMessage, Close, Open, Resume, key_of
from ..wire.secret_files import Reloaded
from .events import OnReceive
from .link.route import ClientSettings, KnownPlace, Place, Route
from .link.stream import LINGER_S, ClientStream
from .probe import CloudState, probe

__all__ = ["ClientSettings", "ClientStream", "GrpcTransport", "VerifierClient", "open_channel"]

STAMP_EVERY_S = 1.0  # a message is stamped for the clock offset no more often than this
PROBE_TIMEOUT_S = 2.0
MAX_CHANNELS = 8
ECHO_DUE_S = 5.0  # a stamp without an echo by then is forgotten: an older cloud sends none
KEPT = 32  # samples of the clock offset
MAX_AGE_S = 300.0  # of a sample
DRIFT = 100e-6  # by which two clocks may part, of the time that passed; crystals are within 50e-6


def open_channel(settings: ClientSettings) -> grpc.aio.Channel:
    """A channel to the verifier; on the loop that will use it. Raises UserError."""
    return _channel(settings.address, settings.credentials(), host_of(settings.address))


def _channel(
    address: str, credentials: grpc.ChannelCredentials | None, name: str
) -> grpc.aio.Channel:
    """A channel to an address whose certificate must be good for ``name``, wherever it is."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    options: tuple[tuple[str, int | str], ...] = CLIENT_OPTIONS
    if host_of(address) != name:
        options = (*options, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, credentials, options=options)


class SessionKey:
    """The secret of one decode, added to its messages where they leave for the cloud.

    The first Open carries only its hash, so that whoever sees that message cannot take the session
    over; a message that continues a session (Resume, or a repeated Open) carries the secret itself.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)
        self._opened = False

    def sign(self, data: bytes) -> bytes:
        """The bytes of a robot's message as they are sent to the cloud."""
        if kind_of(data) not in ("open", "resume"):
            return data
        try:
            message = decode_client(data)
        except ValueError:  # the cloud reports what is wrong with it
            return data
        if isinstance(message, Open):
            secret = self._secret if self._opened else b""
            self._opened = True
            return encode_client(replace(message, key=key_of(self._secret), secret=secret))
        if isinstance(message, Resume):
            return encode_client(replace(message, secret=self._secret))
        return data


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


@dataclass(frozen=True)
class Offset:
    """The cloud's clock less the robot's, s; the truth is within ``uncertainty_s`` of it."""

    offset_s: float
    uncertainty_s: float

    def agrees(self, other: Offset) -> bool:
        """Whether both can be true."""
        apart = abs(self.offset_s - other.offset_s)
        return apart <= self.uncertainty_s + other.uncertainty_s


class ClockOffset:
    """How far the cloud's clock is ahead of the robot's, from the times on messages.

    NTP's arithmetic (RFC 5905, section 8): a message leaves at t1 by the robot's clock and arrives
    at t2 by the cloud's; an answer leaves at t3 by the cloud's and arrives at t4 by the robot's.
    The offset is ((t2 - t1) + (t3 - t4)) / 2, and wrong by half of the round trip at most, however
    unequal the two ways are. So of the samples of the last minutes the one with the shortest round
    trip is the best. A sample that contradicts older ones shows that a clock was set: those are
    forgotten.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Offset]] = deque(maxlen=KEPT)  # when, and what
        self.steps = 0  # times that a clock was set

    def observe(self, t1: int, t2: int, t3: int, t4: int, now: float) -> bool:
        """A message and its answer, ns (see above); ``now`` is steady time, s.

        False where these times cannot be: a clock was set meanwhile, or the cloud lies.
        """
        round_trip_ns = (t4 - t1) - (t3 - t2)
        if round_trip_ns < 0 or t3 < t2 or t4 < t1:
            return False
        sample = Offset(((t2 - t1) + (t3 - t4)) / 2e9, round_trip_ns / 2e9)
        kept = [(when, old) for when, old in self._samples if sample.agrees(_aged(old, now - when))]
        self.steps += bool(self._samples and not kept)
        self._samples = deque([*kept, (now, sample)], KEPT)
        return True

    def at(self, now: float) -> Offset | None:
        """The offset and its uncertainty at this steady time (s); None where it is not known."""
        aged = [_aged(old, now - when) for when, old in self._samples if now - when <= MAX_AGE_S]
        return min(aged, key=lambda sample: sample.uncertainty_s, default=None)


def _aged(sample: Offset, seconds: float) -> Offset:
    """A sample after this time: the clocks drift apart."""
    return Offset(sample.offset_s, sample.uncertainty_s + DRIFT * max(0.0, seconds))


class VerifierClient:
    """A channel to the verifier on an asyncio loop in its own thread; many streams may share it.

    Raises UserError for a token, certificate or key that cannot be used.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._token = Reloaded(settings.read_token, settings.token_file)
        self._credentials = Reloaded(settings.credentials, *settings.pem_files)
        self._clock = ClockOffset()
        self._stamped: tuple[int, float] | None = None  # the stamp under way, and steady time
        self._loop = asyncio.new_event_loop()
        self._known = KnownPlace()
        self._channels: dict[str, grpc.aio.Channel] = {}  # by address
        self._old_channels: list[grpc.aio.Channel] = []  # with streams from before a rotation
        self._streams: dict[asyncio.Task[None], ClientStream] = {}
        self._probes: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()

    @property
    def clock_offset(self) -> Offset | None:
        """The cloud's clock less the robot's; None before it was measured. From any thread."""
        return self._clock.at(time.monotonic())

    @property
    def address(self) -> str:
        """The verifier's HOST:PORT."""
        return self.settings.address

    @property
    def retry_s(self) -> float:
        """Pause before a broken stream reconnects, s."""
        return self.settings.retry_s

    def open(self, on_receive: OnReceive) -> ClientStream:
        """A stream that calls ``on_receive`` for each message, in the client's thread."""
        stream = ClientStream(self, on_receive)
        self.run_soon(lambda: self._start(stream))
        return stream

    def connect(self, on_receive: OnReceive) -> GrpcTransport:
        """The transport of one decode (``DecodeRunner.run``)."""
        return GrpcTransport(self.open(on_receive))

    def probe(self, on_found: Callable[[CloudState], None]) -> None:
        """Look whether the verifier serves this robot; calls back in the client's thread."""

        async def look() -> None:
            try:
                found = await probe(self._open_channel(), self.settings, PROBE_TIMEOUT_S)
            except Exception as error:
                found = CloudState("unreachable", f"{self.address} cannot be probed: {error!r}")
            on_found(found)

        def start() -> None:
            self._probes.add(task := asyncio.ensure_future(look()))
            task.add_done_callback(self._probes.discard)

        self.run_soon(start)

    def forget_replica(self) -> None:
        """Let the next stream ask the front again; from any thread."""
        self.run_soon(self._known.clear)

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

    # For the streams, on the client's loop

    def route(self) -> Route:
        """The way of a new stream."""
        return Route(self.settings, self._known, time.monotonic())

    def open_call(self, place: Place | None, avoid: str) -> Any:
        """A fresh bidirectional call of raw bytes; on the client's loop (see ``StreamHost``)."""
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
        channel = self._open_channel(self.address if place is None else place.address)
        return channel.stream_stream(METHOD)(metadata=tuple(metadata) or None)

    def _open_channel(self, address: str = "") -> grpc.aio.Channel:
        """The channel to the verifier or a replica; others where certificates were replaced."""
        if self._channels and self._credentials.renew():
            self._old_channels += self._channels.values()
            self._channels.clear()
        address = address or self.settings.address
        if address not in self._channels:
            if len(self._channels) >= MAX_CHANNELS:  # replicas come and go
                self._old_channels.append(self._channels.pop(next(iter(self._channels))))
            name = host_of(self.settings.address)
            self._channels[address] = _channel(address, self._credentials.value, name)
        return self._channels[address]

    def stamp(self, data: bytes) -> bytes:
        """The message as it is sent: one a second carries the time."""
        now = time.monotonic()
        due = STAMP_EVERY_S if self._stamped is None or not self._stamped[0] else ECHO_DUE_S
        if len(data) > MAX_STAMPED or (self._stamped and now - self._stamped[1] < due):
            return data
        sent_ns = time.time_ns()
        self._stamped = (sent_ns, now)
        return with_sent(data, sent_ns)

    def read_echo(self, data: bytes) -> None:
        """Compare the clocks, where the message carries the cloud's times."""
        if not self._stamped or not self._stamped[0] or len(data) > MAX_STAMPED:
            return
        received_ns, (sent_ns, sent_at) = time.time_ns(), self._stamped
        echo = echo_of(data)
        if echo is None or echo.sent_ns != sent_ns:
            return
        self._stamped = (0, sent_at)
        now = time.monotonic()
        self._clock.observe(sent_ns, echo.received_ns, echo.answered_ns, received_ns, now)

    def _start(self, stream: ClientStream) -> None:
        task = stream.start()
        self._streams[task] = stream
        task.add_done_callback(self._streams.pop)

    async def _shut(self) -> None:
        closing = [task for task, stream in self._streams.items() if stream.closing]
        if closing:
            await asyncio.wait(closing, timeout=LINGER_S)
        tasks = [*self._streams, *self._probes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in (*self._old_channels, *self._channels.values()):
            await channel.close()
        remaining = asyncio.all_tasks() - {asyncio.current_task()}  # gRPC's own, of ended calls
        if remaining:
            await asyncio.wait(remaining, timeout=LINGER_S)
