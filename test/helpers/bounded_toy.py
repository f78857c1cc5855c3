"""Toy models whose sessions hold real memory for keys and values, and lose it as real ones do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from edge_cloud_spec.models.cache import SPARE_ROWS, CacheLayout, KeyValueCache
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec_lab.harness.scripted.model import ScriptedPrefill, ScriptedSession
from edge_cloud_spec_lab.harness.toy import ToyVlm

LAYOUT = CacheLayout(1, 1, 1, torch.float32, torch.device("cpu"))
PROMPT_ROWS = 300
SESSION_BYTES = LAYOUT.row_bytes * 512  # of a prompt and an answer of some 80 tokens


class BoundedSession(ScriptedSession):
    """Its rows are where a real session's are; a pass over rows that are lost is an error."""

    def __init__(self, model: Any, memory: KvMemory, state: Any) -> None:
        super().__init__(model, state)
        self._memory = memory
        self.cache: KeyValueCache | None = None

    @property
    def pinned(self) -> bool:
        return self.waits

    def evict(self) -> bool:
        if self.cache is None:
            return False
        self.cache.release()
        self.cache, self._computed = None, 0
        return True

    def restore(self) -> Any:
        tokens = self.tokens
        rows = PROMPT_ROWS + len(tokens)
        cache = KeyValueCache(LAYOUT, rows + SPARE_ROWS, self._memory)

        def opened() -> BoundedSession:
            self._adopt(cache, tokens)
            return self

        return ScriptedPrefill(opened, rows)

    def _adopt(self, cache: KeyValueCache, tokens: tuple[int, ...]) -> None:
        assert tokens == self.tokens[: len(tokens)] and self.cache is None
        self.cache, self._computed = cache, len(tokens)
        cache.keep_for(self)

    def score(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> Any:
        assert self.cache is not None, "the scheduler runs only what is prepared"
        valid = PROMPT_ROWS + self._computed
        self.cache.reserve(PROMPT_ROWS + len(self._tokens) + len(tokens), valid)
        self.cache.touch()
        return super().score(tokens, parents)


class BoundedToy(ToyVlm):
    """Its prompts have 300 rows."""

    def use_memory(self, memory: KvMemory) -> None:
        self.memory = memory

    def prefill(self, prompt: Any) -> Any:
        return BoundedSession(self, self.memory, self.start(prompt)).restore()
