"""The command `commission` on a real ROS graph: what moves it, what ends it, what it leaves."""

from __future__ import annotations

import argparse
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from geometry_msgs.msg import Twist
from helpers.cloud.grpc_cloud import until
from helpers.commissioned import Kinematic
from helpers.graph.ros_domain import ros_domain
from nav_msgs.msg import Odometry
from sensor_msgs.msg import LaserScan
from std_msgs.msg import Bool, String

from edge_cloud_spec.commission.command import add_commission_arguments
from edge_cloud_spec.commission.robot import GRACE_S, RosRobot
from edge_cloud_spec.nav.events import EStop, Scan
from edge_cloud_spec.nav.pose import Velocity
from edge_cloud_spec.nodes.runtime.node_thread import NodeThread
from edge_cloud_spec.nodes.runtime.qos import SENSOR_DATA

COMMISSION = [sys.executable, "-m", "edge_cloud_spec.cli", "commission"]


class Base:
    """A base with odometry at 50 Hz; ``heard`` is each command."""

    def __init__(self) -> None:
        self.thread, self.base = NodeThread("base", domain=None), Kinematic()
        self.heard: list[tuple[float, float]] = [(0.0, 0.0)]
        node = self.thread.node
        self.odometry = node.create_publisher(Odometry, "odom", SENSOR_DATA)
        node.create_publisher(String, "sim/outcome", 1)  # as a simulator
        self.stop = node.create_publisher(Bool, "e_stop", 1)
        node.create_subscription(
            Twist, "go", lambda m: self.heard.append((m.linear.x, m.angular.z)), 10
        )
        node.create_timer(0.02, self._tick)
        self.thread.start()

    def _tick(self) -> None:
        self.base.move(self.heard[-1], 0.02)
        message = Odometry()
        message.header.stamp = self.thread.node.get_clock().now().to_msg()
        message.pose.pose.orientation.z = math.sin(self.base.yaw / 2)
        message.pose.pose.orientation.w = math.cos(self.base.yaw / 2)
        self.odometry.publish(message)


@pytest.fixture
def base() -> Iterator[Base]:
    with ros_domain():
        made = Base()
        yield made
        made.thread.close()


def test_its_own_watchdog_stops_a_base_but_where_its_time_out_is_tried_and_an_e_stop_always(
    base: Base,
) -> None:
    parser = argparse.ArgumentParser()
    add_commission_arguments(parser)
    robot = RosRobot(parser.parse_args(["--yes", "--cmd-vel", "go"]))
    try:
        robot.command(Velocity(0.2))
        robot.keep_silent(60.0)  # or the base's own time-out would never be seen
        until(lambda: base.heard[-1] == (0.2, 0.0))
        time.sleep(GRACE_S + 1.0)
        assert base.heard[-1] == (0.2, 0.0)
        base.stop.publish(Bool(data=True))
        until(lambda: EStop(True) in [event for _, event in robot.period()])
        until(lambda: base.heard[-1] == (0.0, 0.0))
        robot.command(Velocity(0.3))
        until(lambda: (0.3, 0.0) in base.heard and base.heard[-1] == (0.0, 0.0))
    finally:
        robot.close()


def test_a_lidar_is_read_as_the_navigators_parameters_say_and_named_if_it_cannot_be(
    base: Base, tmp_path: Path
) -> None:
    file = tmp_path / "nav.yaml"
    file.write_text(
        "/**/navigator:\n  ros__parameters:\n    use_sim_time: false\n"
        "    obstacles: {scan: other, scan_at: {frame: laser, yaw: 3.1415927}}\n"
    )
    parser = argparse.ArgumentParser()
    add_commission_arguments(parser)
    given = ["--yes", "--cmd-vel", "go", "--scan", "front", "--parameters", str(file)]
    robot = RosRobot(parser.parse_args(given))
    scans, node = [], base.thread.node
    publisher = node.create_publisher(LaserScan, "front", SENSOR_DATA)

    def hears(frame: str) -> Scan:
        scan = LaserScan(angle_increment=0.1, range_min=0.1, range_max=9.0, ranges=[2.0] * 9)
        scan.header.frame_id = frame
        publisher.publish(scan)
        scans.extend(event for _, event in robot.period() if isinstance(event, Scan))
        return scans[-1] if scans else Scan("", 0)

    try:
        until(lambda: len(hears("laser").rays) == 9)
        (bearing, seen, ended) = scans[-1].rays[0]
        assert abs(bearing) == pytest.approx(math.pi, abs=1e-6) and (seen, ended) == (2.0, 1.0)
        until(lambda: "its frame is 'base_link'" in hears("base_link").problem)
    finally:
        robot.close()


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        ("Ctrl-C", "interrupted"),
        ("nobody answers", "nobody can answer"),
        ("another drives", "another node publishes"),
    ],
)
def test_it_stands_and_writes_nothing_when_it_is_ended(
    base: Base, cause: str, why: str, tmp_path: Path
) -> None:
    answers = [] if cause == "nobody answers" else ["--yes"]
    topic = "cmd_vel" if cause == "another drives" else "go"
    base.thread.node.create_publisher(Twist, "cmd_vel", 1)
    process = subprocess.Popen(
        [*COMMISSION, *answers, "--cmd-vel", topic],
        cwd=tmp_path,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if cause == "Ctrl-C":
        until(lambda: any(base.heard[-1]))
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and not list(tmp_path.iterdir()), said
    assert why in said
    assert base.heard[-1] == (0.0, 0.0)
