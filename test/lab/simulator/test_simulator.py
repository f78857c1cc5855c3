"""The simulator node in a process of its own, over real topics."""

from __future__ import annotations

import json
import math
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from geometry_msgs.msg import Twist, TwistStamped
from helpers.go2 import each_base
from helpers.graph.peer import Peer
from nav_msgs.msg import Odometry
from rclpy.time import Time
from sensor_msgs.msg import CameraInfo, CompressedImage, LaserScan
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from edge_cloud_spec.bringup.graph import FLAT_FRAMES
from edge_cloud_spec.models import FLATS
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.answer import ORDERS
from edge_cloud_spec.nodes.runtime.qos import LATCHED, RELIABLE, SENSOR_DATA
from edge_cloud_spec_lab.bench.flats import model, walk
from edge_cloud_spec_lab.sim.camera import decode_jpeg
from edge_cloud_spec_lab.sim.flat import make_flat
from edge_cloud_spec_lab.sim.furniture import make_furnished
from edge_cloud_spec_lab.sim.room import Room, make_room
from edge_cloud_spec_lab.simulator.simulator import FIRST_SEEDS, NO_TRANSFORMS

pytest.importorskip("mujoco")


Start = Callable[..., subprocess.Popen[str]]
MODULE = ["-m", "edge_cloud_spec_lab.simulator.simulator"]
WITHOUT_TF2 = """
import sys
sys.modules["tf2_msgs"] = None
from edge_cloud_spec_lab.simulator.simulator import main
sys.exit(main())
"""


class Driver(Peer):
    """The other side of the simulator's topics, and what it has heard."""

    def __init__(self) -> None:
        super().__init__("driver")
        camera = "camera/image_raw/compressed"
        self.odometry = self.collect(Odometry, "odom", SENSOR_DATA)
        self.pictures = self.collect(CompressedImage, camera, SENSOR_DATA)
        self.infos = self.collect(CameraInfo, "camera/camera_info", SENSOR_DATA)
        self.scans = self.collect(LaserScan, "scan", SENSOR_DATA)
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
def driver(launch: Start) -> Iterator[Driver]:
    """It ends before ``launch`` kills, as ``bench`` in test/nodes does, for the same reason."""
    with Driver() as driver:
        yield driver


@pytest.fixture
def simulator(driver: Driver, launch: Start) -> Start:
    def begin(
        *parameters: str, program: list[str] = MODULE, remapped: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        given = [part for each in ("renderer:=rays", *parameters) for part in ("-p", each)]
        process = launch(program, *remapped, *given)
        driver.until(lambda: driver.odometry or process.poll() is not None)
        return process

    return begin


def test_velocity_is_tracked_a_base_without_commands_stops_and_a_wall_is_felt(
    driver: Driver, simulator: Start
) -> None:
    """And what is no number is no command."""
    process = simulator("seed:=3")
    driver.until(lambda: driver.outcomes and driver.twist.get_subscription_count())
    for _ in range(5):
        driver.command(math.nan)
    seen = len(driver.outcomes)
    driver.until(lambda: len(driver.outcomes) > seen + 2)
    assert driver.path_length < 0.01
    driver.until(lambda: abs(driver.speed - 0.3) < 0.01, meanwhile=lambda: driver.command(0.3))
    driver.until(lambda: abs(driver.turn - 0.8) < 0.03, meanwhile=lambda: driver.command(0.0, 0.8))
    silent = len(driver.odometry)
    driver.until(lambda: abs(driver.turn) < 0.005)  # nobody says stop
    since = driver.odometry[silent:]
    still = next(m for m in since if abs(m.twist.twist.angular.z) < 0.1)
    took = Time.from_msg(still.header.stamp) - Time.from_msg(since[0].header.stamp)
    assert took.nanoseconds < 2e9  # of the base's own stamps: its timeout is 0.5 s
    assert driver.path_length > 0.02
    for state in ("in_contact", "standing"):
        driver.until(lambda s=state: driver.outcomes[-1][s], meanwhile=lambda: driver.command(1.0))
    assert driver.outcomes[-1]["contacts"] > 0
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert "Traceback" not in process.stderr.read()


def test_in_the_first_flat_the_pair_does_what_the_readme_says_wherever_it_starts_exactly() -> None:
    """The flat of seed 0 was given up after three minutes."""
    readme = Path(__file__).parents[3] / "README.md"
    assert '"{instruction: find the blue box}"' in readme.read_text("utf-8")
    flat, random = make_flat(FIRST_SEEDS["flat"]), Random(1)
    vlm = load(str(FLATS / "target"), threads=1)
    for _ in range(2):
        start = flat.room.start
        near = replace(
            start,
            x=start.x + random.gauss(0, 0.02),
            y=start.y + random.gauss(0, 0.02),
            yaw=start.yaw + random.gauss(0, 0.03),
        )
        room = replace(flat.room, start=near, instruction="find the blue box")
        begun = replace(flat, room=room)
        result = walk(begun, model(begun, vlm, FLAT_FRAMES, ORDERS[1]))
        assert result.judgement.success and result.decisions <= 15 and result.hidden


@pytest.mark.parametrize(
    ("world", "seed", "room"),
    [
        ("room", 11, make_room(11)),
        ("flat", 3, make_flat(3).room),
        ("furnished", 5, make_furnished(5, people=1)),
    ],
)
def test_pictures_outcome_and_markers_are_those_of_the_world_of_the_seed(
    driver: Driver, simulator: Start, world: str, seed: int, room: Room
) -> None:
    people = len(room.walkers)
    simulator(f"seed:={seed}", f"world:={world}", "image_size:=96", f"people:={people}")
    driver.until(
        lambda: len(driver.pictures) > 5 and driver.infos and driver.outcomes and driver.markers
    )
    for message in driver.pictures:
        picture = decode_jpeg(message.data.tobytes())
        assert picture.shape == (96, 96, 3) and picture.std() > 5, "a room, not a blank sheet"
    info = driver.infos[-1]
    assert (info.width, info.height) == (96, 96)
    assert info.k[0] == pytest.approx(48 / math.tan(math.radians(30)))
    stamps = [Time.from_msg(m.header.stamp).nanoseconds for m in driver.pictures]
    assert stamps == sorted(stamps)
    assert driver.pictures[-1].header.frame_id == "camera_optical_frame"
    outcome = driver.outcomes[-1]
    assert outcome["target"] == room.target
    if room.target:
        assert outcome["distance"] > outcome["reach"] and outcome["standing"]
    else:
        assert outcome["distance"] is None and world == "flat", "a place, and no thing"
    assert not outcome["success"] and not outcome["in_contact"]
    names = {marker.text for marker in driver.markers[-1].markers if marker.ns == "names"}
    assert names == {thing.name for thing in room.things}
    assert {"walls", "room", "path"} <= {marker.ns for marker in driver.markers[-1].markers}


@each_base
def test_either_base_scans_its_room(driver: Driver, simulator: Start, name: str) -> None:
    simulator("seed:=3", f"base:={name}")
    driver.until(lambda: driver.scans and driver.outcomes and driver.odometry)
    scan = driver.scans[-1]
    assert scan.header.frame_id == "base_link"
    assert scan.header.stamp in [m.header.stamp for m in driver.odometry]
    assert len(scan.ranges) == 360 and scan.angle_min == pytest.approx(-math.pi)
    assert scan.angle_min + 359 * scan.angle_increment == pytest.approx(scan.angle_max, abs=1e-4)
    assert max(scan.ranges) < math.hypot(*make_room(3).size), "walls all around"
    assert driver.outcomes[-1]["contacts"] == 0
    assert ("posture" in driver.outcomes[-1]) == (name == "go2")


def test_bad_parameters_are_refused_by_name_before_there_is_a_room(
    driver: Driver, simulator: Start
) -> None:
    bad = ("camera_rate:=900.0", "renderer:=opengl", "image_size:=7", "target:=golden goose")
    process = simulator(*bad)
    assert process.wait(60) == 2 and not driver.odometry
    said = process.stderr.read()
    for name in ("camera_rate", "renderer", "image_size", "target"):
        assert f"parameter {name} must be" in said
    assert "Traceback" not in said


def test_without_tf2_msgs_it_is_said_that_there_are_no_transforms_and_stamped_commands_are_taken(
    driver: Driver, simulator: Start
) -> None:
    remapped = ("-r", "cmd_vel:=cmd_vel_stamped")
    process = simulator("stamped_commands:=true", program=["-c", WITHOUT_TF2], remapped=remapped)
    driver.until(driver.stamped.get_subscription_count)
    driver.until(lambda: abs(driver.speed + 0.2) < 0.01, meanwhile=lambda: driver.command(-0.2))
    names = {name for name, _ in driver.get_topic_names_and_types()}
    assert not {"/tf", "/tf_static"} & names
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.count(NO_TRANSFORMS) == 1


def test_the_cameras_transform_is_latched_and_the_bases_follows_odometry(
    driver: Driver, simulator: Start
) -> None:
    reason = "tf2_msgs is not on the package index; a full ROS has it"
    kind = pytest.importorskip("tf2_msgs.msg", reason=reason).TFMessage
    simulator()
    driver.until(lambda: len(driver.odometry) > 20)
    fixed = driver.collect(kind, "/tf_static", LATCHED)
    moving = driver.collect(kind, "/tf", RELIABLE)
    driver.until(lambda: fixed and len(moving) > 20)
    assert len(fixed) == 1
    [camera] = fixed[0].transforms
    assert (camera.header.frame_id, camera.child_frame_id) == ("base_link", "camera_optical_frame")
    for message in moving:
        [base] = message.transforms
        assert (base.header.frame_id, base.child_frame_id) == ("odom", "base_link")
    stamps = [m.header.stamp for m in driver.odometry]
    assert moving[0].transforms[0].header.stamp in stamps
