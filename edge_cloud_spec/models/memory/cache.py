"""Keys and values of one session: preallocated rows, rolled back by lowering a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .kv_memory import KvBuffer, KvHolder, KvMemory

STEP = 128  # rows; capacity is a multiple


@dataclass(frozen=True)
class CacheLayout:
    """What one row of a model's cache is."""

    layers: int
    heads: int
    size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def row_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return prod((self.layers, 2, self.heads, self.size, self.dtype.itemsize))

    def take(self, rows: int, memory: KvMemory, *, evicts: bool = True) -> KvBuffer:
        """A buffer [layers, 2, heads, rows, size] for at least so many rows; see ``KvMemory``."""
        return memory.take(self, rows, self.row_bytes, self._allocate, evicts=evicts)

    def _allocate(self, rows: int) -> Tensor:
        shape = (self.layers, 2, self.heads, rows, self.size)
        with torch.inference_mode(False):  # it is written by passes and outside of them
            return torch.empty(shape, dtype=self.dtype, device=self.device)


class KeyValueCache:
    """One buffer [layers, 2, kv_heads, capacity, head_dim]; its owner knows which rows are valid.

    transformers' DynamicCache concatenates (copies) all rows at each step and layer; here a step
    writes its own rows only, and rolling back writes nothing.
    """

    _held: KvBuffer | None = None

    def __init__(self, layout: CacheLayout, rows: int, memory: KvMemory) -> None:
        """MemoryFull: there is no room for so many rows."""
        self._layout, self._memory = layout, memory
        self._holder: KvHolder | None = None
        self._take(rows)

    def _take(self, rows: int) -> None:
        """Hold another buffer."""
        self._held = self._layout.take(_rounded(rows), self._memory)
        if self._holder is not None:
            self._memory.hold(self._held, self._holder)
        self._buffer: Tensor = self._held.data
        # Views made once: indexing the buffer per layer and step would cost more than the copy.
        self.keys: list[Tensor] = [layer[0] for layer in self._buffer]  # [kv_heads, capacity, dim]
        self.values: list[Tensor] = [layer[1] for layer in self._buffer]

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return self._buffer.shape[3]

    def reserve(self, rows: int, valid: int) -> None:
        """Make room for `rows` rows in all, keeping the first `valid`; MemoryFull: there is none.

        It grows by a quarter at least: by little, since memory is bounded, but not at each step.
        """
        if rows <= self.capacity:
            return
        held, old = self._held, self._buffer
        self._take(max(rows, self.capacity * 5 // 4))
        self._buffer[:, :, :, :valid] = old[:, :, :, :valid]
        if held is not None:
            self._memory.give(held)

    def clear(self, start: int, end: int) -> None:
        """Zeros in these rows: what a masked row holds must be a number."""
        self._buffer[:, :, :, start:end] = 0

    def gather(self, start: int, rows: Sequence[int]) -> None:
        """Move `rows` (absolute, in order) to start, start + 1, ...: commit of a path."""
        if list(rows) != list(range(start, start + len(rows))):
            index = torch.tensor(rows, device=self._buffer.device)
            kept = self._buffer.index_select(3, index)
            self._buffer[:, :, :, start : start + len(rows)] = kept

    def rows(self, start: int, end: int) -> Tensor:
        """A view [layers, 2, kv_heads, end - start, head_dim] of these rows."""
        return self._buffer[:, :, :, start:end]

    def keep_for(self, holder: KvHolder) -> None:
        """From now on this holder may be asked to do without it."""
        self._holder = holder
        if self._held is not None:
            self._memory.hold(self._held, holder)

    def touch(self) -> None:
        """It is used now."""
        if self._held is not None:
            self._memory.touch(self._held)

    def release(self) -> None:
        """Give the memory back; nothing may use the rows any more."""
        held, self._held = self._held, None
        if held is not None:
            self._memory.give(held)

    def __del__(self) -> None:
        self.release()


def _rounded(rows: int) -> int:
    return (rows + STEP - 1) // STEP * STEP
