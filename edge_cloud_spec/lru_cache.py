"""A bounded dictionary."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(OrderedDict[Key, Value]):
    """The ``size`` values set or made last, by key; plain reading does not refresh a value."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made by ``make`` if it is not cached; refreshes it."""
        value = self[key] = self[key] if key in self else make()
        return value
