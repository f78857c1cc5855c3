"""A hostile client: one stream to the verifier, and the messages that attacks are made of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from random import Random
from typing import Any

import grpc
import grpc.aio

from ....decoding.policy import GREEDY
from ....models.prompt import Request
from ....wire.channel import CLIENT_OPTIONS, METHOD
from ....wire.codec import decode_server, encode_client
from ....wire.messages import ClientMessage, Open, Opened, ServerMessage

PAUSE_S = 0.01  # after a stream that was ended, or a refusal: a hundred a second

# What the end of a stream or connection raises.
_ENDED = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)


class Client:
    """One hostile stream at a time; a new one when it was ended. ``token``: the one it shows."""

    def __init__(self, address: str, request: Request, random: Random, token: str = "") -> None:
        self.address, self.request, self.random, self.token = address, request, random, token
        self.sent = 0
        self._channel = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        self._method = self._channel.stream_stream(METHOD)
        self._open_call: Any = None

    @property
    def _call(self) -> Any:
        """The stream; opened where it is first used."""
        if self._open_call is None:
            shown = (("authorization", f"Bearer {self.token}"),) if self.token else None
            self._open_call = self._method(metadata=shown)
        return self._open_call

    async def repeat(self, attack: Attack) -> None:
        """Attack until cancelled; when the verifier ends a stream, open another."""
        while True:
            with contextlib.suppress(*_ENDED):
                async with contextlib.aclosing(attack(self)) as steps:
                    async for _ in steps:
                        self.sent += 1
            if self._open_call is not None:
                self._open_call.cancel()
                self._open_call = None
            await asyncio.sleep(PAUSE_S)

    async def send(self, message: ClientMessage | bytes) -> None:
        """Send a message, once the stream has room."""
        await self._call.write(message if isinstance(message, bytes) else encode_client(message))

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

    async def drain(self) -> None:
        """Read messages and drop them."""
        with contextlib.suppress(grpc.RpcError):
            while await self._call.read() is not grpc.aio.EOF:
                pass

    def opening(self, jpeg: bytes = b"", **changes: Any) -> Open:
        """A valid request, new to the verifier: bytes after a picture's end are not decoded."""
        jpeg = (jpeg or self.request.jpeg) + self.random.randbytes(8)
        nonce, request = self.random.getrandbits(64), self.request
        message = Open(nonce, request.instruction, jpeg, request.order, GREEDY, "greedy")
        return replace(message, draft_identity="hostile", **changes)


Attack = Callable[[Client], AsyncGenerator[None, None]]
