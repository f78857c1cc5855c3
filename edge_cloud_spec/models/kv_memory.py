"""The memory for keys and values.

One bound in bytes holds for all caches and kept prefixes. Memory is taken as buffers, each for some
rows of one kind. What is given back is kept and taken again where it fits, so that a process does
not grow with the sessions that it has seen. When there is no room the holder that was used the
longest ago gives its buffer back. No torch in here.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import MemoryFull, is_out_of_memory

MOST_FREE = 8  # buffers that are kept for their next use
WASTE = 2  # a buffer is taken again for at least this part of its rows
MB = 2**20


class KvHolder(Protocol):
    """The owner of a buffer, which can give it up."""

    @property
    def pinned(self) -> bool:
        """Whether its buffer is needed soon, and so may not be taken."""

    def evict(self) -> bool:
        """Give the buffer back; False where it cannot now."""


@dataclass(frozen=True, eq=False)
class KvBuffer:
    """Room for ``rows`` rows; ``data`` is what was allocated, ``size`` its bytes."""

    kind: Hashable
    rows: int
    size: int
    data: Any


class KvMemory:
    """Allocates and evicts buffers. For the model's thread; ``give`` and figures for any.

    ``peak``: the most bytes that were held at a time. ``evictions``: evicted holders;
    ``restored_rows``: rows that evicted sessions computed again; ``prefix_hits``: prompts of which
    ``prefix_rows`` rows in all were there already.
    """

    def __init__(self, limit: int | None = None) -> None:
        """limit: bytes of all buffers together; None: no bound."""
        self.limit = limit
        self.peak = self.evictions = self.restored_rows = 0
        self.prefix_hits = self.prefix_rows = 0
        self._held: OrderedDict[KvBuffer, weakref.ref[KvHolder] | None] = OrderedDict()  # by use
        self._held_bytes = 0
        self._free: deque[KvBuffer] = deque()  # the one given back last stands last
        # A deque, since `give` may be called by the garbage collector, at any point of `take`.
        self._given: deque[KvBuffer] = deque()

    @property
    def in_use(self) -> int:
        """Bytes that caches and kept prefixes hold."""
        return self._held_bytes - sum([buffer.size for buffer in tuple(self._given)])

    @property
    def reserved(self) -> int:
        """Bytes that are allocated: in use, or kept for their next use."""
        return self._held_bytes + sum([buffer.size for buffer in tuple(self._free)])

    @property
    def usage(self) -> float:
        """The share of the bound that is in use; 0 without a bound."""
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
        """A buffer for at least so many rows of a kind, new ones by ``allocate(rows)``.

        evicts: others may lose theirs for it. MemoryFull: there is no room, or none of the device.
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
        """Register the holder that evicts this buffer when asked; without one nobody does."""
        self._held[buffer] = weakref.ref(holder)
        self._held.move_to_end(buffer)

    def touch(self, buffer: KvBuffer) -> None:
        """Mark the buffer as used now; the least recently used one is evicted first."""
        self._held.move_to_end(buffer)

    def give(self, buffer: KvBuffer) -> None:
        """Give a buffer back, once; from any thread."""
        self._given.append(buffer)

    def evict_one(self) -> bool:
        """Evict the least recently used holder that can be; False: there is none."""
        self._collect()
        for reference in list(self._held.values()):
            holder = reference() if reference is not None else None
            if holder is not None and not holder.pinned and holder.evict():
                self.evictions += 1
                self._collect()
                return True
        return False

    def _collect(self) -> None:
        """Add the buffers that were given back to the free ones."""
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
        """A free buffer that fits, or a new one, in the place of free ones where need be; None:
        there is no room."""
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
            self._free.clear()  # the bound is more than the device has
        return None
