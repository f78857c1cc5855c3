"""The profiles that the topics of the graph share."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

rclpy = pytest.importorskip("rclpy")
from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import QoSProfile  # noqa: E402
from std_msgs.msg import UInt32  # noqa: E402

from edge_cloud_spec.nodes.runtime.qos import DECODE, LATCHED, RELIABLE  # noqa: E402

TIMEOUT = 60.0  # s; only a hung test takes that long


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    context = Context()
    rclpy.init(args=[], context=context)
    node = Node("qos_test", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.mark.parametrize(
    ("qos", "received"),
    [(LATCHED, [2, 3]), (RELIABLE, [3]), (DECODE, [3])],
    ids=["latched", "reliable", "decode"],
)
def test_only_a_latched_topic_gives_a_late_subscriber_the_newest_message(
    node: Node, qos: QoSProfile, received: list[int]
) -> None:
    publisher = node.create_publisher(UInt32, "state", qos)
    for number in (1, 2):
        publisher.publish(UInt32(data=number))
    numbers: list[int] = []
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    end = time.monotonic() + TIMEOUT
    node.create_subscription(UInt32, "state", lambda message: numbers.append(message.data), qos)
    while not publisher.get_subscription_count() or (qos is LATCHED and not numbers):
        assert time.monotonic() < end
        executor.spin_once(timeout_sec=0.1)
    publisher.publish(UInt32(data=3))
    while 3 not in numbers:
        assert time.monotonic() < end
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()
    assert numbers == received
