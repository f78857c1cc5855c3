"""What the Gated DeltaNet layers of a session remember: a state, and the writes behind it.

A cache of keys and values is rolled back by lowering a count; a state is not. So the state stays a
few rows behind: what the rows after it write is kept row by row, as keys and values are, and the
state moves on (``delta_rule.after``) only where room for writes is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..decoding.token_tree import TokenTree
from .delta_rule import CHUNK_ROWS, DeltaSizes, Lineage, after, delta_rule, scan
from .kv_memory import Held, KvBuffer, KvMemory

WRITES = 48  # rows whose writes fit at first
KEPT_ROWS = 16  # before the last, to which a session can always return


@dataclass(frozen=True)
class RecurrentLayout:
    """The shape of what a model's Gated DeltaNet layers remember; always float32."""

    layers: int
    sizes: DeltaSizes
    device: torch.device

    @property
    def state_bytes(self) -> int:
        """Bytes of all layers' states and windows, after one row."""
        sizes = self.sizes
        state = sizes.values * sizes.key_size + (sizes.kernel - 1) * sizes.columns
        return self.layers * state * torch.float32.itemsize

    @property
    def write_bytes(self) -> int:
        """Bytes of what one row writes in all layers."""
        return self.layers * self.sizes.write * torch.float32.itemsize

    def take(self, rows: int, memory: KvMemory, *, evicts: bool = True) -> KvBuffer:
        """A buffer of a state, a window and so many writes; see ``KvMemory.take``."""
        size = self.state_bytes + rows * self.write_bytes
        return memory.take(size, lambda: self._allocate(rows), evicts=evicts)

    def _allocate(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        sizes = self.sizes
        shapes = (
            (self.layers, sizes.value_heads, sizes.key_size, sizes.value_size),
            (self.layers, sizes.kernel - 1, sizes.columns),
            (self.layers, rows, sizes.write),
        )
        with torch.inference_mode(False):  # as keys and values
            state, window, writes = (torch.empty(each, device=self.device) for each in shapes)
        return state, window, writes


class RecurrentState(Held):
    """State and window after ``base`` rows, and the writes of the rows from there on.

    As with keys and values, its owner knows how many of these are valid.
    """

    def __init__(self, layout: RecurrentLayout, nodes: int, memory: KvMemory) -> None:
        """After no row. nodes: so many are expected in a pass. MemoryFull: there is no memory."""
        super().__init__(memory)
        self.layout, self.base = layout, 0
        self._take(max(WRITES, KEPT_ROWS + nodes))
        self._state.zero_()
        self._window.zero_()
        self._lineages: Sequence[Lineage] = ()
        self._moved: list[tuple[Tensor, Tensor, Tensor]] = []  # by a pass, for each layer

    def _take(self, rows: int) -> None:
        self._hold(self.layout.take(rows, self._memory))
        self._state, self._window, self._writes = self._held.data

    def reserve(self, end: int, valid: int, certain: int, prompt: int) -> None:
        """Prepare a pass over the rows from ``valid`` to ``end``; raises MemoryFull.

        certain: rows that are never dropped without a way back to a state. prompt: of the pass's
        rows, so many first ones are certain, too, when it is done.
        """
        if self._fits(end):
            return
        self._move_to(certain - KEPT_ROWS, valid)
        due = end - (valid + prompt - KEPT_ROWS if prompt > KEPT_ROWS else self.base)
        if due > self._writes.shape[1]:
            release, old, rows = self._give, self._held.data, valid - self.base
            self._take(max(due, self._writes.shape[1] * 5 // 4))
            for new, before in zip((self._state, self._window), old[:2], strict=True):
                new.copy_(before)
            self._writes[:, :rows] = old[2][:, :rows]
            release()

    def _fits(self, end: int) -> bool:
        return end <= self.base + len(self._writes[0])

    def _move_to(self, row: int, valid: int) -> None:
        """Let the state be that after ``row`` rows, from which there is no way back."""
        count = row - self.base
        if count > 0:
            with torch.inference_mode():
                state, window = self._after(count)
                self._state.copy_(state)
                self._window.copy_(window)
                left = self._writes[:, count : valid - self.base].clone()
                self._writes[:, : left.shape[1]] = left
            self.base = row

    def _after(self, count: int) -> tuple[Tensor, Tensor]:
        return after(self.layout.sizes, self._state, self._window, self._writes[:, :count])

    def begin(self, start: int, count: int, nodes: TokenTree, new: int) -> None:
        """Begin a pass over ``count`` rows, after ``reserve``; the last ``new`` of them are the
        last of the nodes."""
        before, kernel = start - self.base, self.layout.sizes.kernel
        end = before + count
        chunks: list[tuple[int, int]] = []  # rows and those of them that are computed
        if not self._fits(start + count):
            certain = max(0, count - new - KEPT_ROWS)
            while certain > 0:
                rows = min(certain, CHUNK_ROWS)
                chunks.append((before + rows, rows))
                before, count, certain = 0, count - rows, certain - rows
        chunks.append((before + count, count))
        last = len(chunks) - 1
        self._lineages = [
            Lineage.of(nodes if at == last else TokenTree(), *each, kernel, self.layout.device)
            for at, each in enumerate(chunks)
        ]
        self._rows, self._moved = (end, chunks[-1][0]), []

    def mix(
        self, layer: int, columns: Tensor, gates: tuple[Tensor, Tensor], kernel: Tensor
    ) -> Tensor:
        """What each row of the pass reads in this layer; see ``delta_rule``."""
        sizes, lineages = self.layout.sizes, self._lineages
        state, window = self._state[layer], self._window[layer]
        if len(lineages) == 1:
            writes = self._writes[layer, : self._rows[0]]
            return delta_rule(sizes, columns, gates, kernel, state, window, writes, lineages[0])
        before = self._writes[layer, : self._rows[0] - len(columns)]
        read, *moved = scan(sizes, columns, gates, kernel, state, window, before, lineages)
        self._moved.append((moved[0], moved[1], moved[2]))
        return read

    def settle(self) -> None:
        """The pass is done, and its rows but the nodes are certain."""
        for layer, (state, window, writes) in enumerate(self._moved):
            self._state[layer], self._window[layer] = state, window
            self._writes[layer, : len(writes)] = writes
        if self._moved:
            self.base += self._rows[0] - self._rows[1]
        self._moved = []

    def gather(self, start: int, rows: Tensor) -> None:
        """As ``KeyValueCache.gather``."""
        kept = self._writes.index_select(1, rows - self.base)
        self._writes[:, start - self.base : start - self.base + len(rows)] = kept

    def snapshot(self, row: int) -> KvBuffer:
        """A copy of the state after ``row`` rows, ``base`` or more; raises MemoryFull."""
        copy = self.layout.take(0, self._memory, evicts=False)
        with torch.inference_mode():
            for new, mine in zip(copy.data, self._after(row - self.base), strict=False):
                new.copy_(mine)
        return copy

    def resume(self, snapshot: KvBuffer, row: int) -> None:
        """Continue after ``row`` rows, from their ``snapshot``."""
        with torch.inference_mode():
            for mine, copy in zip((self._state, self._window), snapshot.data, strict=False):
                mine.copy_(copy)
        self.base = row
