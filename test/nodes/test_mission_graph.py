"""A mission's end in the whole running graph, asked for as a goal by rclpy's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco")

from action_msgs.msg import GoalStatus
from helpers.graph.peer import Peer
from helpers.sros2_policy import Policy
from rclpy.action import ActionClient
from rclpy.node import Node

from edge_cloud_spec.action import NavigateByInstruction
from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.bringup.running_graph import LaunchConfig, free_address, launch_graph
from edge_cloud_spec.lab.sim.room import make_room
from edge_cloud_spec.nav.mission import MissionSettings

ROOT = Path(__file__).resolve().parents[2]
ABSENT = "silver bottle"


class Client(Peer):
    """An action client in the graph's domain."""

    def __init__(self, domain: int) -> None:
        super().__init__("operator", domain=domain)
        self.client = ActionClient(self, NavigateByInstruction, "navigate_by_instruction")

    def result(self, instruction: str) -> Any:
        """The reply to a goal, once it is over."""
        self.until(self.client.server_is_ready)
        sent = self.client.send_goal_async(NavigateByInstruction.Goal(instruction=instruction))
        self.until(sent.done)
        reply = sent.result().get_result_async()
        self.until(reply.done, 240.0)
        return reply.result()


def strangers_to_the_policy(node: Node) -> dict[str, set[str]]:
    """What the graph's nodes publish, hear and serve that docs/sros2/policy.xml does not allow."""
    policy, strangers = Policy(ROOT / "docs/sros2/policy.xml"), dict[str, set[str]]()
    seen = [name for name, _ in node.get_node_names_and_namespaces() if name in policy.nodes]
    assert {"drafter", "cloud_bridge", "navigator", "instruction_server"} <= set(seen)
    questions = {
        "publish": node.get_publisher_names_and_types_by_node,
        "subscribe": node.get_subscriber_names_and_types_by_node,
        "reply": node.get_service_names_and_types_by_node,
        "request": node.get_client_names_and_types_by_node,
    }
    for name in set(seen):
        for verb, ask in questions.items():
            names = {topic for topic, _ in ask(name, "/")}
            if name == "operator":
                continue  # this test's own
            if refused := policy.refused(name, verb, names):
                strangers[f"{name}: {verb}"] = refused
    return strangers


def test_what_is_not_in_the_room_is_not_found_within_the_frames_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "")  # the graph takes a free one, and sets both
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "")
    room = make_room(0)
    assert ABSENT not in {thing.name for thing in room.things}
    config = LaunchConfig(GraphSettings(seed=0, local_address=free_address()))
    with launch_graph(config, tmp_path, None) as running:
        client = Client(running.domain)
        reply = client.result(f"find the {ABSENT}")
        assert (reply.status, reply.result.outcome) == (GoalStatus.STATUS_ABORTED, "not_found")
        frames = MissionSettings().search_frames
        said = f"find the {ABSENT}: not seen on {frames} frames all around"
        assert reply.result.message == said and reply.result.decisions >= frames - 1
        observer = running.observer
        line = f"not_found {said}"
        client.until(lambda: observer.read(lambda log: str(log.instruction_status)) == line)
        decided = observer.read(lambda log: len(log.decisions))
        observer.publish_instruction(room.instruction)  # the next one begins anew
        client.until(lambda: observer.read(lambda log: len(log.decisions)) > decided)
        assert observer.read(lambda log: log.instruction_status.state) == "following"
        assert not strangers_to_the_policy(observer.node)
        client.close()
