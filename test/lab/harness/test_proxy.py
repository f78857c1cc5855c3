"""The TCP proxy while its link is changed: out, silent, slow, leading elsewhere."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edge_cloud_spec_lab.harness.proxy import Proxy


@contextmanager
def answering(word: bytes) -> Iterator[str]:
    """A server that answers each message with its own word."""

    class Answers(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while self.request.recv(100):
                    self.request.sendall(word)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with answering(b"first") as address, Proxy(address) as made:
        yield made


@pytest.fixture
def end(proxy: Proxy) -> Iterator[socket.socket]:
    """A connection that has had an answer."""
    with connect(proxy) as made:
        assert answer(made) == b"first"
        yield made


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def answer(end: socket.socket) -> bytes:
    """What comes back; empty where the connection is broken."""
    try:
        end.sendall(b"?")
        return end.recv(100)
    except ConnectionError:
        return b""


def test_an_outage_breaks_every_connection_and_takes_none_until_it_is_over(
    proxy: Proxy, end: socket.socket
) -> None:
    proxy.set_out(True)
    assert end.recv(100) == b"" or answer(end) == b""
    with connect(proxy) as other:
        assert answer(other) == b""
    proxy.set_out(False)
    with connect(proxy) as other:
        assert answer(other) == b"first"


def test_a_silent_link_stays_open_and_is_broken_when_it_is_heard_again(
    proxy: Proxy, end: socket.socket
) -> None:
    proxy.set_silent(True)
    end.settimeout(0.3)
    with pytest.raises(TimeoutError):
        answer(end)
    end.settimeout(30)
    proxy.set_silent(False)
    assert end.recv(100) == b""
    with connect(proxy) as other:
        assert answer(other) == b"first"


def test_a_delay_counts_from_when_it_is_set(proxy: Proxy, end: socket.socket) -> None:
    proxy.set_delay(200.0)
    began = time.monotonic()
    assert answer(end) == b"first"
    assert time.monotonic() - began >= 0.4  # there and back


def test_another_way_is_taken_by_new_connections_and_breaks_the_old(
    proxy: Proxy, end: socket.socket
) -> None:
    with answering(b"second") as address:
        proxy.redirect(address)
        assert proxy.leads_to == address
        assert end.recv(100) == b""
        with connect(proxy) as other:
            assert answer(other) == b"second"
