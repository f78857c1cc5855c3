"""The messages of the running graph, by a node that only listens."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from queue import Empty, Queue
from typing import Any

from rclpy.subscription import Subscription
from sensor_msgs.msg import Image

from ..nodes.runtime.node_thread import NodeThread
from ..nodes.runtime.qos import SENSOR_DATA
from ..nodes.topics import TOPICS as GRAPH
from .bag_messages import Timed
from .entities import TOPICS

COMPRESSED, RAW = "camera/image_raw/compressed", "camera/image_raw"
WAITING = 2000  # messages; further ones are dropped and counted


class LiveMessages:
    """A context manager; ``dropped`` counts what came faster than it was taken."""

    def __init__(self, namespace: str = "") -> None:
        self.namespace = "/" + namespace.strip("/")
        self.domain = int(os.environ.get("ROS_DOMAIN_ID") or 0)
        self.dropped = self.received = 0
        self._waiting: Queue[Timed] = Queue(WAITING)
        self._begun = time.monotonic()

    def __enter__(self) -> LiveMessages:
        self._thread = NodeThread("viewer", self.namespace)
        self._node = self._thread.node
        for topic in sorted(TOPICS & GRAPH.keys()):
            kind, qos = GRAPH[topic]
            self._node.create_subscription(kind, topic, self._listener(topic), qos)
        self._raw: Subscription | None = None
        self._node.create_timer(1.0, self._look_for_camera)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    def _listener(self, topic: str) -> Callable[[Any], None]:
        def listen(message: Any) -> None:
            self.received += 1
            if self._waiting.full():
                self.dropped += 1
                return
            self._waiting.put((time.monotonic() - self._begun, topic, message))

        return listen

    def _look_for_camera(self) -> None:
        """Raw pictures are large, and subscribed to only where there are no compressed ones."""
        there = [name for name in (RAW, COMPRESSED) if self._node.count_publishers(name)]
        if self._raw is None and there == [RAW]:
            self._raw = self._node.create_subscription(Image, RAW, self._listener(RAW), SENSOR_DATA)

    def take(self, seconds: float) -> Iterator[Timed]:
        """What comes within ``seconds``: (seconds since the start, topic, message)."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                yield self._waiting.get(timeout=left)

    def waiting(self) -> Iterator[Timed]:
        """What came and was not taken yet."""
        with contextlib.suppress(Empty):
            while True:
                yield self._waiting.get_nowait()
