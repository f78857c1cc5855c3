"""A model behind an OpenAI-compatible API, asked by the ``openai`` package (the extra ``openai``).

Requests run in a thread of their own, an event loop, so that whoever waits for one can give it up:
that closes its connection, and the server stops generating. Nothing is asked a second time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ..errors import UserError, check_installed, one_line
from ..wire.secret_files import read_token
from .prompt import PromptSpec, Request, messages_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY_VARIABLE = "EDGE_CLOUD_SPEC_API_KEY"  # not OPENAI_API_KEY, which is for one server only
CONNECT_S = 5.0
MAX_REPLY_BYTES = 2**22
LEAST_BYTES = 256  # that a line, or a part, counts as: reading it takes time, however short it is
RETRY_S = 1.0  # where a server does not say when to come again
MAX_RETRY_S = 3600.0
_PICTURE = re.compile(r"data:image/[^\s\"']*")


class Unavailable(UserError):
    """The server is away, slow or full, which passes; ``retry_s``: when to ask again, s."""

    def __init__(self, text: str, retry_s: float = RETRY_S) -> None:
        super().__init__(text)
        self.retry_s = retry_s


class OpenAiReply:
    """What has arrived of one streamed request, chunk by chunk; for any thread."""

    def __init__(self, chunks: deque[Any], under_way: Future[None]) -> None:
        self._chunks, self._under_way = chunks, under_way

    def take(self) -> list[Any]:
        """The chunks that arrived since the last call; after them raises UserError if it failed.

        What a chunk holds is unchecked: any JSON.
        """
        done = self.done
        chunks = [self._chunks.popleft() for _ in range(len(self._chunks))]
        if done and not (chunks or self._under_way.cancelled()):
            self._under_way.result()
        return chunks

    @property
    def done(self) -> bool:
        """Whether nothing more arrives."""
        return self._under_way.done()

    def cancel(self) -> None:
        """Close the connection: the server stops."""
        self._under_way.cancel()


class OpenAiServer:
    """One model of one server; for any thread."""

    def __init__(
        self, url: str, model: str, key_file: str = "", *, timeout_s: float = 30.0
    ) -> None:
        """key_file: holds the API key, else the environment may (``KEY_VARIABLE``). timeout_s: of a
        whole answer, from request to end. UserError: one of these cannot be used."""
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not (usable and url.isprintable()) or (
            parts.username is not None or parts.query or parts.fragment
        ):
            # Not quoted: it may hold a key.
            raise UserError(
                "the server's address must be http://HOST:PORT/v1 or https://HOST/v1, with nothing "
                f"else in it (a key belongs into a file or {KEY_VARIABLE})"
            )
        if not model:
            raise UserError(
                f"{url} may have several models: name one of them (--model, or model.name)"
            )
        key = read_token(key_file) if key_file else os.environ.get(KEY_VARIABLE, "").strip()
        if not re.fullmatch(r"[!#-&(-\[\]-~]*", key):  # else an error may have it with escapes
            place = key_file or KEY_VARIABLE
            raise UserError(
                f"the key in {place} must be one word of printable ASCII without quotes and \\"
            )
        check_installed("openai", "a server with an OpenAI-compatible API")
        import openai

        self.url, self.model, self.timeout_s = url.rstrip("/"), model, timeout_s
        self._key = key
        # They say a line about each request, and in detail its headers.
        for library in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):
            logging.getLogger(library).setLevel(logging.WARNING)
        self.client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=self.url,
            api_key=key or "none",
            organization="",
            project="",
            max_retries=0,
            timeout=openai.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            http_client=openai.DefaultAsyncHttpxClient(
                follow_redirects=False,  # pictures go where the owner said
                headers={"accept-encoding": "identity"},
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # else they pile up
                event_hooks={"response": [_bound]},
            ),
        )
        self._loop = asyncio.new_event_loop()
        # Else the failure of a request that was given up is logged as a traceback.
        self._loop.set_exception_handler(lambda _, context: log.debug("%s", context["message"]))
        threading.Thread(target=self._loop.run_forever, name="openai", daemon=True).start()
        weakref.finalize(self, _end, self._loop, self.client)

    def begin(
        self,
        request: Callable[[], Awaitable[Any]],
        on_news: Callable[[], None] = lambda: None,
    ) -> OpenAiReply:
        """Send a streamed request, as ``lambda: server.complete(...)``.

        on_news: called in another thread when a chunk arrived, and at the end.
        """
        arrived: deque[Any] = deque()

        async def stream() -> None:
            async with await request() as chunks:
                async for chunk in chunks:
                    arrived.append(chunk)
                    on_news()

        under_way = self.submit(stream())
        under_way.add_done_callback(lambda _: on_news())
        return OpenAiReply(arrived, under_way)

    async def complete(self, **asked: Any) -> Any:
        """The stream of a chat completion's chunks, as JSON has them: made into the library's types
        a small one may take seconds, and memory to match."""
        from openai import AsyncStream

        body = {"model": self.model, "stream": True, **asked}
        path, chunks = "/chat/completions", AsyncStream[object]
        return await self.client.post(
            path, cast_to=object, body=body, stream=True, stream_cls=chunks
        )

    def ask(self, request: Callable[[AsyncOpenAI], Awaitable[T]]) -> T:
        """The server's reply to a request that is not streamed; raises UserError."""
        return self.submit(request(self.client)).result()

    def check(self) -> None:
        """Ask for the server's models; raises UserError where it is not usable."""
        names = self.ask(_models)
        if self.model not in names:  # some list a part, or take any name
            listed = self.quoted(", ".join(names[:5]) or "nothing")
            log.warning("%s does not list %s but %s", self.url, self.model, listed)

    def submit(self, request: Awaitable[T]) -> Future[T]:
        """Begin a request; its failure is a UserError."""
        return asyncio.run_coroutine_threadsafe(self._translated(request), self._loop)

    async def _translated(self, request: Awaitable[T]) -> T:
        """The request's result; raises UserError when it fails or takes too long."""
        try:
            return await asyncio.wait_for(request, self.timeout_s)
        except Exception as error:
            raise self._sentence(error) from None  # what a library raises may hold the headers

    def quoted(self, said: object) -> str:
        """The server's text, shortened to a part of a line, without a repeated key or picture."""
        text = _PICTURE.sub("[picture]", str(said) or type(said).__name__)
        return one_line(text.replace(self._key or "[key]", "[key]"))

    def _sentence(self, error: Exception) -> UserError:
        """The advice for an error of the server."""
        import openai

        if isinstance(error, UserError):
            return error
        why = self.quoted(getattr(error, "message", error)).removeprefix("Error code: ")
        status = getattr(error, "status_code", 0)
        key = "the key given" if self._key else "a request without a key"
        timed_out = isinstance(error, asyncio.TimeoutError | openai.APITimeoutError)
        kinds = (  # the first that applies; whether it passes
            (
                timed_out,
                True,
                f"has not answered within {self.timeout_s:g} s: take a faster one, or wait longer",
            ),
            (
                isinstance(error, openai.APIConnectionError),
                True,
                f"cannot be reached ({self.quoted(error.__cause__ or error)}): see whether it runs "
                "there",
            ),
            (
                status in (401, 403),
                False,
                f"refuses {key} ({status}): put the right one into the key file or {KEY_VARIABLE}",
            ),
            (
                status == 404 or 300 <= status < 400,
                False,
                f"has no model {self.model}, or no such API ({why}): correct the name or the "
                "address",
            ),
            (
                status == 501 or "not support" in why,
                False,
                f"cannot do what is asked of it ({why}): give it a model that takes pictures "
                "(llama-server: with --mmproj)",
            ),
            (status == 429, True, f"takes no more requests for now ({why}): wait, or see its log"),
            (status >= 500, True, f"failed ({why}): wait, or see its log"),
            (
                status > 0,
                False,
                f"refuses the request ({why}): see whether it has a model {self.model}, and what "
                "that takes",
            ),
            (bool(getattr(error, "body", "")), True, f"gave up the request ({why}): see its log"),
            (
                True,
                False,
                "sent what is no answer of an OpenAI-compatible API "
                f"({type(error).__name__}: {why}): check the address",
            ),
        )
        passes, text = next((passes, text) for applies, passes, text in kinds if applies)
        if not passes:
            return UserError(f"{self.url} {text}")
        headers = error.response.headers if isinstance(error, openai.APIStatusError) else {}
        return Unavailable(f"{self.url} {text}", _seconds(headers.get("retry-after")))


def _end(loop: asyncio.AbstractEventLoop, client: AsyncOpenAI) -> None:
    """Close the connections, and end the thread."""
    closing = asyncio.run_coroutine_threadsafe(client.close(), loop)
    closing.add_done_callback(lambda _: loop.stop())


async def _models(client: AsyncOpenAI) -> list[str]:
    listed: Any = await client.get("/models", cast_to=object)
    return [str(model["id"]) for model in listed["data"]]


async def _bound(response: Any) -> None:
    """Let no more of a response be read than any answer has: the library keeps whole lines, and
    what is compressed may be of any size."""
    read = response.aiter_bytes

    async def bounded(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("it is compressed")
        size = 0
        async with aclosing(read(chunk_size)) as parts:
            async for part in parts:
                size += len(part) + LEAST_BYTES * (1 + len(part.splitlines()))
                if size > MAX_REPLY_BYTES:
                    raise ValueError("it is longer than any answer")
                yield part

    response.aiter_bytes = bounded


def chat_messages(request: Request, spec: PromptSpec) -> list[dict[str, Any]]:
    """The request as messages of the chat API, with its pictures; UserError as ``messages_of``."""
    messages, pictures = messages_of(request, spec), iter(request.pictures)
    for message in messages[1:] if spec.system_text else messages:
        for part in message["content"]:
            if part["type"] == "image":
                part |= {"type": "image_url", "image_url": {"url": _url(next(pictures).jpeg)}}
    return messages


def _url(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def said_in(chunk: Any) -> Iterator[tuple[bytes, Any, dict[str, Any]]]:
    """What a chunk has of the one answer that was asked for: UTF-8, why it ends, and the delta.

    Raises AttributeError, LookupError, TypeError or ValueError for what is no chunk.
    """
    for choice in chunk.get("choices") or ():
        if choice.get("index") in (0, None):
            delta = choice["delta"]
            yield (delta.get("content") or "").encode(), choice.get("finish_reason"), delta


def _seconds(text: str | None) -> float:
    """A Retry-After header's seconds; the default where it is missing, a date or absurd."""
    try:
        seconds = float(json.loads(text or "", parse_constant=lambda _: None))  # no NaN, Infinity
        return min(max(RETRY_S, seconds), MAX_RETRY_S)
    except (ValueError, TypeError, OverflowError):
        return RETRY_S
