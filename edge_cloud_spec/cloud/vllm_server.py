"""A vLLM server as a target's engine: what it is asked over HTTP, and what of its replies is
believed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, one_line
from ..models.openai_server import OpenAiServer

GENERATE = "/inference/v1/generate"


@dataclass(frozen=True)
class Served:
    """A vLLM server's identity, as it reports it."""

    version: str
    model: str
    length: int  # the most tokens of a prompt and its answer
    started: float = 0.0  # its process, s since the epoch; 0: it does not say


class VllmServer(OpenAiServer):
    """``vllm serve --enable-scale-out``: a request is tokens and a picture, a reply is tokens."""

    def __init__(self, url: str, key_file: str = "", *, timeout_s: float = 30.0) -> None:
        """url: http://HOST:PORT. Otherwise as for any OpenAI-compatible server."""
        super().__init__(f"{url.rstrip('/')}/v1", "the one", key_file, timeout_s=timeout_s)
        self._root = url.rstrip("/")

    async def generate(self, body: dict[str, Any]) -> VllmReply:
        """The reply to this body; raises UserError, or what the ``openai`` package raises."""
        from openai import NotFoundError

        try:
            told: Any = await self.client.post(self._root + GENERATE, body=body, cast_to=object)
        except NotFoundError:
            raise UserError(
                f"{self._root} has no {GENERATE}: start vLLM with --enable-scale-out"
            ) from None
        return VllmReply(told if isinstance(told, dict) else {}, self.url)

    async def served(self) -> Served:
        """Ask the server for its identity; raises UserError unless it is a vLLM with one model."""
        match await self._told("/version"), await self._told("/v1/models"):
            case (
                {"version": str(version)},
                {"data": [{"id": str(model), "max_model_len": int(length)}]},
            ):
                started = await self.metric("process_start_time_seconds")
                return Served(one_line(version), one_line(model), length, started)
        raise UserError(f"{self.url} is no vLLM server with one model: check the address")

    async def tokens_of(self, text: str) -> Any:
        """The server's own tokens of a text."""
        body = {"prompt": text, "add_special_tokens": False}
        reply: Any = await self.client.post(f"{self._root}/tokenize", body=body, cast_to=object)
        return reply.get("tokens") if isinstance(reply, dict) else None

    async def hits(self) -> float:
        """How many tokens its prefix cache has served since it started."""
        return await self.metric("vllm:prefix_cache_hits_total")

    async def _told(self, path: str) -> Any:
        return await self.client.get(self._root + path, cast_to=object)

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels; 0 where there is none."""
        told: Any = await self.client.get(f"{self._root}/metrics", cast_to=str)
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", told, re.M)))


@dataclass(frozen=True)
class VllmReply:
    """A server's reply to one request: any JSON object; each field is checked when it is read."""

    content: dict[str, Any]
    url: str

    def tokens(self, most: int = 1) -> list[int]:
        """Its tokens, at least one, each with a number for how likely it is; raises UserError."""
        match self._choice:
            case {"token_ids": [*tokens], "logprobs": {"content": [*told]}} if (
                0 < len(tokens) == len(told) <= most
                and all(type(token) is int and token >= 0 for token in tokens)
                and all(map(_is_likelihood, told))
            ):
                return tokens
        raise self.nonsense("does not say tokens and how likely they are")

    def row(self, vocabulary: int) -> NDArray[np.float32]:
        """The logits [V] of its one token; raises UserError."""
        row = np.full(vocabulary, -np.inf, np.float32)
        try:
            (told,) = self._choice["logprobs"]["content"]
            for each in (*told["top_logprobs"], told):
                if each["token_id"] < len(row):
                    row[each["token_id"]] = each["logprob"]
        except (KeyError, TypeError, ValueError, IndexError):
            raise self.nonsense("does not say a row of logits") from None
        if not np.isfinite(row).all():
            raise self.nonsense("says a row of logits with holes in it")
        return row

    def likeliest_on(self, path: Sequence[int], length: int) -> dict[int, int]:
        """The likeliest next token after each length of the path, from the scores of a prompt.

        The path ends the prompt, which has ``length`` tokens.

        Left out: what the server took from its cache, where V1 gives uninitialised memory for a
        score, and what is no score of the path's token and of one likeliest token. vLLM 0.32,
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
        """The error of a reply that cannot be used."""
        return UserError(f"the vLLM server at {self.url} {what}: see its version and its log")

    @property
    def _choice(self) -> dict[str, Any]:
        match self.content:
            case {"choices": [dict(choice)]}:
                return choice
        raise self.nonsense("does not say one choice")


def _is_likelihood(told: Any) -> bool:
    match told:
        case {"logprob": float() | int() as logprob}:
            return math.isfinite(logprob)
    return False


def _likeliest(scores: Any, token: int) -> int | None:
    """The likeliest token in the scores of a position, if they also name the token there."""
    try:
        said = [
            int(name)
            for name, told in scores.items()
            if math.isfinite(told["logprob"]) and told["rank"] == 1
        ]
        return said[0] if len(said) == 1 and str(token) in scores else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
