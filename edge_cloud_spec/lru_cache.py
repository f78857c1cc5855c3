"""A bounded dictionary."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(OrderedDict[Key, Value]):
    """The ``size`` values set or made last, by key; reading a value does not keep it longer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of ``key``, from ``make`` where it is not cached; now the one used last."""
        value = self[key] = self[key] if key in self else make()
        return value
