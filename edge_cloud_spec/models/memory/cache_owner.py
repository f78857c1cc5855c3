"""Who owns a session's cache can do without it, and has it again at its next use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .cache import KeyValueCache

SPARE = 128  # rows that a new cache has room for, beyond those of the prompt and the answer


class Refill(Protocol):
    """The steps of a ``Prefill``, after which the owner has its cache."""

    def draft(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Score these nodes with the prompt's last rows."""

    def step(self, rows: int) -> bool:
        """Compute so many rows more at most; True: done."""

    @property
    def session(self) -> Any:
        """The owner; ValueError before the last step."""

    def finish(self) -> Any:
        """All steps at once."""


Refilled = Callable[[KeyValueCache, int, NDArray[np.float32]], Any]
# Given the answer's tokens and how many rows more are wanted, it fills a cache and calls the last.
RefillCache = Callable[[Sequence[int], int, Refilled], Refill]


class CacheOwner(ABC):
    """A prefix of a prompt and ``tokens``, and its cache, unless that is evicted."""

    def __init__(self, cache: KeyValueCache, refill: RefillCache) -> None:
        self._refill = refill
        self._in_pass = False
        self.waits = False  # for a pass: the cache is not taken away
        self._own(cache)

    def _own(self, cache: KeyValueCache) -> None:
        self._cache: KeyValueCache | None = cache
        self._spare = SPARE
        cache.keep_for(self)

    @property
    @abstractmethod
    def tokens(self) -> tuple[int, ...]:
        """The prefix after the prompt."""

    @abstractmethod
    def _forget_rows(self) -> None:
        """The cache is gone."""

    @abstractmethod
    def _adopt(self, cache: KeyValueCache, tokens: list[int], row: NDArray[np.float32]) -> None:
        """Continue with a cache of the prompt and these tokens; row: the logits [V] after them."""

    @property
    def resident(self) -> bool:
        """Whether it has its cache."""
        return self._cache is not None

    @property
    def pinned(self) -> bool:
        """See ``KvHolder``."""
        return self._in_pass or self.waits

    def evict(self) -> bool:
        """Give the cache back, and keep tokens and nodes; False during a pass."""
        if self._cache is None or self._in_pass:
            return False
        self._cache.release()
        self._cache = None
        self._forget_rows()
        return True

    def restore(self) -> Refill:
        """The steps after which it has its cache again; MemoryFull: there is no room."""
        tokens = list(self.tokens)

        def adopt(cache: KeyValueCache, delta: int, row: NDArray[np.float32]) -> CacheOwner:
            if self._cache is None:
                self._adopt(cache, tokens, row)
            return self

        return self._refill(tokens, self._spare, adopt)

    def _come_back(self) -> None:
        """Have a cache, with the rows of the nodes."""
        if self._cache is None:
            self.restore().finish()
