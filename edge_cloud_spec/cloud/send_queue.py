"""The messages that wait to be sent to a robot, bounded in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial


class SendQueue:
    """The messages of one stream; ``take`` is for the loop that it is made on.

    When more than ``max_bytes`` wait, since the robot does not read what it asks for, they are
    dropped and ``give_up`` is called on the loop, once.
    """

    def __init__(self, max_bytes: int, give_up: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._max_bytes, self._give_up = max_bytes, give_up
        self._lock = threading.Lock()  # of the two below
        self.size = 0  # bytes that wait, counted at once: the loop may be busy
        self.stamp: tuple[int, int] | None = None  # ns: when the robot sent, and we received
        self.refuse_for = 0.0  # s; the stream ends since its robot asks too much
        self.over = False  # too many waited, and the stream is ended

    def put(self, data: bytes | None) -> None:
        """Send this after what waits, None to end; from any thread."""
        with self._lock:
            if self.over:
                return
            self.size += len(data or b"")
            self.over = self.size > self._max_bytes
        job = self.drop if self.over else partial(self._queue.put_nowait, data)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server ends
            self._loop.call_soon_threadsafe(job)

    async def take(self) -> bytes | None:
        """The next message; None at the end."""
        data = await self._queue.get()
        with self._lock:
            self.size -= len(data or b"")
        return data

    def drop(self) -> None:
        """Drop what waits, and call ``give_up``; on the loop."""
        self.over = True
        while not self._queue.empty():
            self._queue.get_nowait()
        self._give_up()
