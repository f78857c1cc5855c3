"""What one thread has received and another has not yet drawn."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from .bag_messages import Timed


class Backlog:
    """``put`` by the thread that receives, ``take`` by the one that draws; in order, and bounded.

    Of a topic of ``pictures`` the newest message waits alone: ``left_out`` counts the ones before
    it. Of all others each waits; those that come while ``size`` do are counted in ``missed``.
    """

    def __init__(self, size: int, pictures: frozenset[str] = frozenset()) -> None:
        self.received = self.missed = self.left_out = 0
        self._size, self._pictures = size, pictures
        self._waiting: dict[Any, Timed] = {}  # by their number, pictures by their topic
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def put(self, now: float, topic: str, message: Any) -> None:
        """A message of ``topic``, received at ``now`` (s)."""
        with self._lock:
            self.received += 1
            if topic in self._pictures:
                self.left_out += self._waiting.pop(topic, None) is not None
                self._waiting[topic] = (now, topic, message)
            elif len(self._waiting) < self._size:
                self._waiting[next(self._numbers)] = (now, topic, message)
            else:
                self.missed += 1

    def take(self) -> list[Timed]:
        """All that waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        return list(waiting.values())
