"""A ROS node that observes a run: all of its topics, into the run log and the bag."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription
from std_msgs.msg import String

from ..nodes.runtime.qos import LATCHED, SENSOR_DATA
from ..nodes.topics import TOPICS
from .bag_writer import BagWriter
from .run_event import RunEvent
from .run_log import RunLog

T = TypeVar("T")

RELIABLE = QoSProfile(depth=200)
"""For publishing, and for all that is observed but what is best effort or latched."""

BAG_ONLY = {"camera/camera_info", "odom", "cmd_vel", "markers", "/diagnostics", "prediction"}
"""Topics that the run log does not use."""

# Whether rclpy passes on when a message was sent; Humble's does not.
HAS_SOURCE_STAMP = hasattr(Subscription, "CallbackType")
MAX_DELAY = 60 * 10**9  # ns; an older message, or a future one, counts as sent on arrival


class Observer:
    """Spins in a thread of its own; a context manager. ``bag`` None: no bag is written.

    ``run_log`` grows under ``lock``; what is worth showing at once is put into ``events``.
    """

    def __init__(self, domain: int, bag: Path | None) -> None:
        self.run_log, self.lock = RunLog(), threading.Lock()
        self.events: SimpleQueue[RunEvent] = SimpleQueue()
        self._context = Context()
        rclpy.init(
            args=[],
            context=self._context,
            domain_id=domain,
            signal_handler_options=SignalHandlerOptions.NO,
        )
        self.node = Node("observer", context=self._context)
        kinds = {topic: _name(kind) for topic, (kind, _) in TOPICS.items()}
        self._bag = BagWriter(bag, kinds) if bag is not None else None
        self._zero = time.monotonic()
        for topic, (kind, qos) in TOPICS.items():
            qos = qos if qos in (SENSOR_DATA, LATCHED) else RELIABLE
            self.node.create_subscription(kind, topic, self._callback(topic, kind), qos, raw=True)
        self._instruction = self.node.create_publisher(String, "instruction", RELIABLE)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name="observer", daemon=True)
        self._thread.start()

    @property
    def now(self) -> float:
        """Seconds since the instruction was published (before: since the start)."""
        return time.monotonic() - self._zero

    def publish_instruction(self, instruction: str) -> None:
        """Publish the instruction; the run log's time starts here."""
        with self.lock:
            self._zero, before = time.monotonic(), self._zero
            run_log, shift = self.run_log, self._zero - before
            run_log.outcomes = [(at - shift, outcome) for at, outcome in run_log.outcomes[-1:]]
            run_log.frames = run_log.frames[:0]
            run_log.statuses = run_log.statuses[:0]
        self._instruction.publish(String(data=instruction))

    def subscribers(self, topic: str) -> set[str]:
        """Names of the nodes that subscribe to ``topic``."""
        return {info.node_name for info in self.node.get_subscriptions_info_by_topic(f"/{topic}")}

    def read(self, query: Callable[[RunLog], T]) -> T:
        """The query's result; the run log does not change while it runs."""
        with self.lock:
            return query(self.run_log)

    def _callback(self, topic: str, kind: type[Any]) -> Callable[..., None]:
        logged = topic not in BAG_ONLY

        def take(cdr: bytes, source: int) -> None:
            """``source``: when it was published, ns of the machine's clock; 0 where unknown."""
            received = time.time_ns()
            stamp = source if 0 < received - source < MAX_DELAY else received
            with self.lock:
                if self._bag is not None:
                    self._bag.write(topic, stamp, cdr)
                if logged:
                    message = deserialize_message(cdr, kind)
                    now = self.now - (received - stamp) / 1e9
                    for event in self.run_log.on_message(topic, message, now):
                        self.events.put(event)

        def without_info(cdr: bytes) -> None:
            take(cdr, 0)

        def with_info(cdr: bytes, info: Any) -> None:
            take(cdr, info["source_timestamp"])

        return with_info if HAS_SOURCE_STAMP else without_info

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()

    def close(self) -> None:
        """Stop spinning and close the bag."""
        self._executor.shutdown()
        self._thread.join(3.0)
        with self.lock:
            if self._bag is not None:
                self._bag.close()
                self._bag = None
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name(kind: type[Any]) -> str:
    package, _, _ = kind.__module__.partition(".")
    return f"{package}/msg/{kind.__name__}"
