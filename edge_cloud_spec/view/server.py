"""Rerun's own server as a process: what the viewer receives, and the page that it is.

The SDK could serve from this process, too, but on all interfaces only: a robot's camera would be
open to its whole network.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..bringup.processes import Processes, Program
from ..errors import UserError

MEMORY = "1GiB"  # that the server keeps for browsers that come late; then the oldest goes
STARTUP_TIMEOUT = 60.0  # s
ANY = ("0.0.0.0", "::")  # addresses of all interfaces


@dataclass(frozen=True)
class ViewerAddress:
    """Where the viewer is served. ``data_port``: of the messages to it. Raises UserError."""

    host: str = "127.0.0.1"
    port: int = 9090
    data_port: int = 9876

    def __post_init__(self) -> None:
        for option, port in (("--port", self.port), ("--data-port", self.data_port)):
            if not 0 < port < 65536:
                raise UserError(f"{option} must be from 1 to 65535, not {port}")
        if self.port == self.data_port:
            raise UserError("--port and --data-port must be two ports")
        for port in (self.port, self.data_port):
            _check_free(self.host, port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def data_url(self) -> str:
        """Where this process sends its entities to."""
        return f"rerun+http://{_in_url(self._reached())}:{self.data_port}/proxy"

    @property
    def page(self) -> str:
        """What a person opens in a browser."""
        name = socket.gethostname() if self.host in ANY else self.host
        data = f"rerun+http://{_in_url(name)}:{self.data_port}/proxy"
        return f"http://{_in_url(name)}:{self.port}/?url={quote(data, safe='')}"

    @property
    def command(self) -> list[str]:
        """The server's command line."""
        origin = f"http://{'*' if self.host in ANY else _in_url(self.host)}:{self.port}"
        return [
            *(sys.executable, "-m", "rerun", "--serve-web", "--hide-welcome-screen"),
            *("--bind", "127.0.0.1" if self.host == "localhost" else self.host),
            *("--port", str(self.data_port), "--web-viewer-port", str(self.port)),
            *("--server-memory-limit", MEMORY, "--cors-allow-origin", origin),
        ]

    def _reached(self) -> str:
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def answers(self) -> bool:
        """Whether both ports are open."""
        try:
            for port in (self.port, self.data_port):
                socket.create_connection((self._reached(), port), 1.0).close()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def serving(endpoint: ViewerAddress, logs: Path) -> Iterator[Processes]:
    """The server, up; it ends with the context. Raises UserError."""
    with Processes([Program("rerun", endpoint.command)], {}, logs) as processes:
        end = time.monotonic() + STARTUP_TIMEOUT
        while not endpoint.answers():
            processes.check()
            if time.monotonic() > end:
                raise UserError(f"the viewer's server is not up: {processes.last_error('rerun')}")
            time.sleep(0.1)
        yield processes


def _check_free(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UserError(
            f"{host}:{port} cannot be served ({error.strerror}): --host must be an address of this "
            "machine, --port and --data-port free"
        ) from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
