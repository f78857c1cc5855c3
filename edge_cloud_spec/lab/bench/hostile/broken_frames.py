"""Hostile connections below gRPC: HTTP/2 frames that come a byte a second, or never come whole.

The frames are those of RFC 9113, the header block is RFC 7541's without compression.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from ....wire.channel import METHOD
from ....wire.codec import encode_client
from .client import Client

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


def call_beginning(token: str = "") -> bytes:
    """The bytes that begin a connection and a decode on its stream 1."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
        **({"authorization": f"Bearer {token}"} if token else {}),
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
        writer.write(call_beginning(client.token))
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
