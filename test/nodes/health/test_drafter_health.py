"""What a real drafter says of its camera and its decisions, on /diagnostics and to the operator."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

rclpy = pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus  # noqa: E402
from helpers.graph.peer import PATIENCE, Peer, closed_after  # noqa: E402
from PIL import Image as Picture  # noqa: E402
from rclpy.qos import qos_profile_sensor_data  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from edge_cloud_spec.nodes.runtime.qos import LATCHED  # noqa: E402

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
TOPIC = "/robot1/camera/image_raw/compressed"


def jpeg(brightness: int, seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 8, (96, 96, 3))
    data = io.BytesIO()
    Picture.fromarray((noise * (brightness > 0) + brightness).astype(np.uint8)).save(data, "JPEG")
    return data.getvalue()


class Robot(Peer):
    """The camera and the operator of /robot1, and what its drafter says."""

    def __init__(self) -> None:
        super().__init__("robot", "/robot1")
        self.told: list[str] = []
        self.newest: DiagnosticStatus | None = None
        self.frame: Callable[[int], bytes] | None = None
        self.frozen = False
        self._number = 0
        self._stamp = self.get_clock().now().to_msg()
        self.instruction = self.create_publisher(String, "instruction", 10)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._hear, 100)
        self.create_subscription(
            String, "instruction_status", lambda m: self.told.append(m.data), LATCHED
        )
        self._camera = None
        self.create_timer(0.1, self._publish)

    def start_camera(self) -> None:
        self._camera = self.create_publisher(CompressedImage, TOPIC, qos_profile_sensor_data)

    def _publish(self) -> None:
        if self._camera is not None and self.frame is not None:
            self._number += 1
            if not self.frozen:
                self._stamp = self.get_clock().now().to_msg()
            message = CompressedImage(format="jpeg", data=self.frame(self._number))
            message.header.stamp = self._stamp
            self._camera.publish(message)

    def _hear(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == "/robot1/drafter":
                self.newest = status

    def known(self) -> object:
        return self.newest and (self.newest.level, self.newest.message), self.told[-3:]

    def says(self, level: bytes, *words: str) -> bool:
        newest = self.newest
        told = newest is not None and newest.level == level
        return told and all(word in newest.message for word in words)


@pytest.fixture
def robot() -> Iterator[Robot]:
    command = [sys.executable, "-m", "edge_cloud_spec.nodes.drafter", "--ros-args"]
    given = ("-r", "__ns:=/robot1", "-p", "patience:=1.0", "-p", "hardware_id:=go2-7")
    process = subprocess.Popen([*command, *given])
    with closed_after(Robot()) as robot:
        yield robot
    process.terminate()
    process.wait(PATIENCE)


def test_every_fault_of_the_camera_is_said_and_passes(robot: Robot) -> None:
    stranger = robot.create_publisher(CompressedImage, TOPIC.replace("1", "2"), 10)
    robot.until(lambda: robot.says(ERROR, f"no picture on {TOPIC}", "there is /robot2/camera"))
    assert stranger.get_subscription_count() == 0  # another robot's pictures do not count
    robot.destroy_publisher(stranger)
    other = robot.create_publisher(CompressedImage, "camera/imag_raw/compressed", 10)
    robot.until(lambda: robot.says(ERROR, f"no picture on {TOPIC}", "nothing publishes it"))
    nearest = "/robot1/camera/imag_raw/compressed"
    robot.until(lambda: robot.says(ERROR, f"camera:={nearest}"))
    assert robot.newest is not None and robot.newest.hardware_id == "go2-7"

    robot.until(lambda: robot.instruction.get_subscription_count())
    robot.instruction.publish(String(data="find the blue box"))
    blind = f"following find the blue box: no picture on {TOPIC}"
    robot.until(lambda: robot.told[-1].startswith(blind))

    robot.destroy_publisher(other)
    wrong = robot.create_publisher(Image, TOPIC, 10)
    robot.until(lambda: robot.says(ERROR, "it carries sensor_msgs/msg/Image"))
    robot.destroy_publisher(wrong)

    robot.frame = lambda number: jpeg(128, number)
    robot.start_camera()
    robot.until(lambda: robot.told[-1].startswith("following") and blind not in robot.told[-1])
    # There is no bridge: said by the decision that fails, with what to do.
    robot.until(lambda: robot.says(ERROR, "no cloud bridge is on the topics", "start the node"))
    robot.until(lambda: "no cloud bridge" in robot.told[-1])
    robot.instruction.publish(String(data="stop"))
    robot.until(lambda: robot.told[-1].startswith("idle"))

    robot.frozen = True
    robot.until(lambda: robot.says(ERROR, "frozen: their stamps do not go on", "restart"))
    robot.frozen = False
    robot.frame = lambda number: jpeg(0, number)
    robot.until(lambda: robot.says(ERROR, "are black") or robot.says(WARN, "are black"))
    robot.frame = lambda number: b"no picture at all"
    robot.until(lambda: robot.says(ERROR, "cannot be read"))
    robot.frame = lambda number: jpeg(128, number)
    robot.until(lambda: robot.says(OK, "no instruction"))  # and the problem was forgotten
