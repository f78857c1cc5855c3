"""The monitor in a running graph: it names who is silent, and who speaks in another's place."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import Twist
from helpers.doctor import elsewhere_only
from helpers.graph.peer import Peer
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.cli import main
from edge_cloud_spec.health import Health, Level
from edge_cloud_spec.msg import Verdict, VerifiedTokens
from edge_cloud_spec.nodes.base_output import OutputSettings
from edge_cloud_spec.nodes.monitor import MonitorNode
from edge_cloud_spec.nodes.runtime.diagnostics import Diagnostics

OK, WARN, ERROR, STALE = (bytes([level]) for level in Level)

# Shorter than the defaults, so that the tests are quick.
GIVEN = ("-p", "nodes:=drafter navigator", "-p", "silence:=1.5", "-p", "startup:=2.0")


class Graph(Peer):
    """Stand-ins for a robot's nodes, their neighbours, and what was said on ``/diagnostics``."""

    def __init__(self) -> None:
        super().__init__("ears", args=("--ros-args", *GIVEN))
        self.others: list[Node] = []
        self.hear_diagnostics()

    def known(self) -> object:
        return {name: (status.level, status.message) for name, status in self.last.items()}

    def node(self, name: str, namespace: str = "/robot1", kind: Any = Node) -> Node:
        node: Node = kind(
            *([name] if kind is Node else []), namespace=namespace, context=self.context
        )
        self.others.append(node)
        self.executor_.add_node(node)
        return node

    def beating(self, name: str, **values: object) -> Node:
        node = self.node(name)
        diagnostics = Diagnostics(node)
        node.create_timer(0.2, lambda: diagnostics.show(Health(Level.OK, "fine", values=values)))
        return node

    def monitor(self, namespace: str = "/robot1") -> None:
        self.node("monitor", namespace, MonitorNode)

    def end(self, node: Node) -> None:
        self.others.remove(node)
        self.executor_.remove_node(node)
        node.destroy_node()

    def close(self) -> None:
        for node in [*self.others]:
            self.end(node)
        super().close()


@pytest.fixture
def graph() -> Iterator[Graph]:
    with Graph() as graph:
        yield graph


def test_silent_and_foreign_nodes_are_named_and_it_ends_when_they_do(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_cloud_spec.nodes.monitor.DOUBLED_S", 1.0)
    navigator, drafter = graph.beating("navigator"), graph.beating("drafter")
    own = navigator.create_publisher(Twist, "cmd_vel", 10)
    graph.monitor()
    graph.until(lambda: graph.says("/robot1/monitor", OK, "all nodes speak"))
    assert graph.last["/robot1/monitor"].hardware_id == "robot1"

    mallory = graph.node("mallory", "/")
    mallory.create_publisher(Twist, "/robot1/cmd_vel", 10)
    mallory.create_publisher(Verdict, "/robot1/verdict", 10)
    graph.until(lambda: graph.says("/robot1/monitor: /robot1/cmd_vel", ERROR, "/mallory"))
    graph.until(lambda: graph.says("/robot1/monitor", ERROR, "/mallory publishes on", "e_stop"))
    graph.until(lambda: graph.says("/robot1/monitor: /robot1/verdict", ERROR, "cloud_bridge"))
    graph.end(mallory)
    graph.until(lambda: graph.says("/robot1/monitor: /robot1/cmd_vel", OK))

    graph.executor_.remove_node(drafter)  # it hangs
    heartbeat = "/robot1/monitor: /robot1/drafter"
    graph.until(lambda: graph.says(heartbeat, STALE, "said nothing"))
    assert graph.says("/robot1/monitor: /robot1/navigator", OK)
    graph.executor_.add_node(drafter)
    graph.until(lambda: graph.says("/robot1/monitor", OK))
    graph.end(drafter)
    graph.until(lambda: graph.says(heartbeat, ERROR, "is gone"))
    assert own.get_subscription_count() == 0

    liar = graph.node("mallory", "/")
    lies = liar.create_publisher(DiagnosticArray, "/diagnostics", 10)
    lie = DiagnosticStatus(level=OK, name="/robot1/drafter", message="fine")
    lie.values = [KeyValue(key="instance", value="00000000")]
    liar.create_timer(0.2, lambda: lies.publish(DiagnosticArray(status=[lie])))
    graph.until(
        lambda: graph.says(heartbeat, ERROR, "in the name of /robot1/drafter", "not running")
    )
    graph.beating("drafter")  # the true one comes, and both speak
    graph.until(lambda: graph.says(heartbeat, ERROR, "two nodes", "end one of them"))
    graph.end(liar)
    graph.until(lambda: graph.says(heartbeat, OK))


def test_two_nodes_that_command_one_base_otherwise_are_named(graph: Graph) -> None:
    """As a guard whose zeros the driver drops, because only the navigator has ``stop_nudge``."""
    for name, nudge in (("navigator", 0.001), ("drafter", 0.0)):  # the two that are watched here
        graph.beating(name, output=OutputSettings(stop_nudge=nudge).text("base_link"))
    graph.monitor()
    said = ("/robot1/drafter has twist", "stop_nudge 0.0, base_link; /robot1/navigator has")
    graph.until(lambda: graph.says("/robot1/monitor: output", ERROR, *said))
    graph.until(lambda: graph.says("/robot1/monitor", ERROR, "the same output.* and base_frame"))


def test_what_is_missing_and_who_is_foreign_is_said_of_a_running_graph(
    launch: Callable[..., subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    launch(["-m", "edge_cloud_spec.nodes.navigator"], "-r", "__ns:=/robot1")
    with Peer("mallory") as neighbour, elsewhere_only():
        neighbour.until(lambda: neighbour.count_publishers("/robot1/nav_status"))
        neighbour.create_publisher(Verdict, "/robot1/verdict", 10)
        neighbour.create_publisher(String, "/robot1/instruction", qos_profile_sensor_data)
        neighbour.create_publisher(
            VerifiedTokens, "/robot1/verified_tokens", qos_profile_sensor_data
        )
        neighbour.create_publisher(CompressedImage, "/robot1/camera/compressed", 10)
        assert main(["doctor", "--live", "--seconds", "4"]) == 1
    lines = re.findall(r"^(ok|warn|fail) +(.+?): (.*)$", capsys.readouterr().out, re.MULTILINE)
    found = {check: (state, text) for state, check, text in lines}
    state, text = found["nodes of /robot1"]
    assert state == "fail" and "/robot1/cloud_bridge, /robot1/stop_guard is not running" in text
    assert found["heartbeat of /robot1/navigator"][0] == "ok"
    assert "nobody subscribes to /robot1/cmd_vel" in found["base of /robot1"][1]
    assert "/mallory publishes on" in found["publishers of /robot1/verdict"][1]
    assert "topic /robot1/instruction" not in found, "one of its ends fits"
    state, text = found["topic /robot1/verified_tokens"]
    assert state == "fail" and "best effort, and reliable is asked for" in text
    assert found["/robot1/navigator (robot1)"][0] == "ok"
    assert main(["doctor", "--live", "--seconds", "0"]) == 2
