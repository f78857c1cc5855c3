"""Transforms of the simulator: the camera's once and latched, the base's with odometry."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
from helpers.graph.peer import Peer, closed_after
from nav_msgs.msg import Odometry

from edge_cloud_spec.lab.simulator.simulator import NO_TRANSFORMS
from edge_cloud_spec.nodes.runtime.qos import LATCHED, RELIABLE, SENSOR_DATA

SIMULATOR = "from edge_cloud_spec.lab.simulator.simulator import main; raise SystemExit(main())"
MISSING = "import sys; sys.modules['tf2_msgs'] = None; "


class Late(Peer):
    """Hears odometry from the start; transforms only from when it is told to."""

    def __init__(self) -> None:
        super().__init__("late")
        self.odometry = self.collect(Odometry, "odom", SENSOR_DATA)


@pytest.fixture
def late() -> Iterator[Late]:
    with closed_after(Late()) as late:
        yield late


@pytest.fixture
def simulator(late: Late) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def begin(program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, "--ros-args", "-p", "renderer:=rays"]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        late.until(lambda: late.odometry)
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_without_tf2_msgs_it_is_said_that_there_are_no_transforms(
    late: Late, simulator: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = simulator(MISSING + SIMULATOR)
    late.until(lambda: len(late.odometry) > 20)
    names = {name for name, _ in late.get_topic_names_and_types()}
    assert not {"/tf", "/tf_static"} & names
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.count(NO_TRANSFORMS) == 1


def test_the_cameras_transform_is_latched_and_the_bases_follows_odometry(
    late: Late, simulator: Callable[[str], subprocess.Popen[str]]
) -> None:
    reason = "tf2_msgs is not on the package index; a full ROS has it"
    kind = pytest.importorskip("tf2_msgs.msg", reason=reason).TFMessage
    simulator(SIMULATOR)
    late.until(lambda: len(late.odometry) > 20)
    fixed = late.collect(kind, "/tf_static", LATCHED)
    moving = late.collect(kind, "/tf", RELIABLE)
    late.until(lambda: fixed and len(moving) > 20)
    assert len(fixed) == 1
    [camera] = fixed[0].transforms
    assert (camera.header.frame_id, camera.child_frame_id) == ("base_link", "camera_optical_frame")
    for message in moving:
        [base] = message.transforms
        assert (base.header.frame_id, base.child_frame_id) == ("odom", "base_link")
    stamps = [m.header.stamp for m in late.odometry]
    assert moving[0].transforms[0].header.stamp in stamps
