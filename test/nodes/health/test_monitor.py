"""The monitor in a running graph: it names who is silent, and who speaks in another's place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

rclpy = pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue  # noqa: E402
from geometry_msgs.msg import Twist  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402

from edge_cloud_spec.msg import Verdict  # noqa: E402
from edge_cloud_spec.nodes.health import Health, Level  # noqa: E402
from edge_cloud_spec.nodes.monitor import MonitorNode  # noqa: E402
from edge_cloud_spec.nodes.runtime.diagnostics import Diagnostics  # noqa: E402

PATIENCE = 60.0  # s; only a hung test takes that long
OK, WARN, ERROR, STALE = (bytes([level]) for level in Level)

# Shorter than the defaults, so that the tests are quick.
GIVEN = ("-p", "nodes:=drafter navigator", "-p", "silence:=1.5", "-p", "startup:=2.0")


class Graph:
    """Stand-ins for a robot's nodes, their neighbours, and what was said on ``/diagnostics``."""

    def __init__(self, executor: SingleThreadedExecutor, context: Context) -> None:
        self.executor, self.context = executor, context
        self.nodes: list[Node] = []
        self.last: dict[str, DiagnosticStatus] = {}
        ears = self.node("ears", "/")
        ears.create_subscription(DiagnosticArray, "/diagnostics", self._hear, 100)

    def node(self, name: str, namespace: str = "/robot1") -> Node:
        self.nodes.append(Node(name, namespace=namespace, context=self.context))
        self.executor.add_node(self.nodes[-1])
        return self.nodes[-1]

    def beating(self, name: str, namespace: str = "/robot1") -> Node:
        node = self.node(name, namespace)
        diagnostics = Diagnostics(node)
        node.create_timer(0.2, lambda: diagnostics.show(Health(Level.OK, "fine")))
        return node

    def end(self, node: Node) -> None:
        self.nodes.remove(node)
        self.executor.remove_node(node)
        node.destroy_node()

    def _hear(self, message: DiagnosticArray) -> None:
        self.last.update({status.name: status for status in message.status})

    def until(self, what: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end, {n: (s.level, s.message) for n, s in self.last.items()}
            self.executor.spin_once(timeout_sec=0.05)

    def says(self, name: str, level: bytes, *words: str) -> bool:
        status = self.last.get(name)
        return (
            status is not None
            and status.level == level
            and all(word in status.message for word in words)
        )


@pytest.fixture
def graph() -> Iterator[Graph]:
    context = Context()
    rclpy.init(context=context, args=["--ros-args", *GIVEN])
    executor = SingleThreadedExecutor(context=context)
    graph = Graph(executor, context)
    yield graph
    executor.shutdown()
    for node in graph.nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


def monitor(graph: Graph, namespace: str = "/robot1") -> None:
    node = MonitorNode(context=graph.context, namespace=namespace)
    graph.nodes.append(node)
    graph.executor.add_node(node)


def test_silent_and_foreign_nodes_are_named_and_it_ends_when_they_do(graph: Graph) -> None:
    navigator, drafter = graph.beating("navigator"), graph.beating("drafter")
    own = navigator.create_publisher(Twist, "cmd_vel", 10)
    monitor(graph)
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

    graph.executor.remove_node(drafter)  # it hangs
    graph.until(lambda: graph.says("/robot1/monitor: /robot1/drafter", STALE, "said nothing"))
    assert graph.says("/robot1/monitor: /robot1/navigator", OK)
    graph.executor.add_node(drafter)
    graph.until(lambda: graph.says("/robot1/monitor", OK))
    graph.end(drafter)
    graph.until(lambda: graph.says("/robot1/monitor: /robot1/drafter", ERROR, "is gone"))
    assert own.get_subscription_count() == 0


def test_a_neighbour_that_says_a_dead_nodes_diagnostics_is_found(graph: Graph) -> None:
    graph.beating("navigator")
    liar = graph.node("mallory", "/")
    lies = liar.create_publisher(DiagnosticArray, "/diagnostics", 10)
    lie = DiagnosticStatus(level=OK, name="/robot1/drafter", message="fine")
    lie.values = [KeyValue(key="instance", value="00000000")]
    liar.create_timer(0.2, lambda: lies.publish(DiagnosticArray(status=[lie])))
    monitor(graph)
    name = "/robot1/monitor: /robot1/drafter"
    graph.until(lambda: graph.says(name, ERROR, "in the name of /robot1/drafter", "not running"))
    graph.beating("drafter")  # the true one comes, and both speak
    graph.until(lambda: graph.says(name, ERROR, "two nodes", "end one of them"))
    graph.end(liar)
    graph.until(lambda: graph.says(name, OK))


def test_two_robots_do_not_mix(graph: Graph) -> None:
    """Robot 1 is whole; all that robot 2 has is a monitor, and a neighbour on robot 1's topic."""
    for name in ("drafter", "navigator"):
        graph.beating(name)
    monitor(graph)
    monitor(graph, "/robot2")
    graph.until(lambda: graph.says("/robot1/monitor", OK, "all nodes speak"))
    graph.until(lambda: graph.says("/robot2/monitor", ERROR, "/robot2/drafter is not running"))
    assert graph.says("/robot1/monitor", OK)
    assert {graph.last[f"/robot{i}/monitor"].hardware_id for i in (1, 2)} == {"robot1", "robot2"}
    graph.node("navigator", "/robot2").create_publisher(Twist, "/robot1/cmd_vel", 10)
    graph.until(lambda: graph.says("/robot1/monitor", ERROR, "/robot2/navigator publishes on"))
