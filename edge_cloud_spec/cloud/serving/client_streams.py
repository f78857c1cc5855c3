"""The open streams of each client, and their queued bytes; belongs to the server's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ..model_thread.sessions import RobotStream, WorkerLimits

MAX_WAITING = 16  # unhandled messages per stream, after which it is not read


class ByteBound:
    """The bytes queued for one client, over all its streams; for any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.size = 0

    def add(self, size: int) -> bool:
        """Add so many bytes (may be negative); returns whether the total is within the bound."""
        with self._lock:
            self.size += size
            return self.size <= self._max_bytes


class SendQueue:
    """The queue of messages to one stream; ``take`` is for the asyncio loop that made it.

    When more than ``max_bytes`` are queued (the robot does not read), or the client exceeds its
    ``bound``, the queue drops all and calls ``give_up`` once, on the loop.
    """

    def __init__(self, max_bytes: int, give_up: Callable[[], object], bound: ByteBound) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._max_bytes, self._give_up, self._bound = max_bytes, give_up, bound
        self._closed = False  # the stream has ended; later messages are dropped
        self._lock = threading.Lock()  # protects size and bound
        self.size = 0  # bytes queued; updated at once, as the loop may be busy
        # When the robot sent the message, and when it arrived, ns.
        self.stamp: tuple[int, int] | None = None
        self.refuse_for = 0.0  # s; > 0: the stream is refused for exceeding its rate
        self.over = False  # the stream is being ended, and its queue is dropped
        self.unread = False  # because too much was queued

    def put(self, data: bytes | None) -> None:
        """Queue a message, or None to end the stream; from any thread."""
        with self._lock:
            if self.over or self._closed:
                return
            self.size += len(data or b"")
            within = self._bound.add(len(data or b""))
            self.over = self.unread = self.size > self._max_bytes or not within
        job = self.drop if self.over else partial(self._queue.put_nowait, data)
        with contextlib.suppress(RuntimeError):  # the loop is closed, as the server ends
            self._loop.call_soon_threadsafe(job)

    async def take(self) -> bytes | None:
        """Wait for the next message; None at the end."""
        data = await self._queue.get()
        with self._lock:
            if not self._closed:
                self.size -= len(data or b"")
                self._bound.add(-len(data or b""))
        return data

    def close(self) -> None:
        """Stop counting this queue's bytes: the stream is over."""
        with self._lock:
            self._closed = True
            self._bound.add(-self.size)
            self.size = 0

    def drop(self) -> None:
        """Drop the queued messages and call ``give_up``; call this on the loop."""
        self.over = True
        while not self._queue.empty():
            self._queue.get_nowait()
        self._give_up()


@dataclass
class _Client:
    """The streams of one client, oldest first, and its queued bytes."""

    to_send: ByteBound
    queues: dict[RobotStream, SendQueue] = field(default_factory=dict)

    @property
    def idle(self) -> int:
        """Streams without a session."""
        return sum(stream.session is None for stream in self.queues)


class ClientStreams:
    """Limits each client's streams, and pauses reading of streams with too much queued.

    A client may have two streams per session: a robot can open a new one before the cloud has
    noticed the end of the old one.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._clients: dict[str, _Client] = {}
        self.evicted = 0  # streams ended to make room for others

    def __len__(self) -> int:
        return sum(len(client.queues) for client in list(self._clients.values()))

    @property
    def streams(self) -> dict[RobotStream, SendQueue]:
        """All open streams."""
        clients = list(self._clients.values())
        return {stream: queue for one in clients for stream, queue in list(one.queues.items())}

    @property
    def waiting_bytes(self) -> dict[str, int]:
        """Queued bytes of all streams, by direction; from any thread."""
        received = sum(stream.backlog[1] for stream in self.streams)
        to_send = sum(client.to_send.size for client in list(self._clients.values()))
        return {"received": received, "to_send": to_send}

    def open(
        self,
        client: str,
        stream_of: Callable[[SendQueue], RobotStream],
        give_up: Callable[[], object],
    ) -> tuple[RobotStream, SendQueue]:
        """Open a stream for this client; returns it and its queue. At the limit, another stream is
        ended.

        That is one of the same client's or, at the limit of all clients, of the client with the
        most; among these the oldest without a session goes first.
        """
        limits = self._limits
        own = self._clients.get(client)
        if own is not None and len(own.queues) >= 2 * limits.sessions_per_robot:
            self._evict(own)
        elif len(self) >= 2 * limits.sessions:
            self._evict(max(self._clients.values(), key=lambda one: (one.idle, len(one.queues))))
        if (own := self._clients.get(client)) is None:
            own = self._clients[client] = _Client(ByteBound(limits.bytes_per_robot))
        queue = SendQueue(limits.queue_bytes, give_up, own.to_send)
        stream = stream_of(queue)
        own.queues[stream] = queue
        return stream, queue

    def remove(self, stream: RobotStream) -> None:
        """Forget a stream that has ended."""
        own = self._clients.get(stream.client)
        queue = own.queues.pop(stream, None) if own is not None else None
        if own is None or queue is None:
            return
        queue.close()
        if not own.queues:
            del self._clients[stream.client]

    def _evict(self, own: _Client) -> None:
        idle = (stream for stream in own.queues if stream.session is None)
        oldest = next(idle, next(iter(own.queues)))
        queue = own.queues[oldest]
        self.remove(oldest)
        self.evicted += 1
        queue.drop()

    def is_behind(self, stream: RobotStream) -> bool:
        """Whether reading should pause: too much of this stream, or of its client, is queued."""
        own, limits = self._clients.get(stream.client), self._limits
        queue = own.queues.get(stream) if own is not None else None
        if own is None or queue is None:
            return False
        messages, size = stream.backlog
        if messages > MAX_WAITING or max(size, 2 * queue.size) > limits.queue_bytes:
            return True
        received = sum(one.backlog[1] for one in own.queues)
        return max(received, 2 * own.to_send.size) > limits.bytes_per_robot
