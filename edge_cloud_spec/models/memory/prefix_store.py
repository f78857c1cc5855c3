"""Rows that prompts begin with, kept for the next one that begins so, each prefix once.

A prompt has three parts: the text before the picture (with the system text), the picture, and the
text after it. Each part is kept under all that comes before it, so that prompts share as many as
they have in common; the last one with the logits after it, so that a prompt that is asked again
needs no pass. A session copies the rows: attention over two pieces of memory in each pass
costs more than the copy does once (docs/decisions.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import MemoryFull
from .cache import CacheLayout, KeyValueCache
from .kv_memory import MB, KvBuffer, KvMemory

UNBOUND = 256 * MB  # of prefixes, where memory has no bound
SHARE = 4  # else this part of it at most
FEW = 8  # a smaller part of the prompt is not worth a pass that does not begin at row 0


@dataclass(frozen=True)
class PromptPart:
    """The rows from ``start`` to ``end`` of a prompt; ``key`` names all rows up to the end."""

    key: bytes
    start: int
    end: int


class PromptParts:
    """The text before the picture, the picture and the text after it."""

    def __init__(self, ids: np.ndarray, image: np.ndarray, name: bytes) -> None:
        """ids: int64 [n]. image: the indices of the picture's rows, and ``name`` names it."""
        self.rows = len(ids)
        self.parts: list[PromptPart] = []
        first, last = (int(image[0]), int(image[-1])) if len(image) else (len(ids), len(ids))
        key, start = b"", 0
        for end in (first, last + 1, len(ids)):
            if start < end <= len(ids):
                seen = name if end > first else b""
                tokens = np.asarray(ids[start:end], "<i8").tobytes()
                key = hashlib.blake2b(key + seen + tokens, digest_size=16).digest()
                self.parts.append(PromptPart(key, start, end))
                start = end


class _Kept:
    """One part's rows, until the memory is needed."""

    pinned = False

    def __init__(self, store: PrefixStore, key: bytes, buffer: KvBuffer) -> None:
        self._store, self._key, self.buffer = store, key, buffer
        self.row: NDArray[np.float32] | None = None  # logits [V] after it, where it ends a prompt

    @property
    def size(self) -> int:
        """Bytes of its rows and of the logits after them."""
        return self.buffer.size + (0 if self.row is None else self.row.nbytes)

    def evict(self) -> bool:
        self._store.drop(self._key)
        return True


class PrefixStore:
    """Parts of prompts by their keys; those that were not used for longest give way."""

    def __init__(self, layout: CacheLayout, memory: KvMemory) -> None:
        self._layout, self._memory = layout, memory
        self._kept: dict[bytes, _Kept] = {}  # the part used last stands last
        self._bytes = 0

    def __len__(self) -> int:
        """How many parts are kept."""
        return len(self._kept)

    def paste(
        self, cache: KeyValueCache, prompt: PromptParts, vocabulary: int
    ) -> tuple[int, NDArray[np.float32] | None]:
        """Copy the rows that are known of this prompt; how many of the first there are now, and the
        logits [vocabulary] after the last one.

        Where these are not known the last row is not copied: a pass over it gives them.
        """
        found = list(takewhile(lambda part: part.key in self._kept, prompt.parts))
        row = self._kept[prompt.parts[-1].key].row if len(found) == len(prompt.parts) else None
        if row is not None and len(row) != vocabulary:
            row = None
        count = min(found[-1].end, prompt.rows - (row is None)) if found else 0
        if count * FEW < prompt.rows:
            return 0, None
        with torch.inference_mode():
            for part in found:
                end = min(part.end, count)
                kept = self._kept[part.key].buffer.data
                cache.rows(part.start, end).copy_(kept[:, :, :, : end - part.start])
        self._touch(found)
        self._memory.prefix_hits += 1
        self._memory.prefix_rows += count
        return count, row

    def keep(
        self, cache: KeyValueCache, prompt: PromptParts, row: NDArray[np.float32] | None
    ) -> None:
        """Keep the parts of this prompt, whose rows are in the cache, as far as there is room.

        row: the logits [V] after it, if they are known.
        """
        kept: list[PromptPart] = []
        for part in prompt.parts:
            if part.key not in self._kept:
                buffer = self._take(part.end - part.start, [part.key for part in kept])
                if buffer is None:
                    break
                with torch.inference_mode():
                    rows = cache.rows(part.start, part.end)
                    buffer.data[:, :, :, : part.end - part.start].copy_(rows)
                self._kept[part.key] = _Kept(self, part.key, buffer)
                self._bytes += self._kept[part.key].size
                self._memory.hold(buffer, self._kept[part.key])
            kept.append(part)
        self._touch(kept)
        if row is not None and len(kept) == len(prompt.parts):
            last = self._kept[kept[-1].key]
            self._bytes -= last.size
            last.row = row.copy()  # of a pass over one row, not of all of its logits
            self._bytes += last.size

    def drop(self, key: bytes) -> None:
        """Forget a part and give its memory back."""
        kept = self._kept.pop(key)
        self._bytes -= kept.size
        self._memory.give(kept.buffer)

    def _take(self, rows: int, beside: Collection[bytes]) -> KvBuffer | None:
        """Room for another part, in the place of older ones but not of these; None: there is none.

        No session gives way for what may never be asked for.
        """
        limit = self._memory.limit
        most = UNBOUND if limit is None else limit // SHARE
        older = [key for key in self._kept if key not in beside]
        while True:
            if self._bytes + rows * self._layout.row_bytes <= most:
                try:
                    return self._layout.take(rows, self._memory, evicts=False)
                except MemoryFull:
                    pass
            if not older:
                return None
            self.drop(older.pop(0))

    def _touch(self, parts: list[PromptPart]) -> None:
        """These are used now; the first, which the others begin with, is the last to go."""
        for part in reversed(parts):
            self._kept[part.key] = kept = self._kept.pop(part.key)
            self._memory.touch(kept.buffer)
