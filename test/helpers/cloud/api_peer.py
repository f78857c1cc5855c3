"""A server that speaks the OpenAI API as a test scripts it, for what no real one does on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
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


Answers = Callable[[dict[str, Any]], Iterable[bytes] | tuple[int, dict[str, str], bytes]]


class ApiPeer:
    """``answers`` gives the bytes of a stream for a request's body, or status, headers, body."""

    def __init__(self, answers: Answers = lambda body: answer(), port: int = 0) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []  # bodies
        self.headers: list[dict[str, str]] = []
        self.models = (200, {"content-type": "application/json"}, b'{"object": "list", "data": []}')
        self.broken = threading.Event()  # somebody closed a stream before its end
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Nothing."""

            def do_GET(self) -> None:
                self._reply(*peer.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                peer.asked.append(body)
                peer.headers.append(dict(self.headers))
                said = peer.answers(body)
                if isinstance(said, tuple):
                    self._reply(*said)
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                try:
                    for part in said:
                        self.wfile.write(part)
                        self.wfile.flush()
                except OSError:
                    peer.broken.set()

            def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> ApiPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
