"""The recorder beside a graph: every topic in the bag, in order at its end and on a full disk."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("rosbags")
from diagnostic_msgs.msg import DiagnosticArray
from helpers.graph.peer import Peer
from helpers.graph.ros_domain import ros_domain
from sensor_msgs.msg import Image
from std_msgs.msg import String

from edge_cloud_spec.bringup.exits import Role
from edge_cloud_spec.bringup.graph import graph
from edge_cloud_spec.bringup.launch_arguments import ARGUMENTS, default_text, settings_of
from edge_cloud_spec.cli import main
from edge_cloud_spec.nodes.runtime.qos import SENSOR_DATA
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec_lab.bags.bag import Bag
from edge_cloud_spec_lab.running.running_graph import command


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    with ros_domain() as domain:
        yield domain


class Robot(Peer):
    """A node that publishes every topic of the table in a namespace, twenty times a second."""

    def __init__(self, namespace: str = "", size: int = 10) -> None:
        super().__init__("robot", namespace)
        self.publishers_ = {
            topic: self.create_publisher(kind, topic, qos) for topic, (kind, qos) in TOPICS.items()
        }
        self.publishers_["run_info"].publish(String(data=json.dumps({"target": "the target"})))
        self._raw = self.create_publisher(Image, "camera/image_raw", SENSOR_DATA)
        self._size, self.count = size, 0
        self.create_timer(0.05, self._publish)

    def _publish(self) -> None:
        self.count += 1
        self._raw.publish(Image())  # which no bag has beside the compressed pictures
        for topic in TOPICS.keys() - {"run_info"}:
            message = TOPICS[topic][0]()
            if topic == "camera/image_raw/compressed":
                message.data = os.urandom(self._size)
            self.publishers_[topic].publish(message)


def record(module: str, *options: str, limit: int = resource.RLIM_INFINITY) -> Popen[str]:
    """A recorder whose files may have so many bytes, as on a disk that has no more."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", f"edge_cloud_spec.{module}", *options]
    return Popen(command, stdout=PIPE, stderr=PIPE, text=True, preexec_fn=limited)


def test_every_topic_of_a_namespaced_robot_is_in_the_bag(tmp_path: Path) -> None:
    recorder = record("cli", "record", "--out", str(tmp_path / "bag"), "--namespace", "robot1")
    with Robot("/robot1") as one:
        one.until(lambda: all(p.get_subscription_count() for p in one.publishers_.values()))
        one.match("recorder")
        one.spin(1.5)  # it looks for a raw camera each second
        recorder.send_signal(signal.SIGINT)
        said, errors = recorder.communicate()
    assert recorder.returncode == 0 and "recorded" in said, errors
    bag = Bag(tmp_path / "bag")
    expected = {t if t.startswith("/") else f"/robot1/{t}" for t in TOPICS}
    assert set(bag.topics) == expected
    [(_, _, noted)] = bag.read({"run_info": "/robot1/run_info"})
    assert json.loads(noted.data)["target"] == "the target"


def test_a_full_disk_ends_the_command_with_a_sentence_the_node_stays_and_nobody_is_disturbed(
    tmp_path: Path,
) -> None:
    command = record("cli", "record", "--out", str(tmp_path / "command"), limit=2_500_000)
    folder = ("--ros-args", "-p", f"folder:={tmp_path / 'node'}")
    node = record("observe.recorder", *folder, limit=2_500_000)
    with Robot("", 120_000) as one:
        one.until(lambda: command.poll() is not None)
        said = one.collect(DiagnosticArray, "/diagnostics", 10)
        one.until(lambda: any("the bag so far" in s.message for m in said for s in m.status))
        before = one.count
        one.until(lambda: one.count > before + 3)  # still at work
    _, errors = command.communicate()
    assert command.returncode == 2
    sentences = [line for line in errors.splitlines() if "error: " in line]
    assert len(sentences) == 1 and re.search(r"File too large; the bag so far .* can be", errors)
    assert "Traceback" not in errors
    assert node.poll() is None
    node.send_signal(signal.SIGINT)
    node.communicate(timeout=60)
    assert node.returncode == 0
    for bag in tmp_path.iterdir():
        assert sum(1 for _ in Bag(bag).read({"camera": "/camera/image_raw/compressed"})) > 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--namespace", "a b"), "namespace must be letters, digits and _"),
        (("--seconds", "nan"), "--seconds is 0 or more, not nan"),
        (("--seconds", "-1"), "--seconds is 0 or more, not -1"),
        (("--out", f"{__file__}/bag"), "nothing can be recorded to "),
    ],
)
def test_an_option_that_cannot_be_is_one_sentence(
    options: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "--out", str(tmp_path / "bag"), *options]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {said}") and errors.count("\n") == 1


def test_the_launch_argument_starts_a_recorder_whose_end_ends_nothing_else(tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    given = {name: default_text(name) for name in ARGUMENTS}
    assert "recorder" not in [spec.name for spec in graph(settings_of(given))]
    settings = settings_of({**given, "record": str(bag), "namespace": "robot1"})
    [spec] = [spec for spec in graph(settings) if spec.name == "recorder"]
    assert spec.role is Role.OPTIONAL
    assert command(spec, settings)[2] == "edge_cloud_spec.observe.recorder"
    assert ("folder", str(bag)) in spec.parameters and spec.namespace == "robot1"
