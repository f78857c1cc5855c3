"""`doctor --live` beside real nodes: a navigator in a namespace, and neighbours with faults."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

rclpy = pytest.importorskip("rclpy")
from helpers.doctor import elsewhere_only  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import qos_profile_sensor_data  # noqa: E402
from sensor_msgs.msg import CompressedImage  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from edge_cloud_spec.cli import main  # noqa: E402
from edge_cloud_spec.msg import Verdict  # noqa: E402

PATIENCE = 60.0  # s; only a hung test takes that long


@pytest.fixture
def neighbour() -> Iterator[Node]:
    context = Context()
    rclpy.init(context=context)
    node = Node("mallory", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.fixture
def navigator(neighbour: Node) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "edge_cloud_spec.nodes.navigator", "--ros-args"]
    process = subprocess.Popen([*command, "-r", "__ns:=/robot1"])
    end = time.monotonic() + PATIENCE
    while not neighbour.count_publishers("/robot1/nav_status"):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    yield process
    process.terminate()
    process.wait(PATIENCE)


def look(file: Path, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit status, and (state, what was found) of each check of the graph."""
    with elsewhere_only():
        status = main(["doctor", "--live", *arguments, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    return status, {row["check"]: (row["state"], row["found"]) for row in rows}


def test_what_is_missing_and_who_is_foreign_is_said_of_a_running_graph(
    navigator: subprocess.Popen[bytes], neighbour: Node, tmp_path: Path
) -> None:
    neighbour.create_publisher(Verdict, "/robot1/verdict", 10)
    neighbour.create_publisher(String, "/robot1/instruction", qos_profile_sensor_data)
    neighbour.create_publisher(CompressedImage, "/robot1/camera/compressed", 10)
    status, found = look(tmp_path / "doctor.json", "--seconds", "4")
    assert status == 1
    state, text = found["nodes of /robot1"]
    assert state == "fail" and "/robot1/drafter, /robot1/cloud_bridge is not running" in text
    assert found["heartbeat of /robot1/navigator"][0] == "ok"
    assert "nobody listens on /robot1/cmd_vel" in found["base of /robot1"][1]
    assert "/mallory publishes on" in found["publishers of /robot1/verdict"][1]
    state, text = found["topic /robot1/instruction"]
    assert state == "fail" and "best effort, and reliable is asked for" in text
    assert found["/robot1/navigator (robot1)"][0] == "ok"
    status, found = look(tmp_path / "other.json", "--namespace", "robot2", "--seconds", "5")
    assert status == 1 and "there are some in /robot1" in found["graph"][1]


def test_an_empty_domain_is_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "232")
    status, found = look(tmp_path / "doctor.json", "--seconds", "1")
    assert status == 1 and "no node of ours in ROS domain 232" in found["graph"][1]
    assert main(["doctor", "--live", "--seconds", "0"]) == 2
