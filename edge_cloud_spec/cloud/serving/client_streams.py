"""The open streams of each client, and the bytes that wait in them; lives on the server's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ..model_thread.sessions import RobotStream, WorkerLimits

MAX_WAITING = 16  # messages of one stream that wait for the worker; with more it is not read


class ByteBound:
    """Bytes that wait in all queues of one client; from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.size = 0

    def add(self, size: int) -> bool:
        """Add so many waiting bytes (or fewer); returns whether they are within the bound."""
        with self._lock:
            self.size += size
            return self.size <= self._max_bytes


class SendQueue:
    """The queue of messages to one stream; ``take`` is for the asyncio loop that made it.

    When more than ``max_bytes`` wait (the robot does not read), or more than its client's
    ``bound``, the queue drops them and calls ``give_up`` once, on the loop.
    """

    def __init__(self, max_bytes: int, give_up: Callable[[], object], bound: ByteBound) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._max_bytes, self._give_up, self._bound = max_bytes, give_up, bound
        self._closed = False  # the stream is over: what the worker still sends is dropped
        self._lock = threading.Lock()  # of the two below
        self.size = 0  # bytes that wait, counted at once: the loop may be busy
        self.stamp: tuple[int, int] | None = None  # ns: when the robot sent, and we received
        self.refuse_for = 0.0  # s; the stream ends since its robot asks too much
        self.over = False  # the stream is ended, and what waits is dropped
        self.unread = False  # since too much waited

    def put(self, data: bytes | None) -> None:
        """Queue a message to send, None to end the stream; from any thread."""
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
        """Count no waiting bytes any more: the stream is over."""
        with self._lock:
            self._closed = True
            self._bound.add(-self.size)
            self.size = 0

    def drop(self) -> None:
        """Drop the waiting messages and call ``give_up``; to be called on the loop."""
        self.over = True
        while not self._queue.empty():
            self._queue.get_nowait()
        self._give_up()


@dataclass
class _Client:
    """The streams of one client, the oldest first, and what waits to be sent on them."""

    to_send: ByteBound
    queues: dict[RobotStream, SendQueue] = field(default_factory=dict)

    @property
    def idle(self) -> int:
        """Streams without a session."""
        return sum(stream.session is None for stream in self.queues)


class ClientStreams:
    """Limits each client's streams, and pauses reading of those with too much waiting.

    A client may have two streams a session: a robot can open a new one before the cloud has noticed
    the end of the old one.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._clients: dict[str, _Client] = {}
        self.evicted = 0  # streams that made room for others

    def __len__(self) -> int:
        return sum(len(client.queues) for client in list(self._clients.values()))

    @property
    def streams(self) -> dict[RobotStream, SendQueue]:
        """All open streams."""
        clients = list(self._clients.values())
        return {stream: queue for one in clients for stream, queue in list(one.queues.items())}

    @property
    def waiting_bytes(self) -> dict[str, int]:
        """Bytes of the messages that wait in all streams, by direction; from any thread."""
        received = sum(stream.backlog[1] for stream in self.streams)
        to_send = sum(client.to_send.size for client in list(self._clients.values()))
        return {"received": received, "to_send": to_send}

    def open(
        self,
        client: str,
        stream_of: Callable[[SendQueue], RobotStream],
        give_up: Callable[[], object],
    ) -> tuple[RobotStream, SendQueue]:
        """A stream of this client, and its queue; another one ends where there are too many.

        That is the client's own, or of the client that has the most; the oldest without a session
        is the first to go.
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
        """Forget a stream that is over."""
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
        """Whether too much of this stream, or of its client, waits for the worker or the robot."""
        own, limits = self._clients.get(stream.client), self._limits
        queue = own.queues.get(stream) if own is not None else None
        if own is None or queue is None:
            return False
        messages, size = stream.backlog
        if messages > MAX_WAITING or max(size, 2 * queue.size) > limits.queue_bytes:
            return True
        received = sum(one.backlog[1] for one in own.queues)
        return max(received, 2 * own.to_send.size) > limits.bytes_per_robot
