"""The bystander: a node that notes what is published, relays the sensors, and is the operator.

Between the simulator and the nodes stand two relays, camera and odometry, which the faults of
sensors and clocks change. It spins in a thread of its own, so that a busy bench delays no message.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.msg import DecodeRequest, DecodeStats, Draft, NavCommand, VerifiedTokens
from edge_cloud_spec.msg import Verdict as VerdictMessage

from ....nodes.runtime.node_thread import NodeThread
from ....nodes.runtime.qos import LATCHED, SENSOR_DATA
from ....observe.topic_bag import HAS_SOURCE_STAMP
from ....wire.codec import decode_client, decode_server
from ....wire.messages import DraftMessage, Opened, Verdict
from ..ros_graph import STANDING
from .judge import (
    Asked,
    BaseCommand,
    BaseMotion,
    Command,
    Event,
    FromCloud,
    FromRobot,
    Instructed,
    PublishedWords,
    Reported,
)

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


MANY = QoSProfile(depth=1000)
CAMERA, ODOMETRY = "camera/image_raw/compressed", "odom"
TRUE = {CAMERA: "true/camera", ODOMETRY: "true/odom"}  # what the simulator publishes
FOREIGN = 0.001  # m/s upward, by which the bench's own Twists are known: no navigator commands it
LINES = ("instruction_status", "nav_status", "link_state")


class Watch:
    """``events`` of the trial under way, and the newest ``lines`` by topic; a context manager."""

    def __init__(self, domain: int) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self.lines: dict[str, str] = {}
        self.last_motion = 0.0  # when the last velocity that moves was published
        self.last_command: Command | None = None
        self.begun: dict[str, float] = {}  # requests, and when each was published
        self._ended: dict[str, set[str]] = {"words": set(), "stats": set()}
        self.excused: set[str] = set()  # open when the drafter was ended
        self._thread = NodeThread("bystander", domain=domain)
        self.node = self._thread.node
        subscribe = self._subscribe
        subscribe(DecodeRequest, "decode_request", MANY, self._on_request)
        subscribe(Draft, "draft", MANY, self._on_draft)
        subscribe(VerdictMessage, "verdict", MANY, self._on_verdict)
        subscribe(VerifiedTokens, "verified_tokens", MANY, self._on_words)
        subscribe(NavCommand, "nav_command", MANY, self._on_command)
        subscribe(Twist, "cmd_vel", MANY, self._on_twist)
        subscribe(DecodeStats, "decode_stats", MANY, self._on_stats)
        subscribe(DiagnosticArray, "/diagnostics", MANY, self._on_diagnostics)
        for topic in LINES:
            subscribe(String, topic, LATCHED, self._line_of(topic))
        subscribe(Odometry, TRUE[ODOMETRY], SENSOR_DATA, self._on_odometry)
        self.camera: Relay[Any] = Relay(self.node, CompressedImage, TRUE[CAMERA], CAMERA)
        self.odometry: Relay[Any] = Relay(self.node, Odometry, TRUE[ODOMETRY], ODOMETRY)
        self._instruction = self.node.create_publisher(String, "instruction", 10)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    @property
    def events(self) -> list[Event]:
        """What was noted since ``forget``."""
        with self._lock:
            return list(self._events)

    def forget(self, before: float) -> None:
        """Drop the events from before this time, but for the operator's."""
        with self._lock:
            self._events = [
                event
                for event in self._events
                if event.at >= before or isinstance(event, Instructed)
            ]

    def note(self, event: Event) -> None:
        """Add an event; from any thread."""
        with self._lock:
            self._events.append(event)

    @property
    def open_requests(self) -> set[str]:
        """Decisions that began and have not ended, in words and in figures."""
        return {r for r in self.begun if not all(r in ended for ended in self._ended.values())}

    @property
    def unaccounted(self) -> set[str]:
        """Those of them that did not end with their drafter."""
        return self.open_requests - self.excused

    def excuse(self) -> None:
        """The drafter was ended: what it was deciding ends with it."""
        self.excused |= self.open_requests

    def instruct(self, text: str) -> None:
        """Publish an instruction, as an operator does."""
        self.note(Instructed(time.time(), text))
        self._instruction.publish(String(data=text))

    def subscribers(self, topic: str) -> set[str]:
        """Names of the nodes that subscribe to a topic."""
        return {info.node_name for info in self.node.get_subscriptions_info_by_topic(f"/{topic}")}

    def publishers(self, topic: str, node: str) -> set[bytes]:
        """The ids of this node's publishers on a topic."""
        found = self.node.get_publishers_info_by_topic(
            topic if topic.startswith("/") else f"/{topic}"
        )
        return {bytes(info.endpoint_gid) for info in found if info.node_name == node}

    def _subscribe(
        self, kind: type, topic: str, qos: QoSProfile, take: Callable[[float, Any], object]
    ) -> None:
        def with_info(message: Any, info: Mapping[str, int]) -> None:
            take(info["source_timestamp"] / 1e9, message)

        def without_info(message: Any) -> None:
            take(time.time(), message)

        callback: Any = with_info if HAS_SOURCE_STAMP else without_info
        self.node.create_subscription(kind, topic, callback, qos)

    def _line_of(self, topic: str) -> Callable[[float, Any], None]:
        def take(at: float, message: Any) -> None:
            self._line(at, topic, message.data)

        return take

    def _line(self, at: float, topic: str, text: str) -> None:
        self.lines[topic] = text
        self.note(Reported(at, topic, text))

    # Messages

    def _on_request(self, at: float, message: Any) -> None:
        if message.kind == DecodeRequest.OPEN:
            stamp = Time.from_msg(message.header.stamp).nanoseconds
            self.begun.setdefault(message.request_id, at)
            self.note(Asked(at, message.request_id, message.instruction, stamp))

    def _on_draft(self, at: float, message: Any) -> None:
        with contextlib.suppress(ValueError):
            draft = decode_client(message.payload.tobytes())
            if isinstance(draft, DraftMessage):
                self.note(FromRobot(at, message.request_id, draft))

    def _on_verdict(self, at: float, message: Any) -> None:
        with contextlib.suppress(ValueError):
            answer = decode_server(message.payload.tobytes())
            if isinstance(answer, (Opened, Verdict)):
                self.note(FromCloud(at, message.request_id, answer))

    def _on_words(self, at: float, message: Any) -> None:
        tokens = tuple(message.tokens)
        if message.finished:
            self._ended["words"].add(message.request_id)
        self.note(
            PublishedWords(at, message.request_id, message.position, tokens, message.finished)
        )

    def _on_stats(self, at: float, message: Any) -> None:
        self._ended["stats"].add(message.request_id)

    def _on_command(self, at: float, message: Any) -> None:
        command = Command(
            at,
            message.request_id,
            message.text,
            Time.from_msg(message.header.stamp).nanoseconds,
            Time.from_msg(message.expiry).nanoseconds / 1e9,
            message.verified,
            message.action != NavCommand.STOP,
        )
        self.last_command = command
        self.note(command)

    def _on_twist(self, at: float, message: Any) -> None:
        linear, turn = message.linear, message.angular.z
        moves = max(abs(linear.x), abs(linear.y)) > STANDING[0] or abs(turn) > STANDING[1]
        foreign = abs(linear.z - FOREIGN) < FOREIGN / 10
        if moves and not foreign:
            self.last_motion = at
        self.note(BaseCommand(at, moves, foreign))

    def _on_odometry(self, at: float, message: Any) -> None:
        twist = message.twist.twist
        speed, turn = max(abs(twist.linear.x), abs(twist.linear.y)), abs(twist.angular.z)
        self.note(BaseMotion(at, speed > STANDING[0] or turn > STANDING[1]))

    def _on_diagnostics(self, at: float, message: Any) -> None:
        for status in message.status:
            if status.level != DiagnosticStatus.OK:
                self._line(at, status.name, status.message)
            else:
                self.lines[status.name] = status.message
