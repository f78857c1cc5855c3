"""The profiles that the topics of the graph share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("rclpy")
from helpers.graph.peer import Peer, closed_after
from rclpy.qos import QoSProfile
from std_msgs.msg import UInt32

from edge_cloud_spec.nodes.runtime.qos import DECODE, LATCHED, RELIABLE


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    with closed_after(Peer()) as node:
        yield node


@pytest.mark.parametrize(
    ("qos", "received"),
    [(LATCHED, [2, 3]), (RELIABLE, [3]), (DECODE, [3])],
    ids=["latched", "reliable", "decode"],
)
def test_only_a_latched_topic_gives_a_late_subscriber_the_newest_message(
    node: Peer, qos: QoSProfile, received: list[int]
) -> None:
    publisher = node.create_publisher(UInt32, "state", qos)
    for number in (1, 2):
        publisher.publish(UInt32(data=number))
    heard = node.collect(UInt32, "state", qos)
    node.until(lambda: publisher.get_subscription_count() and (qos is not LATCHED or heard))
    publisher.publish(UInt32(data=3))
    node.until(lambda: heard and heard[-1].data == 3)
    assert [message.data for message in heard] == received
