"""A server that speaks the OpenAI API as a test scripts it, for what no real one does on demand."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "action: move forward small; reason: a → b;"


def chunk(text: Any = None, finish: str | None = None, **more: Any) -> bytes:
    """An event of a stream."""
    delta = {"content": text, **more.pop("delta", {})}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"choices": [choice], **more})


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = event({"choices": [], "usage": {"total_tokens": 123}})


def answer(text: str = ANSWER, pieces: int = 5) -> list[bytes]:
    """The events of an answer in pieces of so many characters."""
    parts = [text[at : at + pieces] for at in range(0, len(text), pieces)]
    return [*map(chunk, parts), chunk(finish="stop"), USAGE, DONE]


Answers = Callable[[dict[str, Any]], Iterable[bytes] | bytes | tuple[int, dict[str, str], bytes]]

# Replies, byte by byte, that are none; SECRET is the robot's or the verifier's key.
SECRET = b"sk-this-is-a-secret"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
_CLOSED, _CHUNKED = _HEAD + b"\r\n", _HEAD + b"transfer-encoding: chunked\r\n\r\n"
_BOMB = b"content-encoding: %s\r\n\r\n%s"
_ZEROS = gzip.compress(bytes(2**26))
TOO_LONG, NO_HTTP, NO_ANSWER = (
    "longer than any answer",
    "cannot be reached",
    "no answer of an OpenAI",
)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a flood of events": (_CLOSED + b"data: {}\n\n" * 300_000, TOO_LONG),
    "a flood of empty lines": (_CLOSED + b"\n" * 2**21, TOO_LONG),
    "chunks of a byte": (_CHUNKED + b"1\r\nx\r\n" * 300_000, TOO_LONG),
    "a million choices": (
        _CLOSED + b'data: {"choices":[' + b'{"index":1},' * 300_000 + b'{"index":1}]}\n\n',
        "broke off",
    ),
    "a line of 16 MB in one chunk": (_CHUNKED + b"1000000\r\n" + b"x" * 2**24, TOO_LONG),
    "a header without end": (_HEAD + b"x-a: b\r\n" * 30_000, NO_HTTP),
    "a gzip bomb": (_HEAD + _BOMB % (b"gzip", _ZEROS), "it is compressed"),
    "a bomb in a bomb": (
        _HEAD + _BOMB % (b"gzip, gzip", gzip.compress(_ZEROS)),
        "it is compressed",
    ),
    "brackets": (_CLOSED + b"data: " + b"[" * 200_000 + b"\n\n", NO_ANSWER),
    "a chunk that is shorter": (_CHUNKED + b"5\r\ndata: {}\n\n", NO_HTTP),
    "a chunk that is longer": (_CHUNKED + b"ffff\r\ndata: {}\n\n", NO_HTTP),
    "two lengths": (_HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab", NO_HTTP),
    "the key for a status": (b"HTTP/1.1 \xff " + SECRET + b"\r\n\r\n", "[key]"),
    "the key for a header": (_HEAD + SECRET + b" \xff\r\n\r\n", "[key]"),
    "the key for a chunk": (_CHUNKED + SECRET + b"\r\n", "[key]"),
    "the key for an end": (_CLOSED + chunk(finish=SECRET.decode()), "another reason"),
    "half a character": (_CLOSED + chunk("\ud83d", "stop") + DONE, "text"),
    "a terminal's escapes": (_CLOSED + event({"error": {"message": "\x1b[2J\a\n"}}), "gave up"),
    "nothing": (b"", NO_HTTP),
}


class HttpPeer(AbstractContextManager[Any]):
    """An HTTP server of a test in this process; ``url``: http://HOST:PORT.

    Its ``on_get(path)`` gives status, headers and body of the reply; its ``on_post(handler, body)``
    replies by ``handler.reply``, or writes to it.
    """

    def __init__(self, port: int = 0) -> None:
        self._server = _Listener(("127.0.0.1", port), _Handler)
        self._server.peer = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: _Listener

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.reply(*self.server.peer.on_get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.peer.on_post(self, body)

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)


class _Listener(ThreadingHTTPServer):
    peer: Any
    daemon_threads = True
    request_queue_size = 128  # a draft's nodes come at once

    def handle_error(self, *_: object) -> None:
        """Whoever gave its request up has gone."""


class ApiPeer(HttpPeer):
    """``answers`` gives the bytes of a stream for a request's body, or status, headers and body, or
    all bytes of the reply."""

    def __init__(self, answers: Answers = lambda body: answer(), port: int = 0) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []  # bodies
        self.headers: list[dict[str, str]] = []
        self.models = (200, {"content-type": "application/json"}, b'{"object": "list", "data": []}')
        self.broken = threading.Event()  # somebody closed a stream before its end
        super().__init__(port)
        self.url += "/v1"

    def on_get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return self.models

    def on_post(self, handler: Any, body: Any) -> None:
        self.asked.append(body)
        self.headers.append(dict(handler.headers))
        said = self.answers(body)
        if isinstance(said, bytes):
            with suppress(OSError):
                handler.wfile.write(said)
            return
        if isinstance(said, tuple):
            handler.reply(*said)
            return
        handler.reply(200, {"content-type": "text/event-stream"}, b"")
        try:
            for part in said:
                handler.wfile.write(part)
                handler.wfile.flush()
        except OSError:
            self.broken.set()
