"""The recorder beside a graph: every topic in the bag, in order at its end and on a full disk."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("rosbags")
from diagnostic_msgs.msg import DiagnosticArray
from helpers.graph.peer import Peer
from helpers.graph.ros_domain import ros_domain
from sensor_msgs.msg import Image
from std_msgs.msg import String

from edge_cloud_spec.bringup.exits import Role
from edge_cloud_spec.bringup.graph import command, graph
from edge_cloud_spec.bringup.launch_arguments import ARGUMENTS, default_text, settings_of
from edge_cloud_spec.cli import main
from edge_cloud_spec.nodes.runtime.qos import SENSOR_DATA
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec.observe.bag import Bag


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


def record(*options: str, module: str = "cli", limit: int = 0) -> subprocess.Popen[str]:
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", f"edge_cloud_spec.{module}", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited if limit else None,
    )


def test_every_topic_of_a_namespaced_robot_is_in_the_bag(tmp_path: Path) -> None:
    recorder = record("record", "--out", str(tmp_path / "bag"), "--namespace", "robot1")
    with Robot("/robot1") as one:
        one.until(lambda: all(p.get_subscription_count() for p in one.publishers_.values()))
        one.spin(2.5)  # it looks for a raw camera each second
        recorder.send_signal(signal.SIGINT)
        said, errors = recorder.communicate()
    assert recorder.returncode == 0 and "recorded" in said, errors
    bag = Bag(tmp_path / "bag")
    expected = {t if t.startswith("/") else f"/robot1/{t}" for t in TOPICS}
    assert set(bag.topics) == expected
    [(_, _, _, noted)] = bag.read(["robot1/run_info"])
    assert json.loads(noted.data)["target"] == "the target"


def test_a_graph_that_is_silent_is_no_recording(tmp_path: Path) -> None:
    recorder = record("record", "--out", str(tmp_path / "bag"), "--seconds", "0.1")
    said, _ = recorder.communicate()
    assert recorder.returncode in (0, 1)
    if recorder.returncode:  # its own diagnostics may be heard
        assert "nothing was published" in said


def test_a_full_disk_is_one_sentence_and_disturbs_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    recorder = record("record", "--out", str(folder), limit=2_500_000)
    with Robot("", 60_000) as one:
        one.until(lambda: recorder.poll() is not None)
        before = one.count
        one.until(lambda: one.count > before + 3)  # still at work
    _, errors = recorder.communicate()
    assert recorder.returncode == 2
    sentences = [line for line in errors.splitlines() if "error: " in line]
    assert len(sentences) == 1 and re.search(r"File too large; the bag so far .* can be", errors)
    assert "Traceback" not in errors
    assert sum(1 for _ in Bag(folder).read(["camera/image_raw/compressed"])) > 5


def test_the_recorder_node_of_a_graph_stays_and_says_what_became_of_its_disk(
    tmp_path: Path,
) -> None:
    recorder = record(
        *("--ros-args", "-p", f"folder:={tmp_path / 'bag'}"),
        module="observe.recorder",
        limit=2_500_000,
    )
    with Robot("", 60_000) as one:
        said = one.collect(DiagnosticArray, "/diagnostics", 10)
        one.until(lambda: any("the bag so far" in s.message for m in said for s in m.status))
    assert recorder.poll() is None
    recorder.send_signal(signal.SIGINT)
    recorder.communicate(timeout=60)
    assert recorder.returncode == 0
    assert Bag(tmp_path / "bag").topics


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options, module in (
        (("record", "--out", str(tmp_path / "file/bag")), "cli"),
        (("--ros-args", "-p", f"folder:={tmp_path / 'file/bag'}"), "observe.recorder"),
    ):
        recorder = record(*options, module=module)
        _, errors = recorder.communicate(timeout=60)
        assert recorder.returncode == 2
        assert errors.startswith("error: nothing can be recorded to ") and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--namespace", "a b"), "namespace must be letters, digits and _"),
        (("--seconds", "nan"), "--seconds is 0 or more, not nan"),
        (("--seconds", "-1"), "--seconds is 0 or more, not -1"),
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
