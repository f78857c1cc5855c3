"""The messages that wait to be sent to a robot, bounded in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial


class ByteBound:
    """Bytes that wait in all queues of one client; from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.size = 0

    def add(self, size: int) -> bool:
        """So many more wait, or fewer; whether that is within the bound."""
        with self._lock:
            self.size += size
            return self.size <= self._max_bytes


class SendQueue:
    """The messages of one stream; ``take`` is for the loop that it is made on.

    When more than ``max_bytes`` wait, or more than its client's ``bound``, since the robot does not
    read what it asks for, they are dropped and ``give_up`` is called on the loop, once.
    """

    def __init__(
        self, max_bytes: int, give_up: Callable[[], object], bound: ByteBound | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._max_bytes, self._give_up = max_bytes, give_up
        self._bound = bound or ByteBound(max_bytes)
        self._closed = False  # the stream is over: what the worker still sends is dropped
        self._lock = threading.Lock()  # of the two below
        self.size = 0  # bytes that wait, counted at once: the loop may be busy
        self.stamp: tuple[int, int] | None = None  # ns: when the robot sent, and we received
        self.refuse_for = 0.0  # s; the stream ends since its robot asks too much
        self.over = False  # the stream is ended, and what waits is dropped
        self.unread = False  # since too much waited

    def put(self, data: bytes | None) -> None:
        """Send this after what waits, None to end; from any thread."""
        with self._lock:
            if self.over or self._closed:
                return
            self.size += len(data or b"")
            within = self._bound.add(len(data or b""))
            self.over = self.unread = self.size > self._max_bytes or not within
        job = self.drop if self.over else partial(self._queue.put_nowait, data)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server ends
            self._loop.call_soon_threadsafe(job)

    async def take(self) -> bytes | None:
        """The next message; None at the end."""
        data = await self._queue.get()
        with self._lock:
            if not self._closed:
                self.size -= len(data or b"")
                self._bound.add(-len(data or b""))
        return data

    def close(self) -> None:
        """The stream is over: nothing waits any more."""
        with self._lock:
            self._closed = True
            self._bound.add(-self.size)
            self.size = 0

    def drop(self) -> None:
        """Drop what waits, and call ``give_up``; on the loop."""
        self.over = True
        while not self._queue.empty():
            self._queue.get_nowait()
        self._give_up()
