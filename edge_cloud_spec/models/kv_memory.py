"""Memory for keys and values, bounded in bytes over all caches and kept prefixes.

It is allocated in buffers, which torch's allocator reuses. When memory is full, the least recently
used holder is evicted. Imports no torch.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import MemoryFull, is_out_of_memory

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
    """A buffer; ``data`` is the allocation, ``size`` its bytes."""

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
        # A deque, since the garbage collector may call `give` at any point of `take`.
        self._given: deque[KvBuffer] = deque()

    @property
    def in_use(self) -> int:
        """Bytes held by caches and kept prefixes."""
        return self._held_bytes - sum([buffer.size for buffer in tuple(self._given)])

    @property
    def usage(self) -> float:
        """The share of the limit in use, 0 to 1; 0 without a limit."""
        return self.in_use / self.limit if self.limit else 0.0

    def take(self, size: int, allocate: Callable[[], Any], *, evicts: bool = True) -> KvBuffer:
        """A buffer of ``size`` bytes, which ``allocate()`` makes.

        evicts: whether other holders may be evicted for it. MemoryFull: the limit is reached, or
        the device has no memory.
        """
        if self.limit is not None and size > self.limit:
            text = f"{size / MB:.0f} MB for one session and the bound is {self.limit / MB:.0f} MB"
            raise MemoryFull(f"keys and values need {text}: serve with a larger --kv-memory", 0.0)
        self._collect()
        while (buffer := self._buffer(size, allocate)) is None:
            if not (evicts and self.evict_one()):
                raise MemoryFull("the memory for keys and values is taken; try again later")
        self._held[buffer] = None
        self._held_bytes += size
        self.peak = max(self.peak, self._held_bytes)
        return buffer

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
        """Free the buffers that were given back."""
        while self._given:
            buffer = self._given.popleft()
            if self._held.pop(buffer, self) is not self:
                self._held_bytes -= buffer.size

    def _buffer(self, size: int, allocate: Callable[[], Any]) -> KvBuffer | None:
        """A new buffer; None: no memory."""
        if self.limit is not None and self._held_bytes + size > self.limit:
            return None
        try:
            return KvBuffer(size, allocate())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None


class Held:
    """A buffer of one owner, who may take a larger one in its place, and gives it back at last.

    What its owner puts beside it goes the same way: it is used, evicted and given back with it.
    """

    _held: KvBuffer

    def __init__(self, memory: KvMemory) -> None:
        self._memory = memory
        self._holder: KvHolder | None = None
        self._beside: list[Held] = []

    def _hold(self, buffer: KvBuffer) -> None:
        """Have this buffer from now on; the one before is given back by who replaces it."""
        self._held = buffer
        self._give = weakref.finalize(self, self._memory.give, buffer)
        if self._holder is not None:
            self._memory.hold(buffer, self._holder)

    @property
    def size(self) -> int:
        """The bytes of the buffer, and of what is beside it."""
        return self._held.size + sum(each.size for each in self._beside)

    def release(self) -> None:
        """Give the buffer back; nothing in it may be used."""
        self._give()
        for each in self._beside:
            each.release()

    def keep_for(self, holder: KvHolder) -> None:
        """Register the holder that may evict this buffer from now on."""
        self._holder = holder
        self._memory.hold(self._held, holder)
        for each in self._beside:
            each.keep_for(holder)

    def touch(self) -> None:
        """Mark the buffer as used now."""
        self._memory.touch(self._held)
        for each in self._beside:
            each.touch()
