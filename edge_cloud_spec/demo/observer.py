"""A listening ROS node in the demo's process: every topic of a run, to the story and the bag."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo, CompressedImage
from std_msgs.msg import Bool, String
from visualization_msgs.msg import MarkerArray

from edge_cloud_spec.msg import (
    DecodeRequest,
    DecodeStats,
    Draft,
    NavCommand,
    Prediction,
    Verdict,
    VerifiedTokens,
)

from ..nodes.qos import LATCHED, SENSOR_DATA
from .bag import BagWriter
from .run_log import News, RunLog

T = TypeVar("T")

RELIABLE = QoSProfile(depth=200)

TOPICS: dict[str, tuple[type[Any], QoSProfile]] = {
    "camera/image_raw/compressed": (CompressedImage, SENSOR_DATA),
    "camera/camera_info": (CameraInfo, SENSOR_DATA),
    "odom": (Odometry, SENSOR_DATA),
    "cmd_vel": (Twist, RELIABLE),
    "e_stop": (Bool, RELIABLE),
    "instruction": (String, RELIABLE),
    "instruction_status": (String, LATCHED),
    "decode_request": (DecodeRequest, RELIABLE),
    "draft": (Draft, RELIABLE),
    "prediction": (Prediction, RELIABLE),
    "verdict": (Verdict, RELIABLE),
    "verified_tokens": (VerifiedTokens, RELIABLE),
    "nav_command": (NavCommand, RELIABLE),
    "nav_status": (String, LATCHED),
    "decode_stats": (DecodeStats, RELIABLE),
    "markers": (MarkerArray, RELIABLE),
    "diagnostics": (DiagnosticArray, RELIABLE),
    "sim/outcome": (String, LATCHED),
}
UNTOLD = {"camera/camera_info", "odom", "cmd_vel", "markers", "diagnostics", "prediction"}
"""Topics for the bag only; the story has no use for them."""

KNOWS_WHEN = hasattr(
    Subscription, "CallbackType"
)  # rclpy tells when a message was sent: not Humble
OLDEST = 60 * 10**9  # ns; an older message, or one from the future, counts as sent when it came


class Observer:
    """Listens in a thread of its own; a context. ``bag`` None writes none.

    ``story`` grows under ``lock``; what is worth telling at once comes out of ``news``.
    """

    def __init__(self, domain: int, bag: Path | None) -> None:
        self.story, self.lock = RunLog(), threading.Lock()
        self.news: SimpleQueue[News] = SimpleQueue()
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
            self.node.create_subscription(kind, topic, self._hearer(topic, kind), qos, raw=True)
        self._instruction = self.node.create_publisher(String, "instruction", RELIABLE)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name="observer", daemon=True)
        self._thread.start()

    @property
    def now(self) -> float:
        """Seconds since the instruction was published (before: since the start)."""
        return time.monotonic() - self._zero

    def instruct(self, instruction: str) -> None:
        """Publish the instruction; the story's time begins."""
        with self.lock:
            self._zero, before = time.monotonic(), self._zero
            story, moved = self.story, self._zero - before
            story.outcomes = [(at - moved, outcome) for at, outcome in story.outcomes[-1:]]
            story.frames = story.frames[:0]
            story.statuses = story.statuses[:0]
        self._instruction.publish(String(data=instruction))

    def listeners(self, topic: str) -> set[str]:
        """Names of the nodes that subscribe to ``topic``."""
        return {info.node_name for info in self.node.get_subscriptions_info_by_topic(f"/{topic}")}

    def heard(self, question: Callable[[RunLog], T]) -> T:
        """An answer out of the story, at rest."""
        with self.lock:
            return question(self.story)

    def _hearer(self, topic: str, kind: type[Any]) -> Callable[..., None]:
        told = topic not in UNTOLD

        def hear(cdr: bytes, source: int) -> None:
            """``source``: when it was published, ns of the machine's clock; 0 where unknown."""
            here = time.time_ns()
            stamp = source if 0 < here - source < OLDEST else here
            with self.lock:
                if self._bag is not None:
                    self._bag.write(topic, stamp, cdr)
                if told:
                    message = deserialize_message(cdr, kind)
                    now = self.now - (here - stamp) / 1e9
                    for item in self.story.hear(topic, message, now):
                        self.news.put(item)

        def hear_only(cdr: bytes) -> None:
            hear(cdr, 0)

        def hear_with_info(cdr: bytes, info: Any) -> None:
            hear(cdr, info["source_timestamp"])

        return hear_with_info if KNOWS_WHEN else hear_only

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()

    def close(self) -> None:
        """Stop listening and end the bag."""
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
