"""The real graph, with the simulator and the embedded pair: every topic as the table says.

A mission's end is asked for as a goal by rclpy's own client.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco")
from action_msgs.msg import GoalStatus
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import worker_of
from helpers.graph.nodes_here import graph_here
from helpers.graph.peer import Peer
from helpers.sros2_policy import Policy
from rclpy.action import ActionClient
from std_msgs.msg import Bool, String

from edge_cloud_spec.action import NavigateByInstruction
from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nav import status
from edge_cloud_spec.nodes.runtime.qos import EACH_STATE, LATCHED
from edge_cloud_spec.nodes.topics import DRAWN, TOPICS
from edge_cloud_spec_lab.running.running_graph import LaunchConfig, launch_graph
from edge_cloud_spec_lab.sim.room import make_room

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "target").is_dir(), reason="the embedded pair is not in this checkout"
)
EVERY = {**TOPICS, **DRAWN}
POLICY = Path(__file__).resolve().parents[2] / "docs/sros2/policy.xml"
OPERATORS = {"instruction": String, "e_stop": Bool}
ABSENT = "find the silver bottle"
FRAMES = 2  # of a search
ELSEWHERE = frozenset({"rviz2", "robot_state_publisher"})  # a full ROS has them
HERE = frozenset({"drafter"})  # as a process it would import torch and transformers


class Listener(Peer):
    """Subscribes to every topic as the table says, counts what comes, and is the operator."""

    def __init__(self, domain: int) -> None:
        super().__init__("listener", domain=domain)
        self.heard = {
            topic: self.collect(kind, topic, EACH_STATE if qos is LATCHED else qos)
            for topic, (kind, qos) in EVERY.items()
        }
        self.client = ActionClient(self, NavigateByInstruction, "navigate_by_instruction")
        self.operator = {
            topic: self.create_publisher(kind, topic, 10) for topic, kind in OPERATORS.items()
        }

        self.reply: Any = None  # to a goal

    @property
    def told_of_goals(self) -> list[str]:
        """The lines of instruction_status so far."""
        return [
            str(status.GoalStatus.read(message)) for message in self.heard["instruction_status"]
        ]

    def known(self) -> object:
        return f"silent: {sorted(topic for topic, heard in self.heard.items() if not heard)}"

    def result(self, instruction: str) -> Any:
        """The reply to a goal, once it is over."""
        self.until(self.client.server_is_ready)
        sent = self.client.send_goal_async(NavigateByInstruction.Goal(instruction=instruction))
        self.until(sent.done)
        reply = sent.result().get_result_async()
        self.until(reply.done, 240.0)
        return reply.result()

    def publishers_of(self, topic: str) -> list[Any]:
        """All but our own."""
        found = self.get_publishers_info_by_topic(f"/{topic.lstrip('/')}")
        return [info for info in found if info.node_name != "listener"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, domain: int) -> Iterator[Listener]:
    """A goal that cannot be reached, then an instruction, and an e_stop at its end."""
    parameters = {
        "simulator": {"renderer": "rays", "camera_rate": 5.0},
        "drafter": {"mission.search_frames": FRAMES},
    }
    with pytest.MonkeyPatch.context() as patch, Cloud(worker_of()) as cloud:
        patch.setenv("ROS_DOMAIN_ID", str(domain))  # launch_graph sets it: put back at the end
        # fsd: its early exits make predictions
        settings = GraphSettings(preset="fsd", seed=0, scan="scan", rviz=True, cloud=cloud.address)
        config = LaunchConfig(settings, parameters, left_out=ELSEWHERE)
        others = frozenset(spec.name for spec in config.specs) - HERE
        with (
            launch_graph(
                replace(config, left_out=ELSEWHERE | HERE), tmp_path_factory.mktemp("graph"), None
            ) as running,
            graph_here(replace(config, left_out=ELSEWHERE | others)),
            Listener(running.domain) as node,
        ):
            node.match(*(name for spec in config.specs for name in spec.nodes or (spec.name,)))
            node.reply = node.result(ABSENT)
            node.until(lambda: any("not_found" in told for told in node.told_of_goals))
            following, operator = make_room(0).instruction, node.operator["instruction"]
            hearers = node.count_subscribers("instruction")
            node.until(lambda: operator.get_subscription_count() == hearers)
            operator.publish(String(data=following))
            words = node.heard["verified_tokens"]
            node.until(lambda: any(each.instruction == following for each in words))
            node.until(lambda: all(node.heard[t] for t in EVERY if t not in ("e_stop", "path")))
            node.operator["e_stop"].publish(Bool(data=True))
            node.until(lambda: all(node.heard.values()))
            yield node


def test_what_is_not_in_the_room_is_not_found_within_the_frames_of_a_search(run: Listener) -> None:
    reply, said = run.reply, f"{ABSENT}: not seen on {FRAMES} frames all around"
    assert (reply.status, reply.result.outcome) == (GoalStatus.STATUS_ABORTED, "not_found")
    assert reply.result.message == said and reply.result.decisions >= FRAMES - 1
    told = run.told_of_goals
    after = told[told.index(f"not_found {said}") :]
    assert any(line.startswith("following") for line in after), f"the next begins anew: {after}"


def test_no_node_says_hears_or_serves_what_the_security_policy_does_not_allow(
    run: Listener,
) -> None:
    policy = Policy(POLICY)
    seen = {name for name, _ in run.get_node_names_and_namespaces()} & policy.nodes.keys()
    assert {"drafter", "cloud_bridge", "navigator", "instruction_server"} <= seen
    questions = {
        "publish": run.get_publisher_names_and_types_by_node,
        "subscribe": run.get_subscriber_names_and_types_by_node,
        "reply": run.get_service_names_and_types_by_node,
        "request": run.get_client_names_and_types_by_node,
    }
    for name in seen:
        for verb, ask in questions.items():
            names = {topic for topic, _ in ask(name, "/")}
            assert not policy.refused(name, verb, names), (name, verb)


def test_every_topic_has_messages_of_its_type_in_a_run_and_publishers_of_the_tables_quality(
    run: Listener,
) -> None:
    for topic, (kind, qos) in EVERY.items():
        assert type(run.heard[topic][0]) is kind, topic
        found = run.publishers_of(topic)
        assert found or topic in OPERATORS, f"no node publishes {topic}"
        for info in found:
            assert info.topic_type == f"{kind.__module__.partition('.')[0]}/msg/{kind.__name__}"
            ours = (info.qos_profile.reliability, info.qos_profile.durability)
            assert ours == (qos.reliability, qos.durability), (topic, info.node_name)


def test_the_annotated_picture_has_the_cameras_stamp_and_the_words_below_it(run: Listener) -> None:
    taken, drawn = run.heard["camera/image_raw/compressed"], run.heard["image_annotated"]

    def is_drawn() -> bool:
        stamps = [each.header.stamp for each in taken]
        return any(picture.header.stamp in stamps for picture in drawn)

    run.until(is_drawn)  # best effort: of a picture that was not received, the drawing may be
    picture = drawn[-1]
    assert (picture.encoding, picture.step) == ("rgb8", 3 * picture.width)
    assert len(picture.data) == picture.step * picture.height
    assert picture.height > picture.width  # the simulator's pictures are square; words are below
