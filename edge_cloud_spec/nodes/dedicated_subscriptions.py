"""Subscriptions with a thread of their own: for a stop, and for what a model waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node

LOOK_S = 0.2  # between two looks whether the end has come


class DedicatedSubscriptions:
    """Calls back for each message, in a thread that does nothing else.

    An executor builds its wait set anew for every message, over all that the node has; that takes
    longer than the message's way through DDS, and other callbacks go before. Here the wait set
    stands. ``subscribe`` first, then ``start``; ``close`` before the node is
    destroyed. What a callback raises is logged, and the next message is taken.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._group = _NoExecutor()
        self._subscriptions: list[tuple[Any, Callable[[Any], None]]] = []
        self._ended = False
        self._thread = threading.Thread(target=self._take_forever, name="intake", daemon=True)

    def subscribe(
        self, kind: type[Any], topic: str, callback: Callable[[Any], None], depth: int
    ) -> None:
        """Subscribe to a topic, reliably; ``depth`` messages are kept meanwhile."""
        subscription = self._node.create_subscription(
            kind, topic, callback, depth, callback_group=self._group
        )
        self._subscriptions.append((subscription, callback))

    def start(self) -> None:
        """Take what comes, from now on."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after the callback under way."""
        self._ended = True
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _take_forever(self) -> None:
        context = self._node.context
        count = len(self._subscriptions)
        wait_set = rclpy_implementation.WaitSet(count, 0, 0, 0, 0, 0, context.handle)
        while not self._ended and context.ok():
            wait_set.clear_entities()
            for subscription, _ in self._subscriptions:
                wait_set.add_subscription(subscription.handle)
            wait_set.wait(int(LOOK_S * 1e9))
            ready = wait_set.get_ready_entities("subscription")
            for subscription, callback in self._subscriptions:
                if subscription.handle.pointer in ready:
                    self._take(subscription, callback)

    def _take(self, subscription: Any, callback: Callable[[Any], None]) -> None:
        try:
            taken = subscription.handle.take_message(subscription.msg_type, False)
            if taken is not None:
                callback(taken[0])
        except Exception as error:
            self._node.get_logger().error(f"a callback failed, going on: {error!r}")


class _NoExecutor(CallbackGroup):
    """Executors leave alone what is in this group."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        pass
