"""A verifier over real gRPC that says what a test wants, when it wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import grpc

from edge_cloud_spec.wire.channel import METHOD_NAME, SERVICE


class RobotSide:
    """One stream as the cloud has it: what the robot sent, and what is answered."""

    def __init__(self, requests: Iterator[bytes], context: Any) -> None:
        self.requests, self.context = requests, context

    def hear(self) -> bytes:
        """The robot's next message; empty: it has closed its side."""
        return next(self.requests, b"")


class ScriptedCloud(AbstractContextManager["ScriptedCloud"]):
    """Runs ``script`` for each stream: a generator of what is sent; it ends with the script."""

    def __init__(self, script: Callable[[RobotSide], Iterator[bytes]]) -> None:
        self._script = script
        self.streams = 0
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(32))
        method = grpc.stream_stream_rpc_method_handler(self._decode)
        handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD_NAME: method})
        self._server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _decode(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        with self._lock:
            self.streams += 1
        yield from self._script(RobotSide(requests, context))

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(60)
