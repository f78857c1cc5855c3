"""The endpoint's HTTP, an ASGI application: paths, access, bodies, answers in the API's forms."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from ..errors import TRACEBACKS, UserError
from ..wire.channel import is_loopback
from .api_error import ApiError, Unserved
from .body import check_model
from .chat import ChatRequest, read_chat
from .decisions import Decisions, read_decisions, read_systemone
from .decodes import Decodes, Finished
from .tools import ToolCall, ToolCalls
from .upstream import Upstream, UpstreamReply

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_BODY_BYTES = 24 * 2**20
MOST_BODIES_BYTES = 4 * MOST_BODY_BYTES  # that are read at a time
BODY_S = 30.0  # within which a body arrives
API = "/v1"
CHAT, MODELS = f"{API}/chat/completions", f"{API}/models"
DECISIONS, SYSTEMONE = f"{API}/decisions", f"{API}/systemone"
READERS: dict[str, Callable[[bytes, Sequence[str]], ChatRequest | Decisions]] = {
    CHAT: read_chat,
    DECISIONS: read_decisions,
    SYSTEMONE: read_systemone,
}


class ChatApp:
    """The ASGI application."""

    def __init__(
        self,
        decodes: Decodes,
        models: Sequence[str],
        keys: Callable[[], Sequence[str]],
        timeout_s: float,
        upstream: Upstream | None = None,
    ) -> None:
        """models: names that requests may ask for. keys: the API keys, one of which a request
        shows; none: it need not, and must name this machine as its host. timeout_s: of a request,
        from its body to its end. upstream: gets what is not decoded here; None: that is refused."""
        self._decodes, self._models, self._keys = decodes, models, keys
        self._timeout_s, self._upstream = timeout_s, upstream
        self._reading = 0  # bytes of the bodies that are being read
        self._since = int(time.time())

    async def close(self) -> None:
        """Wait for the last decode."""
        await self._decodes.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        answer = Response(send)
        try:
            await self._answer(scope, receive, answer)
        except ApiError as error:
            await answer.fail(error)
        except UserError as error:
            await answer.fail(ApiError(str(error), status=500))
        except Exception as error:
            TRACEBACKS.debug("a request failed", exc_info=error)
            log.error("a request failed: %s", type(error).__name__)
            await answer.fail(ApiError("the endpoint failed: see its log", status=500))
        except asyncio.CancelledError:  # by the server, which ends
            with suppress(asyncio.CancelledError):  # of a client that does not read
                await answer.fail(ApiError("the endpoint ends", status=503))

    async def _answer(self, scope: Scope, receive: Receive, answer: Response) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        self._check_access(headers)
        path, method = scope["path"].rstrip("/"), scope["method"]
        if path in READERS and method == "POST":
            try:
                await self._ask(path, headers, receive, answer)
            except ApiError as error:
                if path == SYSTEMONE and error.status == 400:
                    error.status = 422  # as other servers of this form
                raise
        elif path == MODELS and method == "GET":
            await answer.send({"object": "list", "data": list(map(self._model, self._models))})
        elif path.startswith(f"{MODELS}/") and method == "GET":
            asked = {"model": path.removeprefix(f"{MODELS}/")}
            await answer.send(self._model(check_model(asked, self._models)))
        elif path in (*READERS, MODELS):
            raise ApiError(f"{path} is not for {method}", status=405)
        else:
            raise ApiError(
                f"there is no {method} {path or '/'!r:.80} here, but POST {', '.join(READERS)} and "
                f"GET {MODELS}",
                status=404,
            )

    def _model(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._since,
            "owned_by": "robot",
        }

    def _check_access(self, headers: dict[str, bytes]) -> None:
        """Raise ApiError for who has no key; where none is needed, for web pages, which have a
        browser ask this machine under a name of theirs."""
        keys, shown = self._keys(), headers.get("authorization", b"")
        if keys and not any(hmac.compare_digest(shown, b"Bearer " + k.encode()) for k in keys):
            text = "the API key is missing or wrong: give the client one of --api-key-file"
            raise ApiError(text, status=401, code="invalid_api_key")
        host = re.sub(r":\d*$", "", headers.get("host", b"").decode("latin-1")).strip("[]")
        if not keys and not is_loopback(f"[{host}]:0"):
            raise ApiError(f"this endpoint is not {host!r:.80}: ask 127.0.0.1", status=403)

    async def _ask(
        self, path: str, headers: dict[str, bytes], receive: Receive, answer: Response
    ) -> None:
        kind = headers.get("content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":  # a web page could send another one unasked
            raise ApiError("the content-type must be application/json", status=415)
        asked = await self._read(path, receive)
        own = b"" if self._keys() else headers.get("authorization", b"")
        work = asyncio.ensure_future(self._respond(asked, own, answer))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            done, _ = await asyncio.wait(
                (work, gone), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (gone, work):
                if not task.done():
                    task.cancel()
        if not done:
            raise ApiError(f"the answer took longer than {self._timeout_s:g} s", status=504)
        if work in done:
            work.result()

    async def _read(self, path: str, receive: Receive) -> _Asked:
        """Read a request; raises ApiError."""
        body, end = bytearray(), time.monotonic() + BODY_S
        try:
            more = True
            while more:
                left = max(0.0, end - time.monotonic())
                message = await asyncio.wait_for(receive(), left)
                if message["type"] == "http.disconnect":
                    raise ApiError("the client is gone")
                part = message.get("body", b"")
                if len(body) + len(part) > MOST_BODY_BYTES:
                    raise ApiError(f"a body has at most {MOST_BODY_BYTES} bytes", status=413)
                if self._reading + len(part) > MOST_BODIES_BYTES:
                    text = "other requests are being read: try again"
                    raise ApiError(text, status=429, retry_s=1.0)
                self._reading += len(part)
                body += part
                more = message.get("more_body", False)
            data = bytes(body)
            try:
                asked = await asyncio.to_thread(READERS[path], data, self._models)
            except Unserved as error:
                return _Asked(path, error.with_traceback(None), data)  # its frames have the body
            may_pass = self._upstream is not None and self._decodes.may_be_unserved(asked)
            return _Asked(path, asked, data if may_pass else b"")
        except asyncio.TimeoutError:
            raise ApiError(f"the body did not arrive within {BODY_S:g} s", status=408) from None
        finally:
            self._reading -= len(body)

    async def _respond(self, asked: _Asked, own: bytes, answer: Response) -> None:
        """Decode, or pass through what is not decoded here. own: the client's authorization, which
        is not the endpoint's."""
        try:
            match asked.what:
                case ChatRequest() as chat:
                    await self._decode(chat, asked, answer)
                case Decisions() as decisions:
                    requests = [question.request for question in decisions.questions]
                    log_probs, answer.verified = await self._decodes.score(requests)
                    await answer.send(decisions.answer(log_probs))
                case error:
                    raise error
        except Unserved:
            if self._upstream is None or not asked.body:
                raise
            path = asked.path.removeprefix(API)
            async with self._upstream.ask(path, asked.body, own) as reply:
                await answer.pass_on(reply)

    async def _decode(self, chat: ChatRequest, asked: _Asked, answer: Response) -> None:
        head = {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": chat.model,
        }
        text, calls, told = "", list[dict[str, Any]](), list[dict[str, Any]]()
        parser = ToolCalls() if chat.tools.offered else None
        async with aclosing(self._decodes.stream(chat)) as pieces:
            async for piece in pieces:
                asked.body = b""  # large, and not passed through any more
                if "system_fingerprint" not in head:  # the same of all pieces
                    answer.verified = piece.verified
                    head["system_fingerprint"] = self._decodes.fingerprint(piece.verified)
                words, logprobs = piece.text, piece.logprobs
                told += logprobs
                more: Sequence[str | ToolCall] = [words] if words or logprobs else []
                if parser is not None:
                    more = parser.add(words, ended=isinstance(piece, Finished))
                for each in more:
                    if isinstance(each, str):
                        text += each
                        delta: dict[str, Any] = {"content": each}
                    else:
                        calls.append(_called(each))
                        delta = {"tool_calls": [{"index": len(calls) - 1, **calls[-1]}]}
                    if chat.stream:
                        await answer.chunk(head, delta, logprobs)
                if isinstance(piece, Finished):
                    end = replace(piece, finish_reason="tool_calls") if calls else piece
        if chat.stream:
            await answer.end(head, end, chat.include_usage)
            return
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "logprobs": _logprobs(told)}
        choice["finish_reason"] = end.finish_reason
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": end.usage}
        await answer.send(whole)


@dataclass
class _Asked:
    """What a request asks for; its body, as long as it may be passed through."""

    path: str
    what: ChatRequest | Decisions | Unserved
    body: bytes


def _called(call: ToolCall) -> dict[str, Any]:
    """The call in the API's form."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Response:
    """The response to one request: a JSON object, or a stream of them as server-sent events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self.verified = True  # whether its words are the target's own

    async def send(
        self, body: object, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send the whole response."""
        data = json.dumps(body).encode()
        kind = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(data)))
        await self._start(status, (*kind, *headers))
        await self._send({"type": "http.response.body", "body": data})

    async def fail(self, error: ApiError) -> None:
        """Send an error: as the response, or as the stream's last event."""
        if self._begun:
            await self._events(error.body, more=False)
            return
        seconds = b"%d" % math.ceil(error.retry_s)
        await self.send(
            error.body, error.status, [(b"retry-after", seconds)] if error.retry_s else []
        )

    async def pass_on(self, reply: UpstreamReply) -> None:
        """Send another server's reply as it is, but for its head; a whole one once it is there."""
        headers = ((b"x-upstream", b"true"), *reply.headers)
        if not reply.is_stream:
            data = b"".join([part async for part in reply.parts])
            length = (b"content-length", b"%d" % len(data))
            await self._start(reply.status, (*headers, length))
            await self._send({"type": "http.response.body", "body": data})
            return
        await self._start(reply.status, headers)
        async for part in reply.parts:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def chunk(
        self,
        head: dict[str, Any],
        delta: dict[str, Any],
        logprobs: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Send more of a stream."""
        first = [] if self._begun else [_chunk(head, {"role": "assistant", "content": ""})]
        await self._events(*first, _chunk(head, delta, logprobs=logprobs))

    async def end(self, head: dict[str, Any], end: Finished, with_usage: bool) -> None:
        """End a stream."""
        first = [] if self._begun else [_chunk(head, {"role": "assistant", "content": ""})]
        usage = [_chunk(head) | {"usage": end.usage}] if with_usage else []
        last = _chunk(head, {}, end.finish_reason)
        await self._events(*first, last, *usage, "[DONE]", more=False)

    async def _events(self, *events: object, more: bool = True) -> None:
        if not self._begun:
            kind = (b"content-type", b"text/event-stream; charset=utf-8")
            await self._start(200, (kind, (b"cache-control", b"no-store")))
        texts = (event if isinstance(event, str) else json.dumps(event) for event in events)
        data = "".join(f"data: {text}\n\n" for text in texts).encode()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._begun = True
        marks = () if self.verified else ((b"x-unverified", b"true"),)
        headers = (*headers, *marks)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _logprobs(told: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return {"content": told, "refusal": None} if told else None


def _chunk(
    head: dict[str, Any],
    delta: dict[str, Any] | None = None,
    finish: str | None = None,
    logprobs: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": _logprobs(logprobs), "finish_reason": finish}
    choices = [] if delta is None else [choice]
    return {**head, "object": "chat.completion.chunk", "choices": choices}
