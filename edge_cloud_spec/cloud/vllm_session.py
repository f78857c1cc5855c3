"""One decode on a vLLM server: its verified tokens, and the stream of the target's own."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

import numpy as np

from ..decoding.draft import MAX_DRAFTED, Draft
from ..models.image import picture_spans
from ..models.prompt import Prompt
from ..wire.messages import Open
from .model_thread.target_session import TargetSession
from .vllm_server import VllmReply

# While the target generates without drafts: tokens of one streamed request, and by how many it may
# be ahead of the session, whose robot may have gone.
STREAM_TOKENS, AHEAD_TOKENS = 1024, 32


class TokenStream:
    """The target's own tokens after a prefix, by one streamed request, so that a server which
    speculates by itself does so; belongs to the client's event loop.

    ``length``: tokens of the answer, with those that were taken. ``began_s``: monotonic time, s;
    from then on one process of the server says them all.
    """

    def __init__(self, length: int, replies: Awaitable[AsyncGenerator[VllmReply, None]]) -> None:
        self.length, self.began_s = length, time.monotonic()
        self._tokens: list[int] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.ensure_future(self._read(replies))

    async def take(self) -> list[int]:
        """The tokens that have arrived, once there are some; none: the stream has ended.

        Raises UserError, or errors of the ``openai`` package.
        """
        await self._news.wait()
        taken, self._tokens = self._tokens[: MAX_DRAFTED + 1], self._tokens[MAX_DRAFTED + 1 :]
        if not taken:
            self._reading.result()
        if not (self._tokens or self._reading.done()):
            self._news.clear()
        self.length += len(taken)
        return taken

    def cancel(self) -> None:
        """Close the connection, so that the server stops; from any thread."""
        self._loop.call_soon_threadsafe(self._reading.cancel)

    async def _read(self, asked: Awaitable[AsyncGenerator[VllmReply, None]]) -> None:
        try:
            async with aclosing(await asked) as replies:
                async for reply in replies:
                    self._tokens += reply.tokens(STREAM_TOKENS, least=0)
                    if self._tokens:
                        self._news.set()
                    if len(self._tokens) > AHEAD_TOKENS:
                        return
        finally:
            self._news.set()


class VllmSession(TargetSession):
    """The verified tokens of one decode; the server keeps everything else."""

    def __init__(self, opening: Open, prompt: Prompt, image_id: int, salt: str) -> None:
        """salt: separates the server's caches by credential."""
        self.opening, self.prompt = opening, prompt
        ids = prompt.input_ids
        # The server takes one image token for each whole picture.
        spans = picture_spans(ids, image_id)
        rest = [row for start, end in spans for row in range(start + 1, end)]
        self.prompt_ids: list[int] = np.delete(ids, rest).tolist()
        self.tokens = opening.verified
        # Restricts the session to cache entries of the same credential.
        self.salt = hashlib.blake2b(salt.encode(), digest_size=16).hexdigest()
        # A name is all that its cache goes by: it must not fit a picture of another size.
        self.pictures = [
            "-".join([self.salt, image.digest.hex(), *map(str, image.grid)])
            for image in prompt.images
        ]
        self.scored = Draft(())  # what the next verdict is about
        self._round: tuple[Draft, Future[list[Any]]] | None = None
        self.first: Future[Any] = Future()
        self.stream: TokenStream | None = None  # of the target's own tokens, under way

    def commit(self, path: Sequence[int]) -> None:
        """Append these nodes of the last draft to the verified prefix."""
        self.tokens += tuple(self.scored.tokens[node] for node in path)
        self.scored = Draft(())

    def extend(self, tokens: Sequence[int]) -> None:
        """Append verified tokens to the prefix."""
        self.tokens += tuple(tokens)

    def evict(self) -> None:
        """Cancel the open requests, so that the server stops."""
        self.first.cancel()
        self.cut()
        if self._round is not None:
            self._round[1].cancel()

    def cut(self) -> None:
        """End the stream of the target's own tokens."""
        if self.stream is not None:
            self.stream.cancel()

    def score(self, draft: Draft, begin: Callable[[], Future[list[Any]]]) -> list[Any] | None:
        """The replies for the prefix and a draft's nodes; None until all have arrived."""
        if self._round is None or self._round[0] is not draft:
            self._round = (draft, begin())
        replies = self._round[1]
        if not replies.done():
            return None
        self._round, self.scored = None, draft
        return replies.result()
