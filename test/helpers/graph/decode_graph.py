"""A node that plays the camera beside a decode path, and hears all of it."""

from __future__ import annotations

import numpy as np
from helpers.graph.peer import Peer
from rclpy.publisher import Publisher
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.msg import (
    DecodeStats,
    Draft,
    InstructionStatus,
    Verdict,
    VerifiedTokens,
)
from edge_cloud_spec.nav.status import STOPPED, UNKNOWN, GoalStatus
from edge_cloud_spec_lab.sim.camera import encode_jpeg

CAMERA = "camera/image_raw/compressed"
INSTRUCTION = "find the silver bottle"


def frame(seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (96, 96, 3), dtype=np.uint8)
    return encode_jpeg(pixels)


class Watcher(Peer):
    """A node in this process that plays the camera and hears everything."""

    def __init__(self, namespace: str = "", sees: bool = True) -> None:
        super().__init__("watcher", namespace)
        self.hear_diagnostics()
        self.heard: dict[str, list] = {}
        self.picture = frame()
        self.camera: Publisher | None = None
        if sees:
            self.start_camera()
        self.instruction = self.create_publisher(String, "instruction", 10)
        self.create_timer(0.1, self._publish_frame)
        for topic, kind in (
            ("draft", Draft),
            ("verdict", Verdict),
            ("verified_tokens", VerifiedTokens),
            ("decode_stats", DecodeStats),
            ("instruction_status", InstructionStatus),
        ):
            self.heard[topic] = self.collect(kind, topic, 100)

    def known(self) -> object:
        return self.told(), {topic: len(messages) for topic, messages in self.heard.items()}

    def start_camera(self) -> None:
        self.camera = self.create_publisher(CompressedImage, CAMERA, qos_profile_sensor_data)

    def _publish_frame(self) -> None:
        if self.camera is not None:
            message = CompressedImage(format="jpeg", data=self.picture)
            message.header.stamp = self.get_clock().now().to_msg()
            self.camera.publish(message)

    def ask(self, text: str) -> None:
        self.until(lambda: self.instruction.get_subscription_count() > 0)
        self.instruction.publish(String(data=text))

    def set(self, **parameters: object) -> None:
        assert not any(self.set_parameters_of("drafter", parameters))

    def sampled(self, count: int) -> list[DecodeStats]:
        """The next decisions' figures; the instruction is given and taken back."""
        self.stop()  # else it may go on with the last test's, whose failed decisions count
        self.heard["decode_stats"].clear()
        self.ask(INSTRUCTION)
        self.until(lambda: len(self.heard["decode_stats"]) >= count)
        self.stop()
        return self.heard["decode_stats"][:count]

    def stop(self) -> None:
        self.heard["instruction_status"].clear()
        self.ask("stop")
        self.until(lambda: self.state == STOPPED)

    def finished(self) -> list[VerifiedTokens]:
        return [m for m in self.heard["verified_tokens"] if m.finished]

    def said(self, start: str) -> bool:
        heard = self.heard["instruction_status"]
        return any(str(GoalStatus.read(message)).startswith(start) for message in heard)

    @property
    def state(self) -> str:
        """The newest state of ``instruction_status``."""
        heard = self.heard["instruction_status"]
        return GoalStatus.read(heard[-1]).state if heard else UNKNOWN

    def told(self) -> str:
        """The newest line of ``instruction_status``."""
        heard = self.heard["instruction_status"]
        return str(GoalStatus.read(heard[-1])) if heard else ""
