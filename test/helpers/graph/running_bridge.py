"""A cloud bridge in this process, spun, and a node that plays the drafter and hears the bridge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from edge_cloud_spec.edge.link.state import LinkReport
from edge_cloud_spec.msg import DecodeRequest, Draft, LinkState, Verdict
from edge_cloud_spec.nodes.cloud_bridge import CloudBridge
from edge_cloud_spec.nodes.runtime.qos import DECODE, LATCHED, RELIABLE

REPLY_TIMEOUT = 90.0  # s; only a hung test takes that long


class Hearer:
    """The drafter's and the operator's ear, and the drafter's mouth."""

    def __init__(self, node: Node, bridge: CloudBridge) -> None:
        self.bridge = bridge
        self.verdicts: list[Any] = []
        self.states: list[str] = []
        self.diagnostics: list[Any] = []
        self.requests = node.create_publisher(DecodeRequest, "decode_request", DECODE)
        self.drafts = node.create_publisher(Draft, "draft", DECODE)
        node.create_subscription(Verdict, "verdict", self.verdicts.append, DECODE)
        node.create_subscription(
            LinkState,
            "link_state",
            lambda message: self.states.append(str(LinkReport.read(message))),
            LATCHED,
        )
        node.create_subscription(
            DiagnosticArray,
            "/diagnostics",
            lambda message: self.diagnostics.extend(message.status),
            RELIABLE,
        )
        topics = (self.requests, self.drafts)
        self.until(lambda: all(topic.get_subscription_count() for topic in topics))
        self.until(lambda: node.count_publishers("verdict") and self.states)

    def until(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + REPLY_TIMEOUT
        while not what():
            assert time.monotonic() < end, (self.states, [v.text for v in self.verdicts])
            time.sleep(0.01)

    def now(self, state: str) -> bool:
        """Whether the link is in this state."""
        return bool(self.states) and self.states[-1].split()[0] == state


@contextmanager
def running_bridge(**parameters: object) -> Iterator[Hearer]:
    """The bridge with these parameters, brought up and spun."""
    given = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
    rclpy.init(args=["--ros-args", *given])
    bridge, node = CloudBridge(), Node("hearer")
    executors = [SingleThreadedExecutor() for _ in range(2)]
    for executor, each in zip(executors, (bridge, node), strict=True):
        executor.add_node(each)
    threads = [threading.Thread(target=executor.spin, daemon=True) for executor in executors]
    bridge.bring_up()
    for thread in threads:
        thread.start()
    try:
        yield Hearer(node, bridge)
    finally:
        bridge.close()
        for executor, thread in zip(executors, threads, strict=True):
            executor.shutdown(timeout_sec=5.0)
            thread.join(5.0)
        for each in (bridge, node):
            each.destroy_node()
        rclpy.shutdown()
