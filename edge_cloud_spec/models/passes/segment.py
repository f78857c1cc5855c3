"""The rows of one session in a pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..memory.cache import KeyValueCache


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` rows of one session in a pass; they are written to `cache` from row `start` on.

    mask: additive float [count, start + count], or None: causal from row 0, or a single row.
    parents: of all nodes of a tree, those of earlier passes too (see ``NodeTree``); the last of
    them are the last rows of the segment. None: the rows are a chain.
    """

    cache: KeyValueCache
    start: int
    count: int
    mask: Tensor | None = None
    parents: tuple[int, ...] | None = None
