"""Writes a graph's topics to a bag: serialized messages as they arrive, by their full names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from sensor_msgs.msg import Image

from ..errors import UserError
from ..nodes.drafting.camera import COMPRESSED, RAW
from ..nodes.runtime.qos import LATCHED, SENSOR_DATA, STEADY
from ..nodes.topics import TOPICS
from .bag_writer import BagWriter, types

OBSERVED_QOS = QoSProfile(depth=200)
"""For all that is observed but what is best effort or latched."""

STATES_QOS = QoSProfile(depth=200, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""For latched topics: also the states that follow each other before they are read."""

CAMERA_LOOK_S = 1.0  # between two looks for a camera that is raw only

# Whether rclpy passes on when a message was sent; Humble's does not.
HAS_SOURCE_STAMP = hasattr(Subscription, "CallbackType")
MAX_DELAY = 60 * 10**9  # ns; an older message, or a future one, counts as sent on arrival
_FOREVER = QosTime(9223372036, 854775807)  # s, ns: as rosbag2 writes it

Types = Mapping[str, tuple[type[Any], QoSProfile]]
ALL: Types = {**TOPICS, RAW: (Image, SENSOR_DATA)}
Take = Callable[[str, bytes, int], None]  # topic, CDR, when it was sent (ns)


def subscribe(node: Node, take: Take, topics: Iterable[str] = tuple(TOPICS)) -> None:
    """Call ``take`` with each message of these topics."""
    for topic in topics:
        kind, qos = ALL[topic]
        wanted = (
            SENSOR_DATA if qos is SENSOR_DATA else STATES_QOS if qos is LATCHED else OBSERVED_QOS
        )
        node.create_subscription(kind, topic, timed(partial(take, topic)), wanted, raw=True)


def subscribe_raw_camera(node: Node, take: Take) -> None:
    """Subscribe to raw pictures, thirty times as large, if there are no compressed ones.

    It checks the graph repeatedly until it finds raw pictures only.
    """

    def look() -> None:
        raw, compressed = (
            node.count_publishers(node.resolve_topic_name(topic)) for topic in (RAW, COMPRESSED)
        )
        if raw and not compressed:
            timer.cancel()
            subscribe(node, take, (RAW,))

    timer = node.create_timer(CAMERA_LOOK_S, look, clock=STEADY)


def timed(take: Callable[[Any, int], object]) -> Callable[..., None]:
    """A callback of a subscription, which passes a message with when it was sent (ns), or has
    arrived if that is unknown."""

    def without_info(message: Any) -> None:
        take(message, time.time_ns())

    def with_info(message: Any, info: Any) -> None:
        sent, received = info["source_timestamp"], time.time_ns()
        take(message, sent if 0 < received - sent < MAX_DELAY else received)

    return with_info if HAS_SOURCE_STAMP else without_info


class TopicBag(BagWriter):
    """The bag of a node that observes all topics. Raises UserError if it cannot be created."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._names = {topic: node.resolve_topic_name(topic) for topic in ALL}
        super().__init__(
            folder,
            {self._names[topic]: _name(kind) for topic, (kind, _) in ALL.items()},
            {self._names[topic]: _offered(qos) for topic, (_, qos) in ALL.items()},
        )

    def take(self, topic: str, cdr: bytes, stamp: int) -> None:
        """Write one message of ``topic``, sent at ``stamp`` (ns)."""
        self.write(self._names[topic], stamp, cdr)


def _name(kind: type[Any]) -> str:
    package, _, _ = kind.__module__.partition(".")
    name = f"{package}/msg/{kind.__name__}"
    described = [field for field, _ in types().fielddefs[name][1]]
    if list(kind.get_fields_and_field_types()) != described:
        raise UserError(f"the installed {name} is another than its .msg file: build again")
    return name


def _offered(qos: QoSProfile) -> Qos:
    """The QoS recorded for a topic, which `ros2 bag play` uses."""
    latched = qos.durability == DurabilityPolicy.TRANSIENT_LOCAL
    best_effort = qos.reliability == ReliabilityPolicy.BEST_EFFORT
    return Qos(
        QosHistory.KEEP_LAST,
        qos.depth,
        QosReliability.BEST_EFFORT if best_effort else QosReliability.RELIABLE,
        QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        _FOREVER,
        _FOREVER,
        QosLiveliness.AUTOMATIC,
        _FOREVER,
        False,
    )
