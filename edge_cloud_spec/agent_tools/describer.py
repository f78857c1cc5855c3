"""Asks an OpenAI-compatible API about a picture."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import httpx2

from ..endpoint.upstream import api_url
from ..errors import UserError, one_line
from ..models.image import data_url

DESCRIBED_S = 120.0  # within which the API answers
MOST_TOKENS = 256


class Describer:
    """The API at ``url``, asked for the first of its models."""

    def __init__(self, url: str, token: Callable[[], str]) -> None:
        """url: up to /v1; token: the bearer token to show, or empty. Raises UserError for no such
        URL, or for one without TLS off this machine."""
        api_url(url, "--endpoint")
        self._url, self._token = url.rstrip("/"), token

    async def ask(self, question: str, picture: bytes) -> str:
        """The answer; raises UserError where there is none."""
        shown = {"type": "image_url", "image_url": {"url": data_url(picture)}}
        content = [shown, {"type": "text", "text": question}]
        message = {"role": "user", "content": content}
        token = self._token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            async with httpx2.AsyncClient(
                headers=headers,
                timeout=DESCRIBED_S,
                verify=ssl.create_default_context(),
                trust_env=False,  # no proxy of the environment: it would see the picture
            ) as client:
                return await asyncio.wait_for(self._asked(client, message), DESCRIBED_S)
        except httpx2.ConnectError:
            raise UserError(
                f"no endpoint answers at {self._url}: start edge-cloud-spec endpoint --cloud "
                "HOST:PORT --drafter MODEL (docs/endpoint.md), or give --endpoint its URL"
            ) from None
        except asyncio.TimeoutError:
            raise UserError(f"the endpoint gave no answer within {DESCRIBED_S:g} s") from None
        except (httpx2.HTTPError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"the endpoint gave no answer: {one_line(error)}") from None

    async def _asked(self, client: httpx2.AsyncClient, message: dict[str, Any]) -> str:
        models = await self._answer(client, "GET", "/models")
        asked = {"model": models["data"][0]["id"], "messages": [message]}
        asked["max_completion_tokens"] = MOST_TOKENS
        answer = await self._answer(client, "POST", "/chat/completions", json=asked)
        text = answer["choices"][0]["message"]["content"]
        if not isinstance(text, str):
            raise TypeError("it is no text")
        return text

    async def _answer(self, client: httpx2.AsyncClient, method: str, path: str, **more: Any) -> Any:
        response = await client.request(method, self._url + path, **more)
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}: {response.text}")
        return response.json()
