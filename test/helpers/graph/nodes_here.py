"""Nodes of ours in this process: any one, or a bridge that is spun, with who plays its drafter."""

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
def running_bridge(**parameters: object) -> Iterator[Hearer]:
    """The bridge with these parameters, brought up and spun."""
    with node_here(CloudBridge, **parameters) as bridge:
        executor = SingleThreadedExecutor()
        executor.add_node(bridge)
        thread = threading.Thread(target=executor.spin, daemon=True)
        bridge.bring_up()
        thread.start()
        try:
            with Hearer(bridge) as hearer:
                yield hearer
        finally:
            executor.shutdown(timeout_sec=5.0)
            thread.join(5.0)
