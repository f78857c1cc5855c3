"""The drafter's camera: frames as JPEG for both models, and how far the camera's clock is off."""

from __future__ import annotations

import time
from collections.abc import Callable

from builtin_interfaces.msg import Time as TimeMsg
from rclpy.node import Node
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, Image

from ...errors import UserError
from ...nav.clock_offset import SourceClock
from ..runtime.qos import SENSOR_DATA
from .decision_gate import CameraFrame, DecisionGate
from .frame import encode_frame


class CameraInput:
    """Subscribes to compressed and to raw frames, and hands them to the gate.

    ``report`` is told, in a sentence, of frames that cannot be used, ``watch`` of every frame's
    stamp (ns) and JPEG (empty where it was not encoded).
    """

    def __init__(
        self,
        node: Node,
        gate: DecisionGate,
        report: Callable[[str], None],
        watch: Callable[[int, bytes], None],
    ) -> None:
        self._node, self._gate, self._report, self._watch = node, gate, report, watch
        self._clock = SourceClock("the camera's")
        node.create_subscription(
            CompressedImage, "camera/image_raw/compressed", self._on_compressed, SENSOR_DATA
        )
        node.create_subscription(Image, "camera/image_raw", self._on_image, SENSOR_DATA)

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which the camera's clock is ahead, less its latency; None: not known."""
        return self._clock.offset

    def _on_compressed(self, message: CompressedImage) -> None:
        self._hear(message.header.stamp)
        self._hand_over(message.data.tobytes(), message.header.stamp)

    def _on_image(self, message: Image) -> None:
        self._hear(message.header.stamp)
        self._watch(Time.from_msg(message.header.stamp).nanoseconds, b"")
        if not self._gate.instruction:
            return  # encoding costs time, and no decision needs the frame
        try:
            self._hand_over(encode_frame(message), message.header.stamp)
        except UserError as error:
            self._report(str(error))

    def _hear(self, stamp: TimeMsg) -> None:
        taken = Time.from_msg(stamp).nanoseconds
        age = (self._node.get_clock().now().nanoseconds - taken) / 1e9
        problem = self._clock.hear(taken, age, time.monotonic())
        if problem:
            self._node.get_logger().warning(problem)

    def _hand_over(self, jpeg: bytes, stamp: TimeMsg) -> None:
        stamped = Time.from_msg(stamp).nanoseconds
        self._watch(stamped, jpeg)
        taken = Time(nanoseconds=max(0, stamped - round(self._gate.lag() * 1e9)))
        self._gate.update_frame(CameraFrame(jpeg, taken.to_msg(), self._clock.offset or 0.0))
