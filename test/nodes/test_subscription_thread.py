"""Subscriptions outside all executors: messages that a model waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

rclpy = pytest.importorskip("rclpy")
from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from std_msgs.msg import UInt32  # noqa: E402

from edge_cloud_spec.nodes.runtime.subscription_thread import SubscriptionThread  # noqa: E402

PATIENCE = 60.0  # s; only a hung test takes that long


@pytest.fixture
def node() -> Iterator[Node]:
    context = Context()
    rclpy.init(args=[], context=context)
    node = Node("intake_test", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_messages_come_in_order_and_one_that_fails_does_not_end_it(node: Node) -> None:
    heard: list[int] = []
    done = threading.Event()

    def hear(message: UInt32) -> None:
        heard.append(message.data)
        if message.data == 1:
            raise RuntimeError("on purpose")
        if message.data == 4:
            done.set()

    subscriptions = SubscriptionThread(node)
    subscriptions.subscribe(UInt32, "numbers", hear, 100)
    publisher = node.create_publisher(UInt32, "numbers", 100)
    subscriptions.start()
    for number in range(5):
        publisher.publish(UInt32(data=number))
    assert done.wait(PATIENCE)
    assert heard == [0, 1, 2, 3, 4]
    subscriptions.close()


def test_an_executor_takes_nothing_that_is_the_intakes(node: Node) -> None:
    threads: list[str] = []
    both = threading.Barrier(2)

    def hear(message: UInt32) -> None:
        threads.append(threading.current_thread().name)
        both.wait(PATIENCE)

    subscriptions = SubscriptionThread(node)
    subscriptions.subscribe(UInt32, "numbers", hear, 100)
    met: list[int] = []
    node.create_subscription(UInt32, "others", lambda _: met.append(both.wait(PATIENCE)), 100)
    numbers = node.create_publisher(UInt32, "numbers", 100)
    others = node.create_publisher(UInt32, "others", 100)
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    numbers.publish(UInt32())
    others.publish(UInt32())
    subscriptions.start()
    while not met:
        executor.spin_once(timeout_sec=PATIENCE)
    subscriptions.close()
    executor.shutdown()
    assert threads == ["subscriptions"]
