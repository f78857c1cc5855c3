"""A client of a vLLM server: its HTTP requests, and the checks of its replies."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, one_line
from ..models.openai_server import OpenAiServer

if TYPE_CHECKING:
    from openai import AsyncStream

GENERATE = "/inference/v1/generate"


@dataclass(frozen=True)
class Served:
    """A vLLM server's version, model and context length, as it reports them; ``started``: its start
    time."""

    version: str
    model: str
    length: int  # the most tokens of a prompt and its answer
    started: float = 0.0  # start time of its process, s since the epoch; 0: unknown


class VllmServer(OpenAiServer):
    """A client of ``vllm serve --enable-scale-out``: sends tokens and a picture, gets tokens."""

    def __init__(self, url: str, key_file: str = "", *, timeout_s: float = 30.0) -> None:
        """url: http://HOST:PORT. Otherwise as for any OpenAI-compatible server."""
        super().__init__(f"{url.rstrip('/')}/v1", "the one", key_file, timeout_s=timeout_s)
        self._root = url.rstrip("/")

    async def generate(self, body: dict[str, Any]) -> VllmReply:
        """Send a request with this body; raises UserError, or what the ``openai`` package
        raises."""
        return self._read(await self._generate(body))

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[VllmReply, None]:
        """As ``generate``, with a reply for each step of the server, as it makes them."""
        from openai import AsyncStream

        return self._replies(
            await self._generate({**body, "stream": True}, stream=True, stream_cls=AsyncStream[Any])
        )

    async def _generate(self, body: dict[str, Any], **how: Any) -> Any:
        from openai import NotFoundError

        path = self._root + GENERATE
        try:
            return await self.client.post(path, body=body, cast_to=object, **how)
        except NotFoundError:
            raise UserError(
                f"{self._root} has no {GENERATE}: start vLLM with --enable-scale-out"
            ) from None

    async def _replies(self, chunks: AsyncStream[Any]) -> AsyncGenerator[VllmReply, None]:
        async with chunks:
            async for chunk in chunks:
                yield self._read(chunk)

    def _read(self, reply: Any) -> VllmReply:
        return VllmReply(reply if isinstance(reply, dict) else {}, self.url)

    async def served(self) -> Served:
        """Ask the server for its identity; raises UserError unless it is a vLLM with one model."""
        match await self._get("/version"), await self._get("/v1/models"):
            case (
                {"version": str(version)},
                {"data": [{"id": str(model), "max_model_len": int(length)}]},
            ):
                started = await self.metric("process_start_time_seconds") or 0.0
                return Served(one_line(version), one_line(model), length, started)
        raise UserError(f"{self.url} is no vLLM server with one model: check the address")

    async def tokens_of(self, text: str) -> Any:
        """The server's tokenization of a text."""
        body = {"prompt": text, "add_special_tokens": False}
        reply: Any = await self.client.post(f"{self._root}/tokenize", body=body, cast_to=object)
        return reply.get("tokens") if isinstance(reply, dict) else None

    async def _get(self, path: str) -> Any:
        return await self.client.get(self._root + path, cast_to=object)

    async def metric(self, name: str) -> float | None:
        """The sum of a Prometheus metric over its labels; None if it is missing."""
        reply: Any = await self.client.get(f"{self._root}/metrics", cast_to=str)
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", reply, re.M)
        return sum(map(float, found)) if found else None


@dataclass(frozen=True)
class VllmReply:
    """A server's reply, any JSON object; each field is checked when it is read."""

    content: dict[str, Any]
    url: str

    def tokens(self, most: int = 1, least: int = 1) -> list[int]:
        """Its tokens, ``least`` to ``most``, each with a logprob; raises UserError."""
        match self._choice:
            case {"token_ids": [*tokens], "logprobs": {"content": [*scores]}} if (
                least <= len(tokens) == len(scores) <= most
                and all(type(token) is int and token >= 0 for token in tokens)
                and all(map(_is_likelihood, scores))
            ):
                return tokens
        raise self.nonsense("does not say tokens and how likely they are")

    def row(self, vocabulary: int) -> NDArray[np.float32]:
        """The logits [V] of its only token; raises UserError."""
        row = np.full(vocabulary, -np.inf, np.float32)
        try:
            (score,) = self._choice["logprobs"]["content"]
            for each in (*score["top_logprobs"], score):
                if each["token_id"] < len(row):
                    row[each["token_id"]] = each["logprob"]
        except (KeyError, TypeError, ValueError, IndexError):
            raise self.nonsense("does not say a row of logits") from None
        if not np.isfinite(row).all():
            raise self.nonsense("says a row of logits with holes in it")
        return row

    def likeliest_on(self, path: Sequence[int], length: int) -> dict[int, int]:
        """The most likely next token after each length of the path, from the prompt's logprobs.

        The path is the end of the prompt, which has ``length`` tokens.

        Positions are left out if the server took them from its cache, where V1 returns
        uninitialised memory as scores, or if their scores are malformed. vLLM 0.32,
        gpu_model_runner.py, ``_get_prompt_logprobs_dict``.
        """
        match self.content:
            case {
                "usage": {"prompt_tokens_details": {"cached_tokens": int(cached)}},
                "prompt_logprobs": list(rows),
            } if len(rows) == length:
                first = length - len(path)
                known = range(max(0, cached + 1 - first), len(path))
                found = {at: _likeliest(rows[first + at], path[at]) for at in known}
                return {at: token for at, token in found.items() if token is not None}
        return {}

    def nonsense(self, what: str) -> UserError:
        """The error for an invalid reply."""
        return UserError(f"the vLLM server at {self.url} {what}: see its version and its log")

    @property
    def _choice(self) -> dict[str, Any]:
        match self.content:
            case {"choices": [dict(choice)]}:
                return choice
        raise self.nonsense("does not say one choice")


def _is_likelihood(score: Any) -> bool:
    match score:
        case {"logprob": float() | int() as logprob}:
            return math.isfinite(logprob)
    return False


def _likeliest(scores: Any, token: int) -> int | None:
    """The most likely token in a position's scores, if they are consistent."""
    try:
        said = [
            int(name)
            for name, score in scores.items()
            if math.isfinite(score["logprob"]) and score["rank"] == 1
        ]
        return said[0] if len(said) == 1 and str(token) in scores else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
