"""A navigator node that is promised a lidar, over real topics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.navigator_bench import Bench
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import LaserScan, PointCloud2, PointField

from edge_cloud_spec.nav.footprint import Mount, ObstacleSettings
from edge_cloud_spec.nav.sight import LidarSight
from edge_cloud_spec.nodes.lidar import read_cloud, read_scan

SETTINGS = ObstacleSettings()
SCANS = ("scan", lambda *given: read_scan(*given)[0])
CLOUDS = ("points", lambda *given: read_cloud(*given)[0])
WALL = [(3.0, y / 10, 0.0) for y in range(-20, 21)]
HANGING = ObstacleSettings(
    scan_at=Mount("laser", x=0.2, roll=math.pi), points_at=Mount("l1", x=0.3, z=-0.05, pitch=2.88)
)


def a_scan(ranges: list[float], frame: str = "base_link") -> LaserScan:
    message = LaserScan(angle_min=-math.pi, angle_increment=math.pi / 180, range_min=0.05)
    message.range_max, message.header.frame_id = 12.0, frame
    message.ranges = ranges
    return message


def apart(step: float, count: int = 360) -> LaserScan:
    """A scan whose rays are ``step`` (rad) apart."""
    message = a_scan([3.0] * count)
    message.angle_increment = step
    return message


def sent(message: LaserScan) -> Any:
    """The same as it arrives, with numbers of 32 bits."""
    return deserialize_message(serialize_message(message), LaserScan)


def a_cloud(
    places: Any, frame: str = "base_link", kind: str = "<f4", spare: int = 4
) -> PointCloud2:
    """Points [n, 3] as drivers pack them: other fields between, and bytes that mean nothing."""
    places = np.asarray(places, float).reshape(-1, 3)
    size = np.dtype(kind).itemsize
    layout = np.dtype(
        {
            "names": ["x", "y", "z"],
            "formats": [kind] * 3,
            "offsets": [spare + size * axis for axis in range(3)],
            "itemsize": spare + 3 * size + 5,
        }
    )
    packed = np.zeros(len(places), layout)
    for axis, name in enumerate("xyz"):
        packed[name] = places[:, axis]
    numbers = {"4": PointField.FLOAT32, "8": PointField.FLOAT64}
    fields = [
        PointField(name=name, offset=layout.fields[name][1], datatype=numbers[kind[-1]], count=1)
        for name in "xyz"
    ]
    fields.append(PointField(name="ring", offset=0, datatype=PointField.UINT16, count=1))
    message = PointCloud2(height=1, width=len(places), point_step=layout.itemsize, fields=fields)
    message.row_step, message.is_bigendian = layout.itemsize * len(places), kind[0] == ">"
    message.data = packed.tobytes()
    message.header.frame_id = frame
    return message


def points_of(message: Any, settings: ObstacleSettings = SETTINGS) -> list[list[float]]:
    """The obstacles that a message shows, in order."""
    source, read = SCANS if isinstance(message, LaserScan) else CLOUDS
    rays = read(message, settings, getattr(settings, f"{source}_at").frame or "base_link")
    return sorted(LidarSight.of(source, rays, settings).points.tolist())


def test_a_scan_is_points_about_the_base() -> None:
    ranges = [math.inf] * 360
    ranges[180], ranges[270], ranges[0], ranges[90] = 2.0, 1.0, math.nan, -math.inf
    near, left, ahead = points_of(a_scan(ranges))
    assert ahead == pytest.approx([2.0, 0.0]) and left == pytest.approx([0.0, 1.0], abs=1e-6)
    assert near == pytest.approx([0.0, -0.155], abs=0.01), "too near to measure: at its edge"
    ahead = points_of(a_scan(ranges, "laser"), HANGING)[-1]
    assert ahead == pytest.approx([2.2, 0.0], abs=1e-6)


def test_a_scan_from_0_to_2_pi_or_clockwise_is_the_same() -> None:
    message = a_scan([1.0 + at / 100 for at in range(360)])
    expected = points_of(message)
    message.ranges = [*message.ranges[180:], *message.ranges[:180]]
    message.angle_min = 0.0
    assert np.allclose(points_of(message), expected, atol=1e-5)
    message.ranges = message.ranges[::-1]
    message.angle_min, message.angle_increment = 359 * math.pi / 180, -math.pi / 180
    assert np.allclose(points_of(message), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", ">f8"])
def test_points_count_in_their_band_of_heights(kind: str) -> None:
    places = [(1.0, 0.5, 0.0), (1.0, 0.0, -0.3), (2.0, 0.0, 0.5), (math.nan, 0.0, 0.0)]
    message = a_cloud(places, kind=kind)
    assert points_of(message) == [pytest.approx([1.0, 0.5])]
    message.row_step = 0  # as some drivers leave it
    assert points_of(message) == [pytest.approx([1.0, 0.5])]


def test_a_lidar_that_is_turned_over_sees_what_is_there() -> None:
    """The place of each point by rotations about x, y and z, one after another (URDF's rpy)."""
    rng = np.random.default_rng(3)
    mount = Mount("l", 0.3, -0.1, 0.05, *rng.uniform(-3, 3, 3))
    points = rng.uniform(-2, 2, (20, 3))
    expected = []
    for x, y, z in points:
        r, p, w = mount.roll, mount.pitch, mount.yaw
        y, z = y * math.cos(r) - z * math.sin(r), y * math.sin(r) + z * math.cos(r)
        x, z = x * math.cos(p) + z * math.sin(p), z * math.cos(p) - x * math.sin(p)
        x, y = x * math.cos(w) - y * math.sin(w), x * math.sin(w) + y * math.cos(w)
        expected.append((x + 0.3, y - 0.1, z + 0.05))
    assert np.allclose(mount.to_base(points), expected)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (a_scan([1.0], "laser"), "its frame is 'laser', not 'base_link'; obstacles.scan_at must"),
        *(
            (a_cloud(WALL, frame), f"its frame is '{frame}', which does not move with the base")
            for frame in ("odom", "map", "earth", "world", "camera_init")
        ),
        (
            a_cloud(WALL, "robot1/map"),
            "take the topic that its driver publishes in the lidar's own",
        ),
        (a_scan([math.nan] * 9), "0 of 9 rays tell anything from beyond the robot's body"),
        (a_scan([]), "0 ranges of the scan, 1 degrees apart, are no scan"),
        (a_scan([3.0] * 720), "720 ranges of the scan, 1 degrees apart, are no scan"),
        (a_scan([0.0, 13.0] * 180), "0 of 360 rays"),
        (apart(0.0), "0 degrees apart, are no scan; correct angle_increment"),
        (apart(math.nan), "nan degrees apart"),
        (apart(math.radians(-20), 8), "20 degrees apart, and a chair fits between them"),
        (sent(apart(math.radians(7), 50)), "7 degrees apart, and a chair"),
        (a_cloud(np.zeros((400, 3))), "0 of 400 rays tell anything"),
        (a_cloud([(1.0, 0.0, 0.0)], "utlidar_lidar"), "not 'base_link'; obstacles.points_at"),
        (a_cloud([(math.nan, 0.0, 0.0)]), "0 of 1 rays"),
        (a_cloud([]), "0 of 0 rays"),
        (PointCloud2(), "its frame is ''"),
    ],
)
def test_what_tells_nothing_is_refused_in_a_sentence(message: Any, why: str) -> None:
    read = read_scan if isinstance(message, LaserScan) else read_cloud
    with pytest.raises(ValueError, match=why):
        read(message, SETTINGS, "base_link")


@pytest.mark.parametrize("step", [math.radians(6), -math.radians(6), 2 * math.pi / 60])
def test_rays_that_are_six_degrees_apart_are_a_scan(step: float) -> None:
    assert len(read_scan(sent(apart(step, 60)), SETTINGS, "base_link")[0]) == 60


@pytest.mark.parametrize(
    ("name", "value"),
    [("data", b"1234"), ("width", 9), ("height", 4), ("point_step", 3), ("fields", [])],
)
def test_a_cloud_that_is_cut_or_lies_about_its_size_is_refused(name: str, value: Any) -> None:
    message = a_cloud([(1.0, 0.0, 0.0), (2.0, 0.0, 0.0)])
    setattr(message, name, value)
    with pytest.raises(ValueError, match="the points"):
        read_cloud(message, SETTINGS, "base_link")


def test_a_node_stops_before_what_its_scan_shows_and_without_one(
    bench: Bench, start_here: Any
) -> None:
    start_here({"obstacles.scan": "/laser", "obstacles.points": "/cloud"})
    lasers = bench.create_publisher(LaserScan, "/laser", qos_profile_sensor_data)
    clouds = bench.create_publisher(PointCloud2, "/cloud", qos_profile_sensor_data)
    free, ahead = [3.0] * 360, [3.0] * 360
    ahead[170:190] = [0.57] * 20
    show = {"ranges": free, "frame": "base_link"}

    def look() -> None:
        message, cloud = a_scan(**show), a_cloud(WALL)  # type: ignore[arg-type]
        now = bench.get_clock().now().to_msg()
        message.header.stamp = cloud.header.stamp = now
        lasers.publish(message)
        clouds.publish(cloud)

    bench.say("action: move forward small;", "r1")
    bench.until(lambda: bench.said("stopped", "r1", "what is in the way is not seen"))
    assert not any(twist.linear.x > 0.01 for twist in bench.twists)
    looking = bench.create_timer(0.05, look)
    bench.until(lambda: lasers.get_subscription_count() and clouds.get_subscription_count())

    def tries(request: str, *expected: str) -> bool:
        bench.say("action: move forward small;", request)
        bench.until(lambda: bench.state.request == request and bench.state.state == "idle")
        return any(text in bench.state.detail for text in expected)

    bench.until(lambda: tries(f"free{len(bench.states)}", "done: move forward small"))
    show["ranges"] = ahead
    there = "move forward small: something is in the way at 0.1"
    bench.until(lambda: tries(f"ahead{len(bench.states)}", there))
    bench.until(lambda: bench.still)
    bench.say("action: move backward small;", "back")
    bench.until(lambda: bench.said("idle", "back", "done: move backward small"))
    show.update(ranges=free, frame="camera")
    other = "what is in the way is not seen: its frame is 'camera', not 'base_link'"
    bench.until(lambda: bench.state.state == "stopped" and other in bench.state.detail)
    looking.cancel()
