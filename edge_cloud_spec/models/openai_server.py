"""A model behind an OpenAI-compatible API, through the ``openai`` package (the extra ``openai``).

Requests run in an event loop on a thread of its own. A caller can cancel one: that closes its
connection, and the server stops generating. There are no retries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from http.cookiejar import CookieJar, DefaultCookiePolicy
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ..errors import UserError, check_installed, one_line, refuse
from ..instruction import LIKE_CONTROL
from ..loop_thread import LoopThread
from ..request import Request
from ..wire.channel import is_loopback
from ..wire.secret_files import read_token
from .image import data_url, plain
from .prompt import PromptSpec, chat_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY_VARIABLE = "EDGE_CLOUD_SPEC_API_KEY"  # not OPENAI_API_KEY, which belongs to one provider
CONNECT_S = 5.0
MAX_REPLY_BYTES = 2**22
LEAST_LINE_BYTES = 256  # counted per line or part, as parsing a short one takes time, too
SERVER_RETRY_S = 1.0  # if the server does not say when to retry
MAX_SERVER_RETRY_S = 3600.0
# Less than a server keeps an idle connection (uvicorn, node: 5 s), or a request meets its closing.
IDLE_CONNECTION_S = 3.0
_PICTURE = re.compile(r"data:image/[^\s\"']*")


class Unavailable(UserError):
    """The server is temporarily unreachable, slow or full; ``retry_s``: seconds until a retry."""

    def __init__(self, text: str, retry_s: float = SERVER_RETRY_S) -> None:
        super().__init__(text)
        self.retry_s = retry_s


class OpenAiReply:
    """The chunks of one streamed request, as they arrive; for any thread."""

    def __init__(self, chunks: deque[Any], under_way: Future[None]) -> None:
        self._chunks, self._under_way = chunks, under_way

    def take(self) -> list[Any]:
        """The chunks that arrived since the last call. Once all are taken, raises UserError if it
        failed.

        The chunks are unchecked JSON.
        """
        done = self.done
        chunks = [self._chunks.popleft() for _ in range(len(self._chunks))]
        if done and not (chunks or self._under_way.cancelled()):
            self._under_way.result()
        return chunks

    @property
    def done(self) -> bool:
        """Whether the stream has ended."""
        return self._under_way.done()

    def cancel(self) -> None:
        """Close the connection, so that the server stops."""
        self._under_way.cancel()


class OpenAiServer:
    """A client for one model of one server; for any thread."""

    def __init__(
        self, url: str, model: str, key_file: str = "", *, timeout_s: float = 30.0
    ) -> None:
        """key_file: holds the API key; without it the environment may (``KEY_VARIABLE``).
        timeout_s: for a whole answer, from request to end. UserError: an invalid argument."""
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
        key = read_token(key_file) if key_file else os.environ.get(KEY_VARIABLE, "").strip()
        refuse(
            (
                not model,
                f"{url} may have several models: name one of them (--model, or model.name)",
            ),
            (  # otherwise an error message could contain the key escaped
                not re.fullmatch(r"[!#-&(-\[\]-~]*", key),
                f"the key in {key_file or KEY_VARIABLE} must be one word of printable ASCII "
                "without quotes and \\",
            ),
        )
        check_installed("openai", "a server with an OpenAI-compatible API")
        import openai

        proxied = not is_loopback(f"{parts.hostname}:0")  # a proxy has its own loopback
        self.url, self.model, self.timeout_s = url.rstrip("/"), model, timeout_s
        self._key = key
        # These loggers log each request, and at debug level its headers.
        for library in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):
            logging.getLogger(library).setLevel(logging.WARNING)
        http = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,  # pictures must go only to the configured server
            trust_env=proxied,
            verify=proxied or parts.scheme == "https",  # else no authorities are read (50 ms)
            headers={"accept-encoding": "identity"},
            # Otherwise cookies accumulate.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            event_hooks={"response": [_bound]},
            limits=type(openai.DEFAULT_CONNECTION_LIMITS)(keepalive_expiry=IDLE_CONNECTION_S),
        )
        self.client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=self.url,
            api_key=key or "none",
            organization="",
            project="",
            max_retries=0,
            timeout=openai.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            http_client=http,
        )
        self._loop = LoopThread("openai").loop
        # Otherwise the failure of a cancelled request is logged with a traceback.
        self._loop.set_exception_handler(lambda _, context: log.debug("%s", context["message"]))
        weakref.finalize(self, _end, self._loop, self.client)

    def begin(
        self,
        request: Callable[[], Awaitable[Any]],
        on_news: Callable[[], None] = lambda: None,
    ) -> OpenAiReply:
        """Send a streamed request, such as ``lambda: server.complete(...)``.

        on_news: called in the event loop's thread after each chunk and at the end.
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
        """The stream of a chat completion's chunks, as plain JSON.

        Converting them to the library's types could take seconds and much memory.
        """
        from openai import AsyncStream

        body = {"model": self.model, "stream": True, **asked}
        path, chunks = "/chat/completions", AsyncStream[object]
        return await self.client.post(
            path, cast_to=object, body=body, stream=True, stream_cls=chunks
        )

    def check(self) -> None:
        """List the server's models; raises UserError if the server is unusable."""
        names = self.submit(_models(self.client)).result()
        if self.model not in names:  # some servers list a part, or accept any name
            listed = self.quoted(", ".join(names[:5]) or "nothing")
            log.warning("%s does not list %s but %s", self.url, self.model, listed)

    def submit(self, request: Awaitable[T]) -> Future[T]:
        """Start a request; its future fails with UserError."""
        return asyncio.run_coroutine_threadsafe(self._translated(request), self._loop)

    async def _translated(self, request: Awaitable[T]) -> T:
        """The request's result; raises UserError if it fails or times out."""
        try:
            return await asyncio.wait_for(request, self.timeout_s)
        except Exception as error:
            raise self._sentence(error) from None  # the library's exception may contain the headers

    def quoted(self, reply: object) -> str:
        """The server's text shortened to fit in a line, without API keys or pictures it repeats."""
        text = _PICTURE.sub("[picture]", str(reply) or type(reply).__name__)
        return one_line(text.replace(self._key or "[key]", "[key]"))

    def _sentence(self, error: Exception) -> UserError:
        """The sentence for the user about a server's error."""
        import openai

        if isinstance(error, UserError):
            return error
        why = self.quoted(getattr(error, "message", error)).removeprefix("Error code: ")
        status = getattr(error, "status_code", 0)
        key = "the key given" if self._key else "a request without a key"
        timed_out = isinstance(error, asyncio.TimeoutError | openai.APITimeoutError)
        kinds = (  # the first that applies; and whether the error is temporary
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
    # Not kept: uvicorn closes the connection of a failure, maybe as the next request is sent on it.
    once: Any = {"headers": {"connection": "close"}}
    listed: Any = await client.get("/models", cast_to=object, options=once)
    return [str(model["id"]) for model in listed["data"]]


async def _bound(response: Any) -> None:
    """Bound how much of a response is read: the library buffers whole lines, and compressed data
    may have any size."""
    read = response.aiter_bytes

    async def bounded(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("it is compressed")
        size = 0
        async with aclosing(read(chunk_size)) as parts:
            async for part in parts:
                size += len(part) + LEAST_LINE_BYTES * (1 + len(part.splitlines()))
                if size > MAX_REPLY_BYTES:
                    raise ValueError("it is longer than any answer")
                yield part

    response.aiter_bytes = bounded


def chat_messages(request: Request, spec: PromptSpec) -> list[dict[str, Any]]:
    """The request as messages of the chat API, with its pictures inline; raises UserError."""
    messages, limit = chat_of(request, spec, LIKE_CONTROL), spec.image.max_frame_pixels
    pictures = iter(request.pictures)
    contents = (message["content"] for message in messages)
    for part in chain.from_iterable(each for each in contents if isinstance(each, list)):
        if part["type"] == "image":
            shown = plain(next(pictures).data, limit)
            part |= {"type": "image_url", "image_url": {"url": data_url(shown)}}
    return messages


def deltas_in(chunk: Any) -> Iterator[tuple[bytes, Any, dict[str, Any]]]:
    """The UTF-8 text, the finish reason and the delta of each choice 0 in a chunk.

    Raises AttributeError, LookupError, TypeError or ValueError if the chunk is malformed.
    """
    for choice in chunk.get("choices") or ():
        if choice.get("index") in (0, None):
            delta = choice["delta"]
            yield (delta.get("content") or "").encode(), choice.get("finish_reason"), delta


def _seconds(text: str | None) -> float:
    """The seconds of a Retry-After header; the default if it is missing, a date or absurd."""
    try:
        # Refuses NaN and Infinity.
        seconds = float(json.loads(text or "", parse_constant=lambda _: None))
        return min(max(SERVER_RETRY_S, seconds), MAX_SERVER_RETRY_S)
    except (ValueError, TypeError, OverflowError):
        return SERVER_RETRY_S
