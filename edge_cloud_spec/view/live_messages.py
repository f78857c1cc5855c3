"""The messages of the running graph, by a node that only listens."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from rclpy.serialization import deserialize_message

from ..nodes.runtime.node_thread import NodeThread
from ..nodes.topics import TOPICS as GRAPH
from ..observe.topic_bag import (
    ALL,
    COMPRESSED_CAMERA,
    RAW_CAMERA,
    subscribe,
    subscribe_raw_camera,
)
from .bag_messages import Timed
from .entities import TOPICS


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


WAITING = 20_000  # messages, some minutes' worth; most have less than 1 kB


class LiveMessages:
    """A context manager. Its thread only receives; who calls ``take`` reads them in their own."""

    def __init__(self, namespace: str = "") -> None:
        self.namespace = "/" + namespace.strip("/")
        self.domain = int(os.environ.get("ROS_DOMAIN_ID") or 0)
        self.backlog = Backlog(WAITING, frozenset({COMPRESSED_CAMERA, RAW_CAMERA}))
        self._begun = time.monotonic()

    def __enter__(self) -> LiveMessages:
        self._thread = NodeThread("viewer", self.namespace)
        subscribe(self._thread.node, self._receive, sorted(TOPICS & GRAPH.keys()))
        subscribe_raw_camera(self._thread.node, self._receive)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def _receive(self, topic: str, cdr: bytes, _: int) -> None:
        self.backlog.put(self.now, topic, cdr)

    def take(self) -> Iterator[Timed]:
        """What came and was not taken yet: (seconds since the start, topic, message)."""
        for now, topic, cdr in self.backlog.take():
            yield now, topic, deserialize_message(cdr, ALL[topic][0])
