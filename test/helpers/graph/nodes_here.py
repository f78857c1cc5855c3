"""Nodes of ours in this process: any one, as it is or spun, and who plays a bridge's drafter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
from helpers.graph.peer import Peer
from rclpy.executors import SingleThreadedExecutor

from edge_cloud_spec.edge.link.state import LinkReport
from edge_cloud_spec.msg import DecodeRequest, Draft, LinkState, Verdict
from edge_cloud_spec.nodes.cloud_bridge import CloudBridge
from edge_cloud_spec.nodes.runtime.qos import DECODE, EACH_STATE


class Hearer(Peer):
    """The drafter's and the operator's ear, and the drafter's mouth."""

    def __init__(self, bridge: CloudBridge) -> None:
        super().__init__("hearer")
        self.bridge = bridge
        self.hear_diagnostics()
        self.verdicts = self.collect(Verdict, "verdict", DECODE)
        self.states: list[str] = []
        self.create_subscription(
            LinkState,
            "link_state",
            lambda message: self.states.append(str(LinkReport.read(message))),
            EACH_STATE,
        )
        self.requests = self.create_publisher(DecodeRequest, "decode_request", DECODE)
        self.drafts = self.create_publisher(Draft, "draft", DECODE)
        topics = (self.requests, self.drafts)
        self.until(lambda: all(topic.get_subscription_count() for topic in topics))
        self.until(lambda: self.count_publishers("verdict") and self.states)

    def known(self) -> object:
        return self.states, [verdict.text for verdict in self.verdicts]

    def now(self, state: str) -> bool:
        """Whether the link is in this state."""
        return bool(self.states) and self.states[-1].split()[0] == state


@contextmanager
def node_here(kind: Callable[[], Any], **parameters: object) -> Iterator[Any]:
    """A node with these parameters; nothing spins it."""
    given = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
    rclpy.init(args=["--ros-args", *given])
    node = kind()
    try:
        yield node
    finally:
        node.close()
        node.destroy_node()
        rclpy.shutdown()


@contextmanager
def running(kind: Callable[[], Any], **parameters: object) -> Iterator[Any]:
    """A node with these parameters, brought up and spun."""
    with node_here(kind, **parameters) as node:
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        thread = threading.Thread(target=executor.spin, daemon=True)
        node.bring_up()
        thread.start()
        try:
            yield node
        finally:
            executor.shutdown(timeout_sec=5.0)
            thread.join(5.0)


@contextmanager
def running_bridge(**parameters: object) -> Iterator[Hearer]:
    """The bridge with these parameters, and who plays its drafter."""
    with running(CloudBridge, **parameters) as bridge, Hearer(bridge) as hearer:
        yield hearer
