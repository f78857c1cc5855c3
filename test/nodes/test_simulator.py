"""The simulator node in a process of its own, over real topics."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

rclpy = pytest.importorskip("rclpy")
from geometry_msgs.msg import Twist, TwistStamped  # noqa: E402
from helpers.graph.peer import Peer, closed_after  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rclpy.time import Time  # noqa: E402
from sensor_msgs.msg import CameraInfo, CompressedImage  # noqa: E402
from std_msgs.msg import String  # noqa: E402
from visualization_msgs.msg import MarkerArray  # noqa: E402

from edge_cloud_spec.lab.sim.camera import decode_jpeg  # noqa: E402
from edge_cloud_spec.lab.sim.room import make_room  # noqa: E402
from edge_cloud_spec.nodes.runtime.qos import LATCHED, SENSOR_DATA  # noqa: E402


class Driver(Peer):
    """The other side of the simulator's topics, and what it has heard."""

    def __init__(self) -> None:
        super().__init__("driver")
        camera = "camera/image_raw/compressed"
        self.odometry = self.collect(Odometry, "odom", SENSOR_DATA)
        self.pictures = self.collect(CompressedImage, camera, SENSOR_DATA)
        self.infos = self.collect(CameraInfo, "camera/camera_info", SENSOR_DATA)
        self.markers = self.collect(MarkerArray, "markers", 10)
        self.outcomes: list[dict[str, Any]] = []
        self.create_subscription(
            String, "sim/outcome", lambda m: self.outcomes.append(json.loads(m.data)), LATCHED
        )
        self.twist = self.create_publisher(Twist, "cmd_vel", 10)
        self.stamped = self.create_publisher(TwistStamped, "cmd_vel_stamped", 10)

    def known(self) -> object:
        return len(self.odometry), len(self.pictures), self.outcomes

    def command(self, vx: float, wz: float = 0.0) -> None:
        twist = Twist()
        twist.linear.x, twist.angular.z = vx, wz
        self.twist.publish(twist)
        self.stamped.publish(TwistStamped(twist=twist))

    @property
    def speed(self) -> float:
        return float(self.odometry[-1].twist.twist.linear.x)

    @property
    def turn(self) -> float:
        return float(self.odometry[-1].twist.twist.angular.z)

    @property
    def path_length(self) -> float:
        place = self.odometry[-1].pose.pose.position
        return math.hypot(place.x, place.y)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with closed_after(Driver()) as driver:
        yield driver


@pytest.fixture
def simulator(driver: Driver) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "edge_cloud_spec.lab.simulator.simulator", "--ros-args"]
        process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        running.append(process)
        driver.until(lambda: driver.odometry or process.poll() is not None)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_velocity_is_tracked_and_a_base_without_commands_stops(
    driver: Driver, simulator: Callable[..., subprocess.Popen[str]]
) -> None:
    process = simulator("-p", "seed:=3", "-p", "renderer:=rays")
    driver.until(driver.twist.get_subscription_count)
    driver.until(lambda: abs(driver.speed - 0.3) < 0.01, meanwhile=lambda: driver.command(0.3))
    driver.until(lambda: abs(driver.turn - 0.8) < 0.03, meanwhile=lambda: driver.command(0.0, 0.8))
    silent = len(driver.odometry)
    driver.until(lambda: abs(driver.turn) < 0.005)  # nobody says stop
    since = driver.odometry[silent:]
    still = next(m for m in since if abs(m.twist.twist.angular.z) < 0.1)
    took = Time.from_msg(still.header.stamp) - Time.from_msg(since[0].header.stamp)
    assert took.nanoseconds < 2e9  # of the base's own stamps: its timeout is 0.5 s
    assert driver.path_length > 0.02
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert "Traceback" not in process.stderr.read()


def test_pictures_decode_and_say_where_they_were_taken(
    driver: Driver, simulator: Callable[..., subprocess.Popen[str]]
) -> None:
    simulator("-p", "seed:=4", "-p", "image_size:=96", "-p", "renderer:=rays")
    driver.until(lambda: len(driver.pictures) > 5 and driver.infos and driver.outcomes)
    for message in driver.pictures:
        picture = decode_jpeg(message.data.tobytes())
        assert picture.shape == (96, 96, 3)
        assert picture.std() > 5  # a room, not a blank sheet
    info = driver.infos[-1]
    assert (info.width, info.height) == (96, 96)
    assert info.k[0] == pytest.approx(48 / math.tan(math.radians(30)))
    stamps = [Time.from_msg(m.header.stamp).nanoseconds for m in driver.pictures]
    assert stamps == sorted(stamps)
    assert driver.pictures[-1].header.frame_id == "camera_optical_frame"


def test_the_outcome_and_the_markers_tell_of_the_room_of_the_seed(
    driver: Driver, simulator: Callable[..., subprocess.Popen[str]]
) -> None:
    simulator("-p", "seed:=11", "-p", "renderer:=rays")
    driver.until(lambda: driver.outcomes and driver.markers)
    room, outcome = make_room(11), driver.outcomes[-1]
    assert outcome["target"] == room.target
    assert outcome["distance"] > outcome["reach"]
    assert outcome["standing"] and not outcome["success"] and not outcome["in_contact"]
    names = {marker.text for marker in driver.markers[-1].markers if marker.ns == "names"}
    assert names == {thing.name for thing in room.things}
    assert {"walls", "room", "path"} <= {marker.ns for marker in driver.markers[-1].markers}


def test_a_wall_is_felt_and_what_is_no_number_is_no_command(
    driver: Driver, simulator: Callable[..., subprocess.Popen[str]]
) -> None:
    simulator("-p", "seed:=3", "-p", "renderer:=rays")
    driver.until(lambda: driver.outcomes and driver.twist.get_subscription_count())
    for _ in range(5):
        driver.command(math.nan)
    seen = len(driver.outcomes)
    driver.until(lambda: len(driver.outcomes) > seen + 2)
    assert driver.path_length < 0.01
    driver.until(lambda: driver.outcomes[-1]["in_contact"], meanwhile=lambda: driver.command(1.0))
    driver.until(lambda: driver.outcomes[-1]["standing"], meanwhile=lambda: driver.command(1.0))


def test_stamped_commands_are_taken_where_asked_for(
    driver: Driver, simulator: Callable[..., subprocess.Popen[str]]
) -> None:
    simulator(
        "-p", "stamped_commands:=true", "-p", "renderer:=rays", "-r", "cmd_vel:=cmd_vel_stamped"
    )
    driver.until(driver.stamped.get_subscription_count)
    driver.until(lambda: abs(driver.speed + 0.2) < 0.01, meanwhile=lambda: driver.command(-0.2))


def test_bad_parameters_are_refused_by_name_before_there_is_a_room(
    driver: Driver, simulator: Callable[..., subprocess.Popen[str]]
) -> None:
    process = simulator(
        *("-p", "camera_rate:=900.0", "-p", "renderer:=opengl", "-p", "image_size:=7"),
        *("-p", "target:=golden goose"),
    )
    assert process.wait(60) == 2 and not driver.odometry
    said = process.stderr.read()
    for name in ("camera_rate", "renderer", "image_size", "target"):
        assert f"parameter {name} must be" in said
    assert "Traceback" not in said
