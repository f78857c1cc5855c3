"""KV caches: preallocated buffers with one row per token, and a store of shared prompt prefixes.

Rolling a cache back only lowers a count, as far as there are Gated DeltaNet layers for some rows
only (``recurrent``). A session can lose its cache to another one, and computes it again at its next
pass.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, takewhile
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.digest import common_prefix
from ..errors import MemoryFull
from .kv_memory import MB, Held, KvBuffer, KvMemory
from .recurrent import RecurrentLayout, RecurrentState

CAPACITY_STEP_ROWS = 128  # rows; capacities are multiples of it


@dataclass(frozen=True)
class CacheLayout:
    """The shape of a model's keys and values; ``recurrent``: of what its Gated DeltaNet layers
    remember, if there are any.

    hidden: the width of the rows that a draft head reads, which are kept with its own keys and
    values; 0: there is none.
    """

    layers: int
    heads: int
    size: int
    dtype: torch.dtype
    device: torch.device
    recurrent: RecurrentLayout | None = None
    hidden: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of what is kept of one token."""
        return sum(prod(shape) for shape in self._shapes(1)) * self.dtype.itemsize

    def take(self, rows: int, memory: KvMemory, *, evicts: bool = True) -> KvBuffer:
        """Buffers [layers, 2, heads, rows, size], and for a draft head [2, heads, rows, size] and
        [rows, hidden]; see ``KvMemory.take``."""
        return memory.take(rows * self.row_bytes, partial(self._allocate, rows), evicts=evicts)

    def _shapes(self, rows: int) -> list[tuple[int, ...]]:
        of_head = 2, self.heads, rows, self.size
        return [(self.layers, *of_head), *([of_head, (rows, self.hidden)] if self.hidden else [])]

    def _allocate(self, rows: int) -> list[Tensor]:
        # The buffers are written inside and outside of inference mode.
        with torch.inference_mode(False):
            return [
                torch.empty(shape, dtype=self.dtype, device=self.device)
                for shape in self._shapes(rows)
            ]


def _copy_rows(
    to: Sequence[Tensor], at: int, source: Sequence[Tensor], start: int, count: int
) -> None:
    """Copy so many rows, which are the last axis but one of each buffer."""
    for new, old in zip(to, source, strict=True):
        new.narrow(-2, at, count).copy_(old.narrow(-2, start, count))


class KeyValueCache(Held):
    """A buffer [layers, 2, kv_heads, capacity, head_dim], one row per token; its owner knows which
    are valid.

    transformers' DynamicCache concatenates (copies) all rows at each step and layer; this one
    writes only the new rows. After ``release`` no row may be used. ``recurrent``: what Gated
    DeltaNet layers remember of the same rows. ``hidden`` [capacity, hidden]: for a draft head, the
    rows after the last layer; ``head_rows``: how many rows have the head's own keys and values,
    which are those of one more layer.
    """

    hidden: Tensor

    def __init__(self, layout: CacheLayout, rows: int, memory: KvMemory, nodes: int = 0) -> None:
        """MemoryFull: there is no memory for so many rows.

        nodes: so many are expected in a pass.
        """
        super().__init__(memory)
        self._layout, self.head_rows = layout, 0
        self.recurrent: RecurrentState | None = None
        if layout.recurrent is not None:
            self.recurrent = RecurrentState(layout.recurrent, nodes, memory)
            self._beside.append(self.recurrent)
        try:
            self._take(rows)
        except MemoryFull:
            for each in self._beside:
                each.release()
            raise

    def _take(self, rows: int) -> None:
        """Take another buffer in place of this one."""
        rows = -(-rows // CAPACITY_STEP_ROWS) * CAPACITY_STEP_ROWS
        self._hold(self._layout.take(rows, self._memory))
        self.buffers: list[Tensor] = self._held.data
        layers = [*self.buffers[0]]
        if self._layout.hidden:
            layers.append(self.buffers[1])
            self.hidden = self.buffers[2]
        # Views made once: indexing the buffer per layer and step would cost more than the copy.
        self.keys: list[Tensor] = [layer[0] for layer in layers]  # [kv_heads, capacity, dim]
        self.values: list[Tensor] = [layer[1] for layer in layers]

    @property
    def capacity(self) -> int:
        """The number of rows allocated."""
        return self.buffers[0].shape[-2]

    def reserve(self, rows: int, valid: int, certain: int = 0, prompt: int = 0) -> None:
        """Prepare a pass: grow to at least `rows` rows in all, keeping the first `valid`; raises
        MemoryFull.

        certain, prompt: see ``RecurrentState.reserve``.
        """
        self.grow(rows, valid)
        if self.recurrent is not None:
            self.recurrent.reserve(rows, valid, certain, prompt)

    def grow(self, rows: int, valid: int) -> None:
        """Grow to at least `rows` rows, by a quarter at least so that not every step copies."""
        if rows > self.capacity:
            give, old = self._give, self.buffers
            self._take(max(rows, self.capacity * 5 // 4))
            _copy_rows(self.buffers, 0, old, 0, valid)
            give()

    def gather(self, start: int, rows: Sequence[int]) -> None:
        """Move `rows` (absolute indices, in order) to start, start + 1, ..., to commit a path of a
        tree."""
        if list(rows) != list(range(start, start + len(rows))):
            index = torch.tensor(rows, device=self._layout.device)
            for buffer in self.buffers:
                buffer.narrow(-2, start, len(rows)).copy_(buffer.index_select(-2, index))
            if self.recurrent is not None:
                self.recurrent.gather(start, index)

    def returns_to(self, row: int) -> bool:
        """Whether a pass can continue after ``row`` of the valid rows."""
        return self.recurrent is None or row >= self.recurrent.base

    def settle(self) -> None:
        """A pass over rows of this cache is done, and has not been abandoned."""
        if self.recurrent is not None:
            self.recurrent.settle()

    def rows(self, start: int, end: int) -> Tensor:
        """A view [layers, 2, kv_heads, end - start, head_dim] of these rows."""
        return self.buffers[0][:, :, :, start:end]


SPARE_ROWS = 128  # extra rows that a new cache has beyond prompt and answer
PREFIX_BYTES = 256 * MB  # limit of kept prefixes if memory is unlimited
PREFIX_ONE_IN = 4  # otherwise kept prefixes may use one byte in so many
PREFIX_KEPT_S = 600.0  # without use, after which a kept prefix is dropped when others are kept
REUSED_ONE_IN = 8  # one row in so many must be known; fewer are not worth a separate pass


def worth_pasting(known: int, rows: int) -> bool:
    """Whether so many known rows are worth a pass over the others of a prompt alone."""
    return known * REUSED_ONE_IN >= rows


@dataclass(frozen=True, eq=False)
class PromptPart:
    """The rows ``start`` to ``end`` of a prompt; ``key`` is a hash of all rows before ``end``.

    ``before``: the key of the part before. ``text``: the part's ids [end - start], whose beginning
    can be reused alone; None for a picture. ``owner``: who alone may reuse it; empty: anyone.
    """

    key: bytes
    start: int
    end: int
    before: bytes = b""
    text: NDArray[np.int64] | None = None
    owner: str = ""


def prompt_parts(
    ids: np.ndarray,
    spans: Sequence[tuple[int, int]],
    names: Sequence[bytes],
    owner: str = "",
    common: int = 0,
) -> list[PromptPart]:
    """Split a prompt into what is common to all, its pictures, and the texts before, between and
    after them.

    ids: int64 [n]; the first ``common`` are nobody's. spans: start and end of each picture's rows.
    names: identify the owner's pictures.
    """
    parts: list[PromptPart] = []
    key, own = b"", owner.encode()
    edges = [0, common, *chain.from_iterable(spans), len(ids)]
    seen = [b"", own, *chain.from_iterable((name, own) for name in names)]
    for (start, end), name in zip(pairwise(edges), seen, strict=True):
        if start < end:
            tokens = np.asarray(ids[start:end], "<i8")
            before = key
            key = hashlib.blake2b(before + name + tokens.tobytes(), digest_size=16).digest()
            text = tokens if name in (b"", own) else None
            whose = owner if end > common else ""
            parts.append(PromptPart(key, start, end, before, text, whose))
    return parts


class _Kept:
    """The kept rows of one part of a prompt; for Gated DeltaNet layers the state after them, if it
    was known.

    head_rows: how many, from the first, have a draft head's keys and values. The last one reads the
    token after it, of the part with the key ``next``.
    """

    pinned = False
    head_rows, next = 0, b""

    def __init__(self, store: PrefixStore, part: PromptPart, buffer: KvBuffer) -> None:
        self._store, self.part, self.buffer = store, part, buffer
        self.state: KvBuffer | None = None
        self.used = 0.0  # s
        self.row: NDArray[np.float32] | None = None  # logits [V] after it, where it ends a prompt

    @property
    def size(self) -> int:
        """Bytes of the kept rows, and of the state and the logits after them."""
        return sum(each.size for each in self.buffers) + (
            0 if self.row is None else self.row.nbytes
        )

    @property
    def buffers(self) -> list[KvBuffer]:
        """Those of the memory."""
        return [self.buffer] if self.state is None else [self.buffer, self.state]

    def evict(self) -> bool:
        self._store.drop(self.part.key)
        return True


class PrefixStore:
    """Caches prompt prefixes by key, for so long as they are used.

    Where memory is short, the owner who has most of it gives the part that it has used least
    recently: no robot's missions take the place of another's.
    """

    def __init__(self, layout: CacheLayout, memory: KvMemory) -> None:
        self._layout, self._memory = layout, memory
        self._kept: dict[bytes, _Kept] = {}  # least recently used first

    def paste(
        self, cache: KeyValueCache, prompt: Sequence[PromptPart], vocabulary: int
    ) -> tuple[int, NDArray[np.float32] | None]:
        """Copy the known prefix of this prompt into the cache. Returns the number of rows copied,
        and the logits [vocabulary] after the whole prompt if they are known.

        If they are not, the last row is not copied, so that a pass over it computes them.
        """
        found = list(takewhile(lambda part: part.key in self._kept, prompt))
        row = self._kept[prompt[-1].key].row if len(found) == len(prompt) else None
        if row is not None and len(row) != vocabulary:
            row = None
        last = prompt[-1].end - (row is None)
        count = min(found[-1].end, last) if found else 0
        sources = [(part, part) for part in found]
        if len(found) < len(prompt) and (begun := self._begun_as(prompt[len(found)])) is not None:
            sources.append((prompt[len(found)], begun[0]))
            count = min(prompt[len(found)].start + begun[1], last)
        if cache.recurrent is not None:  # it goes on after a state alone
            while sources and (self._state(sources) is None or count < sources[-1][1].end):
                sources.pop()
                count = sources[-1][1].end if sources else 0
        if not worth_pasting(count, prompt[-1].end):
            return 0, None
        with torch.inference_mode():
            for part, source in sources:
                end = min(part.end, count)
                kept = self._kept[source.key].buffer.data
                _copy_rows(cache.buffers, part.start, kept, 0, end - part.start)
        if cache.recurrent is not None and (state := self._state(sources)) is not None:
            cache.recurrent.resume(state, count)
        cache.head_rows = self._head_rows(sources, count)
        self._touch([source for _, source in sources])
        self._memory.prefix_hits += 1
        self._memory.prefix_rows += count
        return count, row

    def _head_rows(self, sources: Sequence[tuple[PromptPart, PromptPart]], count: int) -> int:
        """How many of so many rows of these sources have a draft head's keys and values."""
        after = [source.key for _, source in sources[1:]]
        for (part, source), key in zip(sources, [*after, None], strict=True):
            kept = self._kept[source.key]
            if kept.head_rows < part.end - part.start or kept.next != key:
                return min(part.start + kept.head_rows, part.end - 1, count - 1)
        return 0

    def keep_head(self, cache: KeyValueCache, prompt: Sequence[PromptPart]) -> None:
        """Store a draft head's keys and values with the kept parts of this prompt, as far as the
        cache has them."""
        for place, part in enumerate(prompt):
            kept, rows = self._kept.get(part.key), min(cache.head_rows, part.end) - part.start
            if kept is None or rows < 1:
                return
            is_whole = part.end <= cache.head_rows and place + 1 < len(prompt)
            after = prompt[place + 1].key if is_whole else b""
            if rows > kept.head_rows or after not in (b"", kept.next):
                known = min(kept.head_rows, rows - 1)
                to, source = kept.buffer.data[1:2], cache.buffers[1:2]
                with torch.inference_mode():
                    _copy_rows(to, known, source, part.start + known, rows - known)
                kept.head_rows, kept.next = rows, after

    def _state(self, sources: Sequence[tuple[PromptPart, PromptPart]]) -> KvBuffer | None:
        """The state after the last of these sources, if one is kept."""
        return self._kept[sources[-1][1].key].state if sources else None

    def keep(
        self, cache: KeyValueCache, prompt: Sequence[PromptPart], row: NDArray[np.float32] | None
    ) -> None:
        """Store the parts of this prompt from the cache, as far as memory allows.

        row: the logits [V] after the prompt, if they are known.
        """
        while (
            self._kept and next(iter(self._kept.values())).used < time.monotonic() - PREFIX_KEPT_S
        ):
            self.drop(next(iter(self._kept)))
        kept: list[PromptPart] = []
        for part in prompt:
            if part.key not in self._kept:
                count = part.end - part.start
                take = partial(self._layout.take, count, self._memory, evicts=False)
                buffer = self._take(count * self._layout.row_bytes, take, kept)
                if buffer is None:
                    break
                with torch.inference_mode():
                    _copy_rows(buffer.data, 0, cache.buffers, part.start, count)
                begun = self._begun_as(part)
                if begun is not None and begun[1] == begun[0].end - begun[0].start:
                    self.drop(begun[0].key)  # this one begins with all of it
                self._kept[part.key] = _Kept(self, part, buffer)
                self._memory.hold(buffer, self._kept[part.key])
            kept.append(part)
        self.keep_head(cache, kept)
        self._touch(kept)
        if len(kept) < len(prompt):
            return
        last = self._kept[kept[-1].key]
        if row is not None:
            # A copy, which does not keep the logits of the whole pass alive.
            last.row = row.copy()
        if cache.recurrent is not None and last.state is None and cache.returns_to(last.part.end):
            take = partial(cache.recurrent.snapshot, last.part.end)
            last.state = self._take(cache.recurrent.layout.state_bytes, take, kept)
            if last.state is not None:
                self._memory.hold(last.state, last)

    def _begun_as(self, part: PromptPart) -> tuple[PromptPart, int] | None:
        """The kept text at the same place that shares most rows with this text, and how many; None:
        there is none.

        A kept answer and the next prompt that contains it begin alike.
        """
        best: tuple[PromptPart, int] | None = None
        if part.text is None:
            return best
        for kept in self._kept.values():
            other = kept.part
            alike = (other.before, other.start, other.owner) == (
                part.before,
                part.start,
                part.owner,
            )
            if alike and other.text is not None:
                common = common_prefix(part.text.tolist(), other.text.tolist())
                if common > (0 if best is None else best[1]):
                    best = other, common
        return best

    def drop(self, key: bytes) -> None:
        """Forget a part and give its memory back."""
        for buffer in self._kept.pop(key).buffers:
            self._memory.give(buffer)

    def _take(
        self, size: int, take: Callable[[], KvBuffer], beside: Sequence[PromptPart]
    ) -> KvBuffer | None:
        """A buffer of ``size`` bytes for these parts, evicting older ones; None if there is no
        memory.

        No session is evicted for a prefix that may never be used.
        """
        limit = self._memory.limit
        most = PREFIX_BYTES if limit is None else limit // PREFIX_ONE_IN
        needed = {part.key for part in beside}
        older = [key for key in self._kept if key not in needed]
        while True:
            used = sum(kept.size for kept in self._kept.values())
            if used + size <= most:
                with suppress(MemoryFull):
                    return take()
            if not older:
                return None
            held: Counter[str] = Counter()
            for kept in self._kept.values():
                held[kept.part.owner] += kept.size
            least = min(older, key=lambda key: -held[self._kept[key].part.owner])
            older.remove(least)
            self.drop(least)

    def _touch(self, parts: Sequence[PromptPart]) -> None:
        """Mark these parts as used; the first, the prefix of the others, is evicted last."""
        for part in reversed(parts):
            self._kept[part.key] = kept = self._kept.pop(part.key)
            kept.used = time.monotonic()
            for buffer in kept.buffers:
                self._memory.touch(buffer)
