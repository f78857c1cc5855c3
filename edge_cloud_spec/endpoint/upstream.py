"""Passes chat requests through to another OpenAI-compatible server, as they are."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import h11

from ..errors import refuse
from ..wire.channel import is_loopback
from .api_error import ApiError

MOST_AT_ONCE = 16  # requests that are passed through
MOST_ANSWER_BYTES = 32 * 2**20
UPSTREAM_CONNECT_S = 5.0
READ_BYTES = 2**16
# What a client is told of the head of an answer.
PASSED_ON = (b"content-type", b"retry-after", b"x-request-id")


@dataclass(frozen=True)
class UpstreamReply:
    """What the server answers. parts: its body as it arrives, in whole lines of a stream of events;
    raises ApiError where it breaks off."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    is_stream: bool
    parts: AsyncIterator[bytes]


def api_url(url: str, option: str) -> SplitResult:
    """The parts of the URL of an API, up to /v1; UserError: this option has no such URL, or one
    without TLS off this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        parts, host, port = SplitResult("", "", "", "", ""), "", 0
    usable = host and port != 0 and parts.scheme in ("http", "https")
    extra = parts.username is not None or parts.query or parts.fragment
    refuse(
        (
            not usable or extra or not re.fullmatch(r"[!-~]+", url),
            # It is not quoted: it may hold a key.
            f"{option} must be http://HOST:PORT/v1 or https://HOST/v1, with nothing else in it (a "
            f"key belongs into {option}-token-file)",
        ),
        (
            parts.scheme == "http" and not is_loopback(f"[{host}]:0"),
            f"{host} is another machine: give {option} https://...",
        ),
    )
    return parts


class Upstream:
    """The other server; belongs to one asyncio loop. Redirects and proxies are not followed."""

    def __init__(self, url: str, token: Callable[[], str] = lambda: "") -> None:
        """url: of its API, up to /v1. token: the bearer token to show; empty: the client's.
        UserError: no such URL, or one without TLS off this machine."""
        parts = api_url(url, "--upstream")
        secure, host = parts.scheme == "https", parts.hostname or ""
        self._address, self._host = (host, parts.port or (443 if secure else 80)), parts.netloc
        self._path = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if secure else None
        self._token = token
        self._under_way = 0

    @asynccontextmanager
    async def ask(
        self, path: str, body: bytes, authorization: bytes
    ) -> AsyncIterator[UpstreamReply]:
        """The reply to a request; ApiError: there is none. To leave ends the request.

        path: behind that of the URL. authorization: the client's own, shown where there is no
        token.
        """
        if self._under_way >= MOST_AT_ONCE:
            text = f"{MOST_AT_ONCE} requests are passed through already: try again"
            raise ApiError(text, status=429, code="rate_limit_exceeded", retry_s=1.0)
        self._under_way += 1
        writer: asyncio.StreamWriter | None = None
        try:
            try:
                connecting = asyncio.open_connection(*self._address, ssl=self._tls)
                _, writer = link = await asyncio.wait_for(connecting, UPSTREAM_CONNECT_S)
                reply = await self._reply(*link, path, body, authorization)
            except asyncio.TimeoutError:
                raise self._lost(
                    f"does not accept a connection in {UPSTREAM_CONNECT_S:g} s"
                ) from None
            except (OSError, h11.ProtocolError) as error:
                raise self._lost(f"cannot be asked ({type(error).__name__})") from None
            yield reply
        finally:
            self._under_way -= 1
            if writer is not None:
                writer.transport.abort()

    async def _reply(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        path: str,
        body: bytes,
        authorization: bytes,
    ) -> UpstreamReply:
        token, http = self._token(), h11.Connection(h11.CLIENT)
        shown = f"Bearer {token}".encode() if token else authorization
        headers = [
            (b"host", self._host.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"accept-encoding", b"identity"),
            (b"connection", b"close"),
            *([(b"authorization", shown)] if shown else []),
        ]
        request = h11.Request(method="POST", target=self._path + path, headers=headers)
        for event in (request, h11.Data(body), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        # Not drained first: a server may answer before it has read, or instead.
        while not isinstance(head := await _event(http, reader), h11.Response):
            pass  # informational; of another event h11 tells
        told, status = dict(head.headers), head.status_code
        is_compressed = told.get(b"content-encoding", b"identity") != b"identity"
        refuse(
            (status != 200 and status < 400, f"answers with status {status}"),
            # The client's own key may be right.
            (token and status in (401, 403), "refuses the token of --upstream-token-file"),
            (is_compressed, "compresses its answer"),
            error=self._lost,
        )
        is_stream = told.get(b"content-type", b"").startswith(b"text/event-stream")
        passed_on = tuple((name, told[name]) for name in PASSED_ON if name in told)
        return UpstreamReply(status, passed_on, is_stream, self._parts(http, reader, is_stream))

    async def _parts(
        self, http: h11.Connection, reader: asyncio.StreamReader, in_lines: bool
    ) -> AsyncIterator[bytes]:
        size, held, problem = 0, b"", ""  # held: the line that is not whole yet
        try:
            while isinstance(event := await _event(http, reader), h11.Data):
                size += len(event.data)
                if size > MOST_ANSWER_BYTES:
                    problem = f"answers with more than {MOST_ANSWER_BYTES} bytes"
                    break
                data = held + event.data
                end = data.rfind(b"\n") + 1 if in_lines else len(data)
                held = data[end:]
                if end:
                    yield data[:end]
        except (OSError, h11.ProtocolError):
            problem = "broke off its answer"
        yield b"\n" if problem else held  # which ends an event of which lines are out
        if problem:
            raise self._lost(problem)

    def _lost(self, what: str) -> ApiError:
        return ApiError(f"the server of --upstream {what}", status=502, code="upstream")


async def _event(http: h11.Connection, reader: asyncio.StreamReader) -> object:
    """The next part of an answer; raises h11.ProtocolError for none."""
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(READ_BYTES))
    if isinstance(event, h11.ConnectionClosed):
        raise h11.RemoteProtocolError("it closed the connection")
    return event
