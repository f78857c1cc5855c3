"""A verifier in this process, and the proxy whose connections a test can cut."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from edge_cloud_spec_lab.harness.proxy import Proxy
from edge_cloud_spec_lab.harness.server import InProcessServer as Cloud

__all__ = ["Cloud", "Proxy", "free_port", "until"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until(what: Callable[[], object]) -> None:
    """Wait for it."""
    end = time.monotonic() + 150
    while not what():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)
