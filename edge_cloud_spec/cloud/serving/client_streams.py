"""The open streams of each client, and their queued bytes; belongs to the server's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from ...wire.frames import ServerFrame
from ..model_thread.limits import WorkerLimits
from ..model_thread.sessions import RobotStream

MAX_UNHANDLED = 16  # messages of a stream, after which it is not read


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
        self._queue: asyncio.Queue[ServerFrame | None] = asyncio.Queue()
        self._max_bytes, self._give_up, self.bound = max_bytes, give_up, bound
        self._closed = False  # the stream has ended; later messages are dropped
        self._lock = threading.Lock()  # protects size and bound
        self.size = 0  # bytes queued; updated at once, as the loop may be busy
        self.refuse_for = 0.0  # s; > 0: the stream is refused for exceeding its rate
        self.over = False  # the stream is being ended, and its queue is dropped
        self.unread = False  # because too much was queued

    def put(self, frame: ServerFrame | None) -> None:
        """Queue a message, or None to end the stream; from any thread."""
        size = len(frame or ())
        with self._lock:
            if self.over or self._closed:
                return
            self.size += size
            within = self.bound.add(size)
            self.over = self.unread = self.size > self._max_bytes or not within
        job = self.drop if self.over else partial(self._queue.put_nowait, frame)
        with contextlib.suppress(RuntimeError):  # the loop is closed, as the server ends
            self._loop.call_soon_threadsafe(job)

    async def take(self) -> ServerFrame | None:
        """Wait for the next message; None at the end."""
        frame = await self._queue.get()
        size = len(frame or ())
        with self._lock:
            if not self._closed:
                self.size -= size
                self.bound.add(-size)
        return frame

    def close(self) -> None:
        """Stop counting this queue's bytes: the stream is over."""
        with self._lock:
            self._closed = True
            self.bound.add(-self.size)
            self.size = 0

    def drop(self) -> None:
        """Drop the queued messages and call ``give_up``; call this on the loop."""
        self.over = True
        while not self._queue.empty():
            self._queue.get_nowait()
        self._give_up()


class ClientStreams:
    """Limits each client's streams, and pauses reading of streams with too much queued.

    A client may have two streams per session: a robot can open a new one before the cloud has
    noticed the end of the old one. ``streams``: all that are open, oldest first.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self.streams: dict[RobotStream, SendQueue] = {}
        # The same by client, since each message asks for those of its own.
        self._of: dict[str, dict[RobotStream, SendQueue]] = {}
        self.evicted = 0  # streams ended to make room for others

    @property
    def waiting_bytes(self) -> dict[str, int]:
        """Queued bytes of all streams, by direction; from any thread."""
        open_ = list(self.streams.items())
        received = sum(stream.backlog[1] for stream, _ in open_)
        return {"received": received, "to_send": sum(queue.size for _, queue in open_)}

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
        limits, own = self._limits, self._of.get(client, {})
        bound = next(iter(own.values())).bound if own else ByteBound(limits.bytes_per_robot)
        if len(own) >= 2 * limits.sessions_per_robot:
            self._evict(client)
        elif len(self.streams) >= 2 * limits.sessions:
            held = Counter(stream.client for stream in self.streams)
            idle = Counter(stream.client for stream in self.streams if stream.session is None)
            self._evict(max(held, key=lambda one: (idle[one], held[one])))
        queue = SendQueue(limits.queue_bytes, give_up, bound)
        stream = stream_of(queue)
        # Not ``client``: a stream without one is a client of its own.
        self.streams[stream] = self._of.setdefault(stream.client, {})[stream] = queue
        return stream, queue

    def remove(self, stream: RobotStream) -> None:
        """Forget a stream that has ended."""
        if (queue := self.streams.pop(stream, None)) is not None:
            queue.close()
            own = self._of[stream.client]
            del own[stream]
            if not own:
                del self._of[stream.client]

    def _evict(self, client: str) -> None:
        oldest, queue = min(self._of[client].items(), key=lambda one: one[0].session is not None)
        self.remove(oldest)
        self.evicted += 1
        queue.drop()

    def is_behind(self, stream: RobotStream) -> bool:
        """Whether reading should pause: too much of this stream, or of its client, is queued."""
        limits, queue = self._limits, self.streams.get(stream)
        if queue is None:
            return False
        messages, size = stream.backlog
        if messages > MAX_UNHANDLED or max(size, 2 * queue.size) > limits.queue_bytes:
            return True
        received = sum(one.backlog[1] for one in self._of[stream.client])
        return max(received, 2 * queue.bound.size) > limits.bytes_per_robot
