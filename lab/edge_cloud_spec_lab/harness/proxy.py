"""The emulated link in real time: proxies of TCP bytes and of gRPC messages.

``Proxy`` delays TCP's bytes, in order, and has outages; tests can change its destination, its
profile and its outages while it runs. ``MessageProxy`` loses, repeats, reorders, delays or damages
single messages: no network does this to a TCP stream, but a broken relay might.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import grpc
import grpc.aio

from edge_cloud_spec.cloud.serving.server import handler_of
from edge_cloud_spec.loop_thread import LoopThread
from edge_cloud_spec.wire.channel import CLIENT_OPTIONS, METHOD, SERVER_OPTIONS

from .emulated_link import Direction, LinkProfile

_ENDED = (grpc.aio.UsageError, grpc.aio.InternalError)  # what a write to a stream that ended raises
REORDER_HOLD_S = 0.3  # that others have to overtake a message that is reordered


@dataclass(frozen=True)
class MessageFaults:
    """The share of messages, 0 to 1, to which each fault happens."""

    lost: float = 0.0
    repeated: float = 0.0
    reordered: float = 0.0
    corrupted: float = 0.0  # one bit of it is another
    truncated: float = 0.0


class MessageProxy:
    """Listens at ``address`` and relays each stream to ``to``, with ``faults`` both ways."""

    def __init__(self, to: str, faults: MessageFaults, seed: int = 0) -> None:
        self._to, self.faults = to, faults
        self._random = Random(seed)
        self._thread = LoopThread("proxy")
        self.address: str = self._thread.run(self._start())

    def close(self) -> None:
        """End all streams and the thread."""
        self._thread.run(self._server.stop(0.0))
        self._thread.run(self._channel.close())
        self._thread.close()

    async def _start(self) -> str:
        self._channel = grpc.aio.insecure_channel(self._to, options=CLIENT_OPTIONS)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((handler_of(self._relay),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def _relay(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        call = self._channel.stream_stream(METHOD)(metadata=context.invocation_metadata())
        up = asyncio.ensure_future(self._pump_up(requests, call))
        try:
            await self._pump(call, context.write)
        except grpc.aio.AioRpcError:
            await context.abort(await call.code(), await call.details() or "")
        finally:
            up.cancel()
            call.cancel()

    async def _pump_up(self, requests: AsyncIterator[bytes], call: Any) -> None:
        await self._pump(requests, call.write)
        await call.done_writing()

    async def _pump(
        self, messages: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[object]]
    ) -> None:
        later: set[asyncio.Task[None]] = set()
        free = asyncio.Lock()  # gRPC takes one message at a time

        async def send(data: bytes, wait: float) -> None:
            await asyncio.sleep(wait)
            async with free:
                await write(data)

        async def send_later(data: bytes, wait: float) -> None:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, *_ENDED):
                await send(data, wait)

        try:
            async for message in messages:
                for data, wait in self._drawn(message):
                    if not wait:
                        await send(data, wait)
                        continue
                    task = asyncio.ensure_future(send_later(data, wait))
                    later.add(task)
                    task.add_done_callback(later.discard)
            if later:
                await asyncio.wait(later)
        finally:
            for task in later:
                task.cancel()

    def _drawn(self, message: bytes) -> list[tuple[bytes, float]]:
        """The messages to send instead of this one, each with its delay, s."""
        faults, draw = self.faults, self._random.random
        data, wait = message, 0.0
        if draw() < faults.lost:
            return []
        if data and draw() < faults.corrupted:
            at = self._random.randrange(len(data))
            bit = 1 << self._random.randrange(8)
            data = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        if data and draw() < faults.truncated:
            data = data[: self._random.randrange(len(data))]
        if draw() < faults.reordered:
            wait = REORDER_HOLD_S * draw()
        return [(data, wait)] * (2 if draw() < faults.repeated else 1)


PROXY_CHUNK_BYTES = 65_536


class Proxy(contextlib.AbstractContextManager["Proxy"]):
    """Listens at ``address`` and forwards to ``to``; an outage breaks every connection."""

    def __init__(self, to: str, profile: LinkProfile | None = None, seed: int = 0) -> None:
        self._to = _host_and_port(to)
        self._profile = profile = profile or LinkProfile()
        self._ways = (Direction(profile, 2 * seed), Direction(profile, 2 * seed + 1))
        self._writers: set[asyncio.StreamWriter] = set()
        self._out = self._silent = False
        # epoll would round every wait up to a millisecond
        self._thread = LoopThread("proxy", asyncio.SelectorEventLoop(selectors.SelectSelector()))
        self._loop = self._thread.loop
        self._started = self._loop.time()
        self.address: str = self._thread.run(self._start())

    def close(self) -> None:
        """Break all connections and end the thread."""
        self._loop.call_soon_threadsafe(self._server.close)
        self._thread.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sent_bytes(self) -> tuple[int, int]:
        """That it has taken from either end so far: up, and down."""
        up, down = self._ways
        return up.bytes, down.bytes

    @property
    def leads_to(self) -> str:
        """The address that connections are forwarded to."""
        return f"{self._to[0]}:{self._to[1]}"

    def cut(self) -> int:
        """Break all connections, as a lost link does; returns how many there were."""
        broken: int = self._thread.run(self._cut())
        return broken

    async def _cut(self) -> int:
        for writer in self._writers:
            writer.transport.abort()
        return len(self._writers) // 2

    def redirect(self, to: str) -> None:
        """Break all connections; new ones go to ``to``."""
        self._to = _host_and_port(to)
        self.cut()

    def set_out(self, out: bool) -> None:
        """Break all connections and refuse new ones (True), or accept them again."""
        self._out = out
        self.cut()

    def set_silent(self, silent: bool) -> None:
        """Drop all bytes both ways while connections stay open (half-open, for either end).

        Afterwards the connections are broken, since bytes are missing.
        """
        self._silent = silent
        if not silent:
            self.cut()

    def set_delay(self, delay_ms: float) -> None:
        """Set the delay each way, for bytes sent from now on."""
        profile = replace(self._profile, delay_ms=delay_ms)
        for way in self._ways:
            way.profile = profile

    async def _start(self) -> str:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._outages = asyncio.ensure_future(self._run_outages())
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _now(self) -> float:
        """Seconds since the link began."""
        return self._loop.time() - self._started

    async def _run_outages(self) -> None:
        for begin, end in self._profile.outages():
            await asyncio.sleep(begin - self._now())
            self._out = True
            await self._cut()
            for way in self._ways:
                way.clear()
            await asyncio.sleep(end - self._now())
            self._out = False

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        with contextlib.suppress(OSError, asyncio.CancelledError):  # nobody is there; it is closed
            try:
                if self._out:
                    return
                far_reader, far_writer = await asyncio.open_connection(*self._to)
                ends.add(far_writer)
                self._writers |= ends
                await asyncio.gather(
                    self._relay(reader, far_writer, self._ways[0]),
                    self._relay(far_reader, writer, self._ways[1]),
                )
            finally:
                self._writers -= ends
                for end in ends:
                    end.transport.abort()

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        """Forward until either end is gone."""
        in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.ensure_future(self._write(writer, in_flight))
        with contextlib.suppress(OSError):
            while data := await reader.read(PROXY_CHUNK_BYTES):
                if self._silent:
                    continue
                in_flight.put_nowait((way.arrival(self._now(), len(data)), data))
        in_flight.put_nowait((way.arrival(self._now(), 0), b""))
        await writing

    async def _write(
        self, writer: asyncio.StreamWriter, in_flight: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while True:
            arrival, data = await in_flight.get()
            await asyncio.sleep(arrival - self._now())
            if not data or writer.transport.is_closing():
                writer.close()
                return
            writer.write(data)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
