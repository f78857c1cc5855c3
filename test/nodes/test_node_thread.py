"""A node in a thread of its own, beside other threads that use it."""

from __future__ import annotations

import sys
import threading
import time

import pytest

pytest.importorskip("rclpy")
from std_msgs.msg import String

from edge_cloud_spec.nodes.runtime.node_thread import NodeThread

PATIENCE = 60.0  # s; only a hung test takes that long


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What ended a thread that nobody waits for."""
    found: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value))
    return found


def test_it_hears_while_another_thread_makes_and_destroys_publishers(failed: list[object]) -> None:
    heard: list[str] = []
    thread = NodeThread("listener")
    node = thread.node

    def hear(message: String) -> None:
        heard.append(message.data)

    node.create_subscription(String, "words", hear, 100)
    node.create_timer(0.0002, lambda: None)  # the wait set is built again and again
    words = node.create_publisher(String, "words", 100)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the threads take turns in the middle of what they do
    try:
        end = time.monotonic() + PATIENCE
        for _ in range(100):
            others = [node.create_publisher(String, f"other_{n}", 1) for n in range(5)]
            for other in others:
                node.destroy_publisher(other)
        while not heard or heard[-1] != "last":
            assert time.monotonic() < end and not failed, failed
            words.publish(String(data="last"))
            time.sleep(0.01)
    finally:
        sys.setswitchinterval(interval)
        thread.close()
    assert not failed


def test_it_can_be_closed_at_any_moment(failed: list[object]) -> None:
    for _ in range(10):
        thread = NodeThread("listener")
        thread.node.create_timer(0.001, lambda: None)
        thread.start()
        thread.close()
        assert not thread._thread.is_alive()
    never = NodeThread("listener")
    never.close()
    assert not failed
