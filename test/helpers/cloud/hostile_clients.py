"""Hostile clients: streams that repeat one attack as fast as the verifier lets them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import grpc
import grpc.aio
from helpers.cloud.grpc_cloud import until

from edge_cloud_spec.decoding.draft import MAX_NODES, Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.lab.harness.loop_thread import LoopThread
from edge_cloud_spec.models.prompt import Request
from edge_cloud_spec.wire.channel import CLIENT_OPTIONS, METHOD
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    DraftMessage,
    Fault,
    Open,
    Opened,
    ServerMessage,
    Verdict,
)

PAUSE_S = 0.01  # after a stream that was ended, or a refusal: a hundred a second

# What the end of a stream or connection raises.
_ENDED = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)


class Client:
    """One hostile stream at a time; a new one when it was ended."""

    def __init__(self, address: str, request: Request, random: Random) -> None:
        self.address, self.request, self.random = address, request, random
        self._channel = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        self._method = self._channel.stream_stream(METHOD)
        self._open_call: Any = None

    @property
    def _call(self) -> Any:
        """The stream; opened where it is first used."""
        if self._open_call is None:
            self._open_call = self._method()
        return self._open_call

    async def repeat(self, attack: Attack, sent: list[Client]) -> None:
        """Attack until cancelled; when the verifier ends a stream, open another."""
        while True:
            with contextlib.suppress(*_ENDED):
                async with contextlib.aclosing(attack(self)) as steps:
                    async for _ in steps:
                        sent.append(self)
            if self._open_call is not None:
                self._open_call.cancel()
                self._open_call = None
            await asyncio.sleep(PAUSE_S)

    async def send(self, message: ClientMessage) -> None:
        """Send a message, once the stream has room."""
        await self._call.write(encode_client(message))

    async def receive(self) -> ServerMessage:
        """The next message of the verifier."""
        data = await self._call.read()
        if data is grpc.aio.EOF:
            raise grpc.RpcError
        return decode_server(data)

    async def open(self, opening: Open) -> Opened:
        """A session; refusals are tried again."""
        while True:
            await self.send(opening)
            if isinstance(answer := await self.receive(), Opened):
                return answer
            await asyncio.sleep(PAUSE_S)

    def opening(self) -> Open:
        """A valid request, new to the verifier: bytes after a picture's end are not decoded."""
        request, nonce = self.request, self.random.getrandbits(64)
        jpeg = request.jpeg + self.random.randbytes(8)
        message = Open(nonce, request.instruction, jpeg, request.order, GREEDY, "greedy")
        return replace(message, draft_identity="hostile")


Attack = Callable[[Client], AsyncGenerator[None, None]]


HALF_OPEN = 16  # connections of one client that say nothing more
RECONNECTS_PER_S = 100.0
_SETTINGS, _HEADERS, _DATA = 4, 1, 0
_END_HEADERS = 4
_FRAME_BYTES = 16_000  # of a frame; a server takes 16,384 unless it says otherwise


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame (RFC 9113, section 4.1)."""
    head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + payload


def _literal(name: str, value: str) -> bytes:
    """A header field without index or compression; both parts shorter than 127 bytes."""
    return b"\x00" + b"".join(bytes((len(part),)) + part.encode() for part in (name, value))


def call_beginning() -> bytes:
    """The bytes that begin a connection and a decode on its stream 1."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    headers = b"".join(_literal(name, value) for name, value in fields.items())
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b"")
    return preface + _frame(_HEADERS, _END_HEADERS, 1, headers)


def data_frames(message: bytes) -> bytes:
    """A gRPC message in frames of stream 1."""
    data = b"\x00" + struct.pack(">I", len(message)) + message
    parts = (data[at : at + _FRAME_BYTES] for at in range(0, len(data), _FRAME_BYTES))
    return b"".join(_frame(_DATA, 0, 1, part) for part in parts)


@contextlib.asynccontextmanager
async def _connected(client: Client) -> AsyncIterator[asyncio.StreamWriter]:
    """A connection on which a decode has begun; what arrives there is not read."""
    host, _, port = client.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(call_beginning())
        await writer.drain()
        yield writer
    finally:
        writer.transport.abort()


def _request(client: Client) -> bytes:
    """The frames of a valid request."""
    return data_frames(encode_client(client.opening()))


async def byte_a_second(client: Client) -> AsyncGenerator[None, None]:
    """Send a valid request, a byte a second."""
    async with _connected(client) as writer:
        for byte in _request(client):
            writer.write(bytes((byte,)))
            await writer.drain()
            yield
            await asyncio.sleep(1.0)


async def vanishes(client: Client) -> AsyncGenerator[None, None]:
    """Vanish in mid-frame: every other time by a reset, else the connection just stays silent."""
    silent: deque[contextlib.AsyncExitStack] = deque()
    try:
        while True:
            stack = contextlib.AsyncExitStack()
            silent.append(stack)
            writer = await stack.enter_async_context(_connected(client))
            frames = _request(client)
            writer.write(frames[: client.random.randrange(1, len(frames))])
            await writer.drain()
            yield
            if client.random.random() < 0.5:
                linger = struct.pack("ii", 1, 0)  # a close sends RST
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                await silent.pop().aclose()
            elif len(silent) > HALF_OPEN:
                await silent.popleft().aclose()
            await asyncio.sleep(1.0 / RECONNECTS_PER_S)
    finally:
        for stack in silent:
            await stack.aclose()


async def reconnects(client: Client) -> AsyncGenerator[None, None]:
    """Connect, open a session and leave, a hundred times a second."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        async with _connected(client) as writer:
            writer.write(_request(client))
            await writer.drain()
            yield
        due += 1.0 / RECONNECTS_PER_S
        await asyncio.sleep(max(0.0, due - loop.time()))


async def large_trees(client: Client) -> AsyncGenerator[None, None]:
    """Trees of 1,024 nodes without end, as wide as the vocabulary is: judged or refused."""
    wide = Draft(tuple(range(20, 20 + MAX_NODES)), (-1,) * MAX_NODES)
    while True:
        base = (await client.open(client.opening())).base
        answer: object = None
        while not (isinstance(answer, Verdict) and (answer.finish or answer.token is None)):
            await client.send(DraftMessage(base, wide, 0))
            while not isinstance(answer := await client.receive(), (Verdict, Fault)):
                pass
            yield
            if isinstance(answer, Verdict) and answer.token is not None:
                base = base.extend((*(wide.tokens[node] for node in answer.path), answer.token))


async def abandoned(client: Client) -> AsyncGenerator[None, None]:
    """Open a session and leave without Close."""
    await client.open(client.opening())
    yield


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (large_trees, abandoned, byte_a_second, vanishes, reconnects)
}


@contextmanager
def attacking(name: str, address: str, request: Request, enough: int) -> Iterator[None]:
    """Two hostile streams until the end; begins when they have sent ``enough`` messages."""
    sent: list[Client] = []

    async def attack() -> asyncio.Future[Any]:
        clients = (Client(address, request, Random(f"7 {number}")) for number in range(2))
        return asyncio.gather(*(client.repeat(ATTACKS[name], sent) for client in clients))

    thread = LoopThread(f"clients {name}")
    attacks = thread.run(attack())
    try:
        until(lambda: len(sent) >= enough or attacks.done())
        assert not attacks.done(), attacks
        yield
    finally:
        thread.close()  # ends the clients, too
