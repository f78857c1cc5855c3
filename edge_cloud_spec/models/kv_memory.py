"""Memory for keys and values, bounded in bytes over all caches and kept prefixes.

It is allocated in buffers; a buffer that is given back is reused if it fits, so that the process
does not grow. When memory is full, the least recently used holder is evicted. Imports no torch.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import MemoryFull, is_out_of_memory

MOST_FREE = 8  # unused buffers that are kept for reuse
WASTE = 2  # a free buffer is reused if at most this many times larger than needed
MB = 2**20


class KvHolder(Protocol):
    """The owner of a buffer, which may be asked to give it back."""

    @property
    def pinned(self) -> bool:
        """Whether the buffer is in use or needed soon, and must not be evicted."""

    def evict(self) -> bool:
        """Give the buffer back; False: impossible now."""


@dataclass(frozen=True, eq=False)
class KvBuffer:
    """A buffer for ``rows`` tokens of a ``kind`` (layout); ``data`` is the allocation, ``size`` its
    bytes."""

    kind: Hashable
    rows: int
    size: int
    data: Any


class KvMemory:
    """Allocates and evicts buffers. For the model's thread; ``give`` and the counters for any
    thread.

    ``peak``: the most bytes in use at once. ``evictions``: evicted holders. ``restored_rows``:
    tokens computed again after an eviction. ``prefix_hits``: prompts with a cached prefix;
    ``prefix_rows``: the tokens in them that were cached.
    """

    def __init__(self, limit: int | None = None) -> None:
        """limit: the bytes of all buffers together; None: unlimited."""
        self.limit = limit
        self.peak = self.evictions = self.restored_rows = 0
        self.prefix_hits = self.prefix_rows = 0
        # Least recently used first.
        self._held: OrderedDict[KvBuffer, weakref.ref[KvHolder] | None] = OrderedDict()
        self._held_bytes = 0
        self._free: deque[KvBuffer] = deque()  # most recently freed last
        # A deque, since the garbage collector may call `give` at any point of `take`.
        self._given: deque[KvBuffer] = deque()

    @property
    def in_use(self) -> int:
        """Bytes held by caches and kept prefixes."""
        return self._held_bytes - sum([buffer.size for buffer in tuple(self._given)])

    @property
    def reserved(self) -> int:
        """Bytes allocated: in use, or kept for reuse."""
        return self._held_bytes + sum([buffer.size for buffer in tuple(self._free)])

    @property
    def usage(self) -> float:
        """The share of the limit in use, 0 to 1; 0 without a limit."""
        return self.in_use / self.limit if self.limit else 0.0

    def take(
        self,
        kind: Hashable,
        rows: int,
        row_bytes: int,
        allocate: Callable[[int], Any],
        *,
        evicts: bool = True,
    ) -> KvBuffer:
        """A buffer for at least ``rows`` tokens of a kind, reused or made by ``allocate(rows)``.

        evicts: whether other holders may be evicted for it. MemoryFull: the limit is reached, or
        the device has no memory.
        """
        size = rows * row_bytes
        if self.limit is not None and size > self.limit:
            text = f"{size / MB:.0f} MB for one session and the bound is {self.limit / MB:.0f} MB"
            raise MemoryFull(f"keys and values need {text}: serve with a larger --kv-memory", 0.0)
        while True:
            buffer = self._buffer(kind, rows, size, allocate)
            if buffer is not None:
                self._held[buffer] = None
                self._held_bytes += buffer.size
                self.peak = max(self.peak, self._held_bytes)
                return buffer
            if not (evicts and self.evict_one()):
                raise MemoryFull("the memory for keys and values is taken; try again later")

    def hold(self, buffer: KvBuffer, holder: KvHolder) -> None:
        """Register the holder that is asked to give this buffer back; without one, the buffer is
        never evicted."""
        self._held[buffer] = weakref.ref(holder)
        self._held.move_to_end(buffer)

    def touch(self, buffer: KvBuffer) -> None:
        """Mark the buffer as used now; the least recently used one is evicted first."""
        self._held.move_to_end(buffer)

    def give(self, buffer: KvBuffer) -> None:
        """Give a buffer back, once only; from any thread."""
        self._given.append(buffer)

    def evict_one(self) -> bool:
        """Evict the least recently used holder that is not pinned; False: there is none."""
        self._collect()
        for reference in list(self._held.values()):
            holder = reference() if reference is not None else None
            if holder is not None and not holder.pinned and holder.evict():
                self.evictions += 1
                self._collect()
                return True
        return False

    def _collect(self) -> None:
        """Move the buffers that were given back to the free list."""
        while self._given:
            buffer = self._given.popleft()
            if self._held.pop(buffer, self) is not self:
                self._held_bytes -= buffer.size
                self._free.append(buffer)
        while len(self._free) > MOST_FREE:
            self._free.popleft()

    def _fits(self, size: int) -> bool:
        return self.limit is None or self._held_bytes + size <= self.limit

    def _buffer(
        self, kind: Hashable, rows: int, size: int, allocate: Callable[[int], Any]
    ) -> KvBuffer | None:
        """A free buffer that fits, or a new one, after freeing unused ones if necessary; None: no
        memory."""
        self._collect()
        fitting = [
            buffer
            for buffer in self._free
            if buffer.kind == kind
            and rows <= buffer.rows <= WASTE * rows
            and self._fits(buffer.size)
        ]
        if fitting:
            best = min(fitting, key=lambda buffer: buffer.rows)
            self._free.remove(best)
            return best
        if not self._fits(size):
            return None
        while self._free and not self._fits(self.reserved - self._held_bytes + size):
            self._free.popleft()
        for _ in range(2):
            try:
                return KvBuffer(kind, rows, size, allocate(rows))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            self._free.clear()  # the limit exceeds the device's memory
        return None
