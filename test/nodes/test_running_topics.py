"""The real graph, with the simulator and the embedded pair: every topic as the table says.

``edge-cloud-spec view`` watches the same run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco")
from helpers.graph.peer import Peer
from rclpy.qos import DurabilityPolicy
from rclpy.time import Time
from std_msgs.msg import Bool, String

from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.bringup.running_graph import LaunchConfig, free_address, launch_graph
from edge_cloud_spec.lab.sim.room import make_room
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nodes.topics import DRAWN, TOPICS

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "target").is_dir(), reason="the embedded pair is not in this checkout"
)
EVERY = {**TOPICS, **DRAWN}
OPERATORS = {"instruction": String, "e_stop": Bool}
VIEWED = 3  # decisions whose words the viewer must show
ELSEWHERE = frozenset({"rviz2", "robot_state_publisher"})  # a full ROS has them


class Listener(Peer):
    """Subscribes to every topic as the table says, counts what comes, and is the operator."""

    def __init__(self, domain: int) -> None:
        super().__init__("listener", domain=domain)
        self.heard = {topic: self.collect(kind, topic, qos) for topic, (kind, qos) in EVERY.items()}
        self.operator = {
            topic: self.create_publisher(kind, topic, 10) for topic, kind in OPERATORS.items()
        }

    def known(self) -> object:
        return f"silent: {sorted(topic for topic, heard in self.heard.items() if not heard)}"

    def decisions(self) -> int:
        """That have ended."""
        return sum(message.finished for message in self.heard["verified_tokens"])

    def publishers_of(self, topic: str) -> list[Any]:
        """All but our own."""
        found = self.get_publishers_info_by_topic(f"/{topic.lstrip('/')}")
        return [info for info in found if info.node_name != "listener"]

    def subscribers(self, topic: str) -> set[str]:
        found = self.get_subscriptions_info_by_topic(f"/{topic}")
        return {info.node_name for info in found}

    def connected(self) -> set[str]:
        """Who hears the operator. A name only says that a node is there: what is published
        before the publisher has found it is lost, and only the count tells."""
        fit: dict[str, list[Any]] = {}
        for topic, publisher in self.operator.items():
            fit[topic] = [
                info
                for info in self.get_subscriptions_info_by_topic(topic)
                # Stops are subscribed to as latched, too, which what is not latched never matches.
                if info.qos_profile.durability != DurabilityPolicy.TRANSIENT_LOCAL
            ]
            if publisher.get_subscription_count() < len(fit[topic]):
                return set()
        return set.intersection(*({info.node_name for info in each} for each in fit.values()))


@dataclass(frozen=True)
class Seen:
    """A run: what came on each topic, who publishes it, and the file of ``view``, if any.

    ``since``: when ``view`` surely heard the drafter, ns; frames of later decisions are newer.
    """

    heard: dict[str, list[Any]]
    publishers: dict[str, list[Any]]
    viewed: Path | None
    since: int


def answers_shown(viewed: Path) -> Counter[str]:
    """The answers that the viewer has shown. What is published before its subscriptions have
    matched is lost to it, and no listing of the graph tells when they have."""
    from helpers.rerun_file import lines, read_rows

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file has not ended
        try:
            rows = read_rows(viewed)
        except (RuntimeError, ValueError):  # half of a batch is written, or nothing
            return Counter()
    told = lines(rows.get("/tokens", []))
    return Counter(text.partition(": ")[2] for level, text in told if level == "answer")


def answers_since(heard: dict[str, list[Any]], since: int) -> Counter[str]:
    """The answers of the decisions that began after that, with their statistics."""
    counted = {m.request_id for m in heard["decode_stats"]}  # without which none is shown
    finished = [m for m in heard["verified_tokens"] if m.finished and m.request_id in counted]
    return Counter(m.answer for m in finished if Time.from_msg(m.header.stamp).nanoseconds > since)


@contextmanager
def viewing(domain: int, path: Path) -> Iterator[Path | None]:
    """``edge-cloud-spec view --save`` of this domain, until the context is left."""
    if find_spec("rerun") is None:  # it has no build for Python 3.10
        yield None
        return
    command = [sys.executable, "-m", "edge_cloud_spec.cli", "view", "--save", str(path)]
    process = subprocess.Popen(command, env={**os.environ, "ROS_DOMAIN_ID": str(domain)})
    try:
        yield path
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, domain: int) -> Iterator[Seen]:
    """A run of one instruction, an e_stop at its end."""
    # fsd: its early exits make predictions
    settings = GraphSettings(preset="fsd", seed=0, rviz=True, local_address=free_address())
    config = LaunchConfig(settings, {"simulator": {"renderer": "rays"}}, left_out=ELSEWHERE)
    folder = tmp_path_factory.mktemp("graph")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))  # launch_graph sets it: put back at the end
        with (
            launch_graph(config, folder, None) as running,
            viewing(running.domain, folder / "run.rrd") as viewed,
        ):
            node = Listener(running.domain)
            audience = {"listener", "navigator", "drafter"} | ({"viewer"} if viewed else set())
            node.until(lambda: audience <= node.connected())
            node.until(lambda: audience - {"drafter"} <= node.subscribers("verified_tokens"))
            node.operator["instruction"].publish(String(data=make_room(0).instruction))
            node.until(lambda: all(node.heard[t] for t in EVERY if t not in ("e_stop", "path")))
            while viewed and not answers_shown(viewed):
                ended = node.decisions()
                node.until(lambda ended=ended: node.decisions() > ended)
            since = node.get_clock().now().nanoseconds
            node.until(lambda: answers_since(node.heard, since).total() >= VIEWED)
            node.operator["e_stop"].publish(Bool(data=True))
            node.until(lambda: all(node.heard.values()))
            if viewed:  # it may be behind
                node.until(lambda: not answers_since(node.heard, since) - answers_shown(viewed))
            publishers = {topic: node.publishers_of(topic) for topic in EVERY}
        yield Seen(node.heard, publishers, viewed, since)
        node.close()


def test_every_topic_has_messages_of_its_type_in_a_run(
    run: Seen,
) -> None:
    for topic, messages in run.heard.items():
        assert messages, topic
        assert type(messages[0]) is EVERY[topic][0], topic


def test_every_publisher_has_the_tables_type_and_quality(
    run: Seen,
) -> None:
    for topic, found in run.publishers.items():
        kind, qos = EVERY[topic]
        assert found or topic in OPERATORS, f"no node publishes {topic}"
        for info in found:
            assert info.topic_type == f"{kind.__module__.partition('.')[0]}/msg/{kind.__name__}"
            ours = (info.qos_profile.reliability, info.qos_profile.durability)
            assert ours == (qos.reliability, qos.durability), (topic, info.node_name)


def test_the_annotated_picture_has_the_cameras_stamp_and_the_words_below_it(
    run: Seen,
) -> None:
    heard = run.heard
    stamps = {(m.header.stamp.sec, m.header.stamp.nanosec) for m in heard["image_annotated"]}
    taken = {
        (m.header.stamp.sec, m.header.stamp.nanosec) for m in heard["camera/image_raw/compressed"]
    }
    assert stamps & taken
    picture = heard["image_annotated"][-1]
    assert (picture.encoding, picture.step) == ("rgb8", 3 * picture.width)
    assert len(picture.data) == picture.step * picture.height
    assert picture.height > picture.width  # the simulator's pictures are square; words are below


def test_the_viewer_shows_the_words_of_the_running_graph(run: Seen) -> None:
    if run.viewed is None:
        pytest.skip("Rerun has no build for this Python")
    from helpers.rerun_file import lines, read_rows, states

    rows = read_rows(run.viewed)
    answers, told = answers_since(run.heard, run.since), lines(rows["/tokens"])
    assert answers and not answers - answers_shown(run.viewed)
    levels = [level for level, _ in told]
    assert "not received" not in levels[levels.index("answer") :]
    assert f"instruction: {make_room(0).instruction}" in [
        text for _, text in lines(rows["/log/operator"])
    ]
    lanes = {path.rpartition("/")[2][2:]: states(found) for path, found in rows.items()}
    for lane in ("decision", "robot_drafts", "cloud_verifies", "robot_moves"):
        assert any(text for _, text in lanes[lane]), lane
    missing = {"/camera", "/words", "/map/robot", "/map/room/names/0"} - rows.keys()
    assert not missing
