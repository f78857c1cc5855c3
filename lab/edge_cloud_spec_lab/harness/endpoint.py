"""A process that runs ``edge-cloud-spec endpoint``, and requests to it."""

from __future__ import annotations

import base64
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.request import Picture, Request

MODEL = "edge-cloud-spec"
GONE_S = 15.0


class EndpointProcess(AbstractContextManager["EndpointProcess"]):
    """Serves the API at ``url``, on a free port of this machine; ``pid``: of the process."""

    def __init__(self, *options: str) -> None:
        """Raises UserError if it does not start."""
        command = [sys.executable, "-m", "edge_cloud_spec.cli", "endpoint", "--address"]
        self._process = subprocess.Popen(
            [*command, "127.0.0.1:0", *options], stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        *_, self.url = self._process.stdout.readline().split() or [""]
        if not self.url:
            self.close()
            raise UserError("the endpoint's process has ended; see its error above")

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def chat_of(request: Request, **options: Any) -> dict[str, Any]:
    """The body of a chat request with these messages."""
    messages = [
        {"role": message.role, "content": [_part(part) for part in message.parts]}
        for message in request.messages
    ]
    return {"model": MODEL, "messages": messages, **options}


def _part(part: str | Picture) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:image/jpeg;base64,{base64.b64encode(part.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
