"""An endpoint in this process, in the way that ``edge-cloud-spec endpoint`` serves."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from contextlib import ExitStack
from typing import Any

from edge_cloud_spec import Decoder
from edge_cloud_spec.endpoint.decodes import Decodes
from edge_cloud_spec.endpoint.listener import listen, make_server, tls_context
from edge_cloud_spec.endpoint.server import CHAT, ChatApp
from edge_cloud_spec.endpoint.upstream import Upstream
from edge_cloud_spec.loop_thread import LoopThread
from edge_cloud_spec_lab.harness.endpoint import MODEL

HEADERS = {"content-type": "application/json"}


class RunningEndpoint(ExitStack):
    """An endpoint before a decoder; ``url`` is its API's."""

    def __init__(
        self,
        decoder: Decoder,
        queue: int = 16,
        keys: tuple[str, ...] = (),
        timeout_s: float = 60.0,
        tls: tuple[str, str] = ("", ""),
        decodes: type[Decodes] = Decodes,
        when_lost: str = "refuse",
        upstream: Upstream | None = None,
    ) -> None:
        super().__init__()
        listening = self.enter_context(listen("127.0.0.1:0"))
        self.port: int = listening.getsockname()[1]
        self.url = f"http{'s' * any(tls)}://127.0.0.1:{self.port}/v1"
        self.decodes = decodes(decoder, queue, when_lost)
        self.app = app = ChatApp(self.decodes, (MODEL,), lambda: keys, timeout_s, upstream)
        self.server = make_server(app, tls_context(*tls))
        thread = LoopThread("endpoint")
        self.callback(thread.close)
        running = asyncio.run_coroutine_threadsafe(self.server.serve([listening]), thread.loop)
        self.callback(lambda: thread.run(app.close()))
        self.callback(running.result, 60)
        self.callback(setattr, self.server, "should_exit", True)

    def post(
        self, body: object, path: str = CHAT, method: str = "POST", **headers: str
    ) -> tuple[int, dict, Any]:
        """Status, headers and JSON of the answer to a body: an object, or bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {**HEADERS, **headers})
        response = connection.getresponse()
        said = response.read()
        connection.close()
        told = {name.lower(): value for name, value in response.getheaders()}
        is_json = told.get("content-type") == "application/json"
        return response.status, told, json.loads(said) if is_json else said


def shown(jpeg: bytes, **more: str) -> dict[str, Any]:
    """A picture as a part of a message."""
    url = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
    return {"type": "image_url", "image_url": {"url": url, **more}}


def said(*parts: Any, role: str = "user") -> dict[str, Any]:
    """A message of texts and pictures."""
    written = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": role, "content": written}


def asked(*parts: Any, **more: Any) -> dict[str, Any]:
    """A request of one message."""
    return {"model": MODEL, "messages": [said(*parts)], **more}
