"""The emulated link in real time: a TCP proxy that delays bytes, in order, and has outages.

A test can change the link while it is in use: where it leads, its profile, whether it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from .emulated_link import Direction, LinkProfile

CHUNK = 65_536  # bytes


class Proxy:
    """Listens at ``address`` and forwards to ``to``; an outage breaks every connection."""

    def __init__(self, to: str, profile: LinkProfile, seed: int = 0) -> None:
        self._to = _host_and_port(to)
        self._profile = profile
        self._ways = (Direction(profile, 2 * seed), Direction(profile, 2 * seed + 1))
        self._writers: set[asyncio.StreamWriter] = set()
        self._out = self._silent = False
        # epoll would round every wait up to a millisecond
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.address = self._run(self._start())

    def close(self) -> None:
        """Break all connections and end the thread."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def leads_to(self) -> str:
        """The address that connections are forwarded to."""
        return f"{self._to[0]}:{self._to[1]}"

    def redirect(self, to: str) -> None:
        """Break all connections; new ones lead there."""
        self._to = _host_and_port(to)
        self._loop.call_soon_threadsafe(self._cut)

    def set_out(self, out: bool) -> None:
        """Break all connections and refuse new ones, or take them again."""
        self._out = out
        self._loop.call_soon_threadsafe(self._cut)

    def set_silent(self, silent: bool) -> None:
        """Lose all bytes both ways while connections stay open (half-open, for either end).

        What was lost is lost: the connections are broken when bytes pass again.
        """
        self._silent = silent
        if not silent:
            self._loop.call_soon_threadsafe(self._cut)

    def set_delay(self, delay_ms: float) -> None:
        """Another delay each way, for bytes that are sent from now on."""
        profile = replace(self._profile, delay_ms=delay_ms)
        for way in self._ways:
            way.profile = profile

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> str:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._outages = asyncio.ensure_future(self._run_outages())
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        self._server.close()
        self._outages.cancel()
        self._out = True
        self._cut()
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*remaining, return_exceptions=True)

    async def _run_outages(self) -> None:
        start = self._loop.time()
        for begin, end in self._profile.outages():
            await asyncio.sleep(start + begin - self._loop.time())
            self._out = True
            self._cut()
            for way in self._ways:
                way.clear()
            await asyncio.sleep(start + end - self._loop.time())
            self._out = False

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._out:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            await asyncio.gather(
                self._relay(reader, far_writer, self._ways[0]),
                self._relay(far_reader, writer, self._ways[1]),
            )
        finally:
            self._writers -= pair
            for end in pair:
                end.transport.abort()

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        """Forward until either end is gone."""
        in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.ensure_future(self._write(writer, in_flight))
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._silent:
                    continue
                in_flight.put_nowait((way.arrival(self._loop.time(), len(data)), data))
        in_flight.put_nowait((way.arrival(self._loop.time(), 0), b""))
        await writing

    async def _write(
        self, writer: asyncio.StreamWriter, in_flight: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while True:
            arrival, data = await in_flight.get()
            await asyncio.sleep(arrival - self._loop.time())
            if not data or writer.transport.is_closing():
                writer.close()
                return
            writer.write(data)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
