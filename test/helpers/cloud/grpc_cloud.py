"""A verifier in this process, and a proxy whose connections a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from edge_cloud_spec.lab.harness.server import InProcessServer as Cloud

__all__ = ["Cloud", "Proxy", "free_port", "until"]


class Proxy:
    """Passes TCP on to an address; `cut` breaks every connection as a lost link does."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Break what is connected; how many connections that were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        return len(pairs)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until(what: Callable[[], object]) -> None:
    """Wait for it."""
    end = time.monotonic() + 150
    while not what():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)
