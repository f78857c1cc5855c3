"""The command `commission` on a real ROS graph: what moves it, what ends it, what it leaves."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from geometry_msgs.msg import Twist
from helpers.commissioned import Kinematic
from helpers.graph.ros_domain import ros_domain
from nav_msgs.msg import Odometry
from std_msgs.msg import Bool, String

from edge_cloud_spec.commission.command import add_commission_arguments
from edge_cloud_spec.commission.robot import GRACE_S, Robot
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
        message.pose.pose.orientation.z = self.base.yaw / 2
        message.pose.pose.orientation.w = 1.0
        self.odometry.publish(message)


@pytest.fixture
def base() -> Iterator[Base]:
    with ros_domain():
        made = Base()
        yield made
        made.thread.close()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.02)


@pytest.mark.parametrize("silent", [True, False])
def test_its_own_watchdog_lets_a_base_time_out_and_stops_it_otherwise(
    base: Base, silent: bool
) -> None:
    """Else the base's own time-out is never seen; while it is meant to drive, the watchdog acts."""
    parser = argparse.ArgumentParser()
    add_commission_arguments(parser)
    robot = Robot(parser.parse_args(["--yes", "--cmd-vel", "go"]))
    try:
        robot.command(Velocity(0.2))
        if silent:
            robot.keep_silent(60.0)
        until(lambda: (0.2, 0.0) in base.heard)
        time.sleep(GRACE_S + 1.0)
        assert ((0.0, 0.0) in base.heard[2:]) != silent, base.heard
    finally:
        robot.close()


@pytest.mark.parametrize("cause", ["Ctrl-C", "e_stop", "nobody answers", "another drives"])
def test_it_stands_and_writes_nothing_when_it_is_ended(
    base: Base, cause: str, tmp_path: Path
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
    why = {"nobody answers": "nobody can answer", "another drives": "another node publishes"}
    if cause not in why:
        until(lambda: any(base.heard[-1]))
    if cause == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    elif cause == "e_stop":
        base.stop.publish(Bool(data=True))
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and not list(tmp_path.iterdir()), said
    assert {**why, "Ctrl-C": "interrupted", "e_stop": "e_stop was pressed"}[cause] in said
    assert base.heard[-1] == (0.0, 0.0)
