"""Toy models whose sessions hold real memory for keys and values, and lose it as real ones do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from edge_cloud_spec.lab.harness.scripted.model import ScriptedPrefill, ScriptedSession
from edge_cloud_spec.lab.harness.toy import ToyVlm
from edge_cloud_spec.models.cache import (
    SPARE,
    CacheLayout,
    CacheOwner,
    KeyValueCache,
    Refilled,
)
from edge_cloud_spec.models.kv_memory import KvMemory

LAYOUT = CacheLayout(1, 1, 1, torch.float32, torch.device("cpu"))
PROMPT_ROWS = 300
SESSION_BYTES = LAYOUT.row_bytes * 512  # of a prompt and an answer of some 80 tokens


class BoundedSession(CacheOwner, ScriptedSession):
    """Its rows are where a real session's are; a pass over rows that are lost is an error."""

    def __init__(self, model: Any, cache: KeyValueCache, memory: KvMemory, state: Any = ()) -> None:
        ScriptedSession.__init__(self, model, state)
        CacheOwner.__init__(self, cache, partial(refill, memory))

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens)

    def _forget_rows(self) -> None:
        self._computed = 0

    def _adopt(self, cache: KeyValueCache, tokens: list[int], row: Any) -> None:
        assert tuple(tokens) == self.tokens[: len(tokens)]
        self._computed = len(tokens)
        self._own(cache)

    def score(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> Any:
        assert self._cache is not None, "the scheduler runs only what is prepared"
        valid = PROMPT_ROWS + self._computed
        self._cache.reserve(PROMPT_ROWS + len(self._tokens) + len(tokens), valid)
        self._cache.touch()
        return super().score(tokens, parents)


def refill(memory: KvMemory, tokens: Sequence[int], spare: int, on_filled: Refilled) -> Any:
    rows = PROMPT_ROWS + len(tokens)
    cache = KeyValueCache(LAYOUT, rows + spare, memory)
    return ScriptedPrefill(lambda: on_filled(cache, 0, torch.empty(0).numpy()), rows)


def prefill(model: Any, memory: KvMemory, state: Any = ()) -> Any:
    """A session of 300 rows, in steps."""
    return refill(memory, (), SPARE, lambda cache, *_: BoundedSession(model, cache, memory, state))


class BoundedToy(ToyVlm):
    """Its prompts have 300 rows."""

    def use_memory(self, memory: KvMemory) -> None:
        self.memory = memory

    def prefill(self, prompt: Any) -> Any:
        return prefill(self, self.memory)
