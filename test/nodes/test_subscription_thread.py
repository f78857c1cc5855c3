"""Subscriptions outside all executors: messages that a model waits for."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

rclpy = pytest.importorskip("rclpy")
from helpers.graph.peer import PATIENCE, Peer, closed_after  # noqa: E402
from rclpy.event_handler import PublisherEventCallbacks  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile  # noqa: E402
from std_msgs.msg import UInt32  # noqa: E402

from edge_cloud_spec.nodes.runtime.subscription_thread import SubscriptionThread  # noqa: E402


@pytest.fixture
def node() -> Iterator[Peer]:
    with closed_after(Peer()) as node:
        yield node


def test_messages_come_in_order_and_one_that_fails_does_not_end_it(node: Peer) -> None:
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


def test_an_event_whose_callback_fails_does_not_end_it(node: Peer) -> None:
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    failed, heard = threading.Event(), threading.Event()

    def fail(event: object) -> None:
        failed.set()
        raise RuntimeError("on purpose")

    subscriptions = SubscriptionThread(node)
    subscriptions.subscribe(UInt32, "numbers", lambda message: heard.set(), latched)
    for event in subscriptions._events:
        event.callback = fail
    subscriptions.start()
    node.create_publisher(UInt32, "numbers", 1)  # volatile: it does not fit
    assert failed.wait(PATIENCE)
    node.create_publisher(UInt32, "numbers", latched).publish(UInt32())
    assert heard.wait(PATIENCE)
    subscriptions.close()


def test_an_executor_takes_nothing_that_is_the_intakes(node: Peer) -> None:
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
    numbers.publish(UInt32())
    others.publish(UInt32())
    subscriptions.start()
    node.until(lambda: met)
    subscriptions.close()
    assert threads == ["subscriptions"]


def test_a_message_that_waits_for_the_thread_does_not_wake_the_executor(
    node: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that goes round until the thread has it keeps the interpreter from the thread."""
    begun, release = threading.Event(), threading.Event()

    def hear(message: UInt32) -> None:
        begun.set()
        release.wait(PATIENCE)

    subscriptions = SubscriptionThread(node)
    subscriptions.subscribe(UInt32, "numbers", hear, 100)
    publisher = node.create_publisher(UInt32, "numbers", 100)
    subscriptions.start()
    publisher.publish(UInt32())
    assert begun.wait(PATIENCE)
    rounds: list[None] = []
    wait_set = rclpy.executors._rclpy.WaitSet  # an executor makes one for each round

    def counted(*entities: object) -> object:
        rounds.append(None)
        return wait_set(*entities)

    monkeypatch.setattr(rclpy.executors._rclpy, "WaitSet", counted)
    publisher.publish(UInt32())
    node.spin(0.5)
    release.set()
    subscriptions.close()
    assert 0 < len(rounds) < 50  # 5 of them, were it not for what the node itself has to do


def test_humbles_rclpy_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module of events has another name."""
    old = ModuleType("rclpy.qos_event")
    vars(old).update(vars(rclpy.event_handler))
    monkeypatch.setitem(sys.modules, "rclpy.qos_event", old)
    monkeypatch.setitem(sys.modules, "rclpy.event_handler", None)
    monkeypatch.delitem(sys.modules, SubscriptionThread.__module__)
    found = runpy.run_module(SubscriptionThread.__module__)
    assert found["SubscriptionEventCallbacks"] is rclpy.event_handler.SubscriptionEventCallbacks


@pytest.mark.parametrize("profiles", [1, 2])
def test_a_publisher_whose_profile_does_not_fit_keeps_no_core_busy(
    node: Peer, profiles: int
) -> None:
    """As somebody's ``ros2 topic pub`` of ``e_stop`` does not fit the latched subscription."""
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    beats: list[None] = []
    unfit: list[object] = []
    subscriptions = SubscriptionThread(node)
    subscriptions._pulse.beat = lambda: beats.append(None)  # type: ignore[method-assign]
    subscriptions.subscribe(UInt32, "numbers", print, *(latched, QoSProfile(depth=1))[:profiles])
    subscriptions.start()
    node.create_publisher(
        UInt32, "numbers", 1, event_callbacks=PublisherEventCallbacks(incompatible_qos=unfit.append)
    )
    node.until(lambda: unfit)
    before = len(beats)
    node.spin(1.0)
    subscriptions.close()
    assert len(beats) - before < 100  # 5 of them, were it not for DDS's own events
