"""Looking at a running ROS graph for a few seconds, without disturbing it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from .finding import FAIL, Finding
from .graph_checks import check_graph
from .snapshot import Endpoint, Said, Snapshot

NAME = "edge_cloud_spec_doctor"


def check_live(seconds: float, namespace: str | None = None) -> Iterable[Finding]:
    """Findings about the graph of this ROS domain, or about the robot of one namespace."""
    try:
        import rclpy  # noqa: F401
        from diagnostic_msgs.msg import DiagnosticArray  # noqa: F401
    except ImportError as error:
        advice = "source your ROS 2 (source /opt/ros/DISTRO/setup.bash), and try again"
        return [Finding("graph", FAIL, f"ROS 2 cannot be imported ({error})", advice)]
    return check_graph(read_graph(seconds), namespace)


def read_graph(seconds: float) -> Snapshot:
    """Everything that can be heard of the graph in so many seconds."""
    import rclpy
    from diagnostic_msgs.msg import DiagnosticArray
    from rclpy.context import Context
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.node import Node

    context = Context()
    rclpy.init(context=context, args=[])
    node = Node(f"{NAME}_{os.getpid()}", context=context, enable_rosout=False)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    said: dict[str, Said] = {}

    def hear(message: DiagnosticArray) -> None:
        said.update({status.name: _said(status) for status in message.status})

    try:
        node.create_subscription(DiagnosticArray, "/diagnostics", hear, 100)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            executor.spin_once(timeout_sec=left)
        return Snapshot(
            nodes=tuple(name for name in _nodes(node) if NAME not in name),
            endpoints=tuple(e for e in _endpoints(node) if NAME not in e.node),
            said=tuple(said[name] for name in sorted(said)),
            domain=os.environ.get("ROS_DOMAIN_ID", "0"),
            seconds=seconds,
        )
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)


def _said(status: Any) -> Said:
    level = status.level if isinstance(status.level, int) else int.from_bytes(status.level, "big")
    values = {each.key: each.value for each in status.values}
    return Said(status.name, level, status.message, status.hardware_id, values)


def _nodes(node: Any) -> list[str]:
    found = node.get_node_names_and_namespaces()
    return sorted(f"{namespace.rstrip('/')}/{name}" for name, namespace in found)


def _endpoints(node: Any) -> Iterable[Endpoint]:
    for topic, _ in node.get_topic_names_and_types():
        for info in node.get_publishers_info_by_topic(topic):
            yield _endpoint(topic, info, True)
        for info in node.get_subscriptions_info_by_topic(topic):
            yield _endpoint(topic, info, False)


def _endpoint(topic: str, info: Any, publishes: bool) -> Endpoint:
    qos = info.qos_profile
    return Endpoint(
        node=f"{info.node_namespace.rstrip('/')}/{info.node_name}",
        topic=topic,
        kind=info.topic_type,
        publishes=publishes,
        reliable=qos.reliability.name != "BEST_EFFORT",
        latched=qos.durability.name == "TRANSIENT_LOCAL",
    )
