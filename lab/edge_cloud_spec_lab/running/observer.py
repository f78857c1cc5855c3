"""A ROS node that observes a run: it takes all of its topics into the run log and a bag."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from rclpy.serialization import deserialize_message
from std_msgs.msg import String

from edge_cloud_spec.nodes.runtime.node_thread import NodeThread
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec.observe.topic_bag import OBSERVED_QOS, TopicBag, subscribe

from .run_log import RunEvent, RunLog

T = TypeVar("T")

BAG_ONLY = {
    "camera/camera_info",
    "odom",
    "scan",
    "cmd_vel",
    "pulse",
    "markers",
    "/diagnostics",
    "prediction",
}
"""Topics that the run log does not use."""


class Observer:
    """Spins in its own thread; a context manager. ``bag`` None: no bag is written. It subscribes to
    the graph's topics in ``namespace``.

    ``run_log`` grows under ``lock``; events to show at once are put into ``events``.
    """

    def __init__(self, domain: int, bag: Path | None, namespace: str = "") -> None:
        self.run_log, self.lock = RunLog(), threading.Lock()
        self.events: SimpleQueue[RunEvent] = SimpleQueue()
        self._thread = NodeThread("observer", namespace, domain)
        self.node = self._thread.node
        self._bag = TopicBag(self.node, bag) if bag is not None else None
        self._zero = time.monotonic()
        subscribe(self.node, self._take)
        self._instruction = self.node.create_publisher(String, "instruction", OBSERVED_QOS)
        self._thread.start()

    @property
    def problem(self) -> str:
        """Why the bag ended before the run; empty if it did not."""
        return self._bag.problem if self._bag is not None else ""

    @property
    def now(self) -> float:
        """Seconds since the instruction was published (before: since the start)."""
        return time.monotonic() - self._zero

    def publish_instruction(self, instruction: str) -> None:
        """Publish the instruction; it is time 0 of the run log."""
        with self.lock:
            self._zero, before = time.monotonic(), self._zero
            run_log, shift = self.run_log, self._zero - before
            run_log.outcomes = [(at - shift, outcome) for at, outcome in run_log.outcomes[-1:]]
            run_log.frames = run_log.frames[:0]
            run_log.statuses = run_log.statuses[:0]
        self._instruction.publish(String(data=instruction))

    def subscribers(self, topic: str) -> set[str]:
        """The names of the nodes that subscribe to ``topic``."""
        found = self.node.get_subscriptions_info_by_topic(self.node.resolve_topic_name(topic))
        return {info.node_name for info in found}

    def read(self, query: Callable[[RunLog], T]) -> T:
        """Evaluate a query on the run log under its lock."""
        with self.lock:
            return query(self.run_log)

    def _take(self, topic: str, cdr: bytes, stamp: int) -> None:
        with self.lock:
            if self._bag is not None:
                self._bag.take(topic, cdr, stamp)
            if topic not in BAG_ONLY:
                message = deserialize_message(cdr, TOPICS[topic][0])
                now = self.now - (time.time_ns() - stamp) / 1e9
                for event in self.run_log.on_message(topic, message, now):
                    self.events.put(event)

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()
        with self.lock:
            if self._bag is not None:
                self._bag.close()
