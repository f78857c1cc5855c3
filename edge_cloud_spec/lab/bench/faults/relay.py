"""A relay between the simulated robot's sensor and the nodes, which a fault can change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rclpy.node import Node
from rclpy.time import Time

from ....nodes.runtime.qos import SENSOR_DATA

Message = TypeVar("Message")
REMEMBERED = 2000  # stamps


class Relay(Generic[Message]):
    """``change`` gives what is published in place of a message; None: nothing.

    ``taken_at`` tells when the message of a stamp was truly taken, whatever the stamp says.
    """

    def __init__(self, node: Node, kind: type, source: str, topic: str) -> None:
        self.change: Callable[[Message], Message | None] | None = None
        self._taken: OrderedDict[int, float] = OrderedDict()
        self._publisher = node.create_publisher(kind, topic, SENSOR_DATA)
        node.create_subscription(kind, source, self._on_message, SENSOR_DATA)

    def taken_at(self, stamp: int) -> float | None:
        """Seconds of the machine's clock; None: no such message was published."""
        return self._taken.get(stamp)

    def _on_message(self, message: Any) -> None:
        taken = _nanoseconds(message) / 1e9
        change = self.change
        changed = message if change is None else change(message)
        if changed is None:
            return
        # The same stamp again is the same message: the first counts.
        self._taken.setdefault(_nanoseconds(changed), taken)
        if len(self._taken) > REMEMBERED:
            self._taken.popitem(last=False)
        self._publisher.publish(changed)


def shifted(seconds: float) -> Callable[[Any], Any]:
    """A clock that is so many seconds ahead (below 0: behind)."""

    def change(message: Any) -> Any:
        stamp = Time(nanoseconds=_nanoseconds(message) + round(seconds * 1e9))
        message.header.stamp = stamp.to_msg()
        return message

    return change


def gone(message: object) -> None:
    """Nothing is published."""


class Frozen:
    """The first message again and again; ``stamps``: under stamps that go on."""

    def __init__(self, stamps: bool) -> None:
        self._stamps = stamps
        self._first: Any = None

    def __call__(self, message: Any) -> Any:
        if self._first is None:
            self._first = message
        if self._stamps:
            self._first.header.stamp = message.header.stamp
        return self._first


def _nanoseconds(message: Any) -> int:
    stamp: int = Time.from_msg(message.header.stamp).nanoseconds
    return stamp


__all__ = ["Frozen", "Relay", "gone", "shifted"]
