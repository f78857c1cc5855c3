"""Subscriptions outside the executor: for stops, and for messages that a model waits for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile

from ...errors import TRACEBACKS
from .heartbeat import Pulse

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # the module's name in Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

WAIT_S = 0.2  # longest wait for a message; then the thread checks whether it was closed
# For a topic with several subscriptions: each has publishers that are for the others.
NO_WARNINGS = SubscriptionEventCallbacks(use_default_callbacks=False)
MESSAGES_REMEMBERED = 32  # messages of a topic with several subscriptions; their queues hold 16


class Once:
    """Passes on once what several subscriptions to a topic receive, in the order of the first.

    The first is reliable: it receives what a reliable publisher sends, in order, but maybe late.
    Another may be earlier, and may have lost something. If the first has passed on an older message
    since, what it receives is passed on again: with A, C from another and then A, B, C from the
    first, A, C, B, C are passed on: each message is, and the last one sent comes last.
    """

    def __init__(self) -> None:
        # (time of sending, message); Any, since messages have no hash
        self._passed_on: deque[tuple[int, Any]] = deque(maxlen=MESSAGES_REMEMBERED)
        self._by_first: deque[tuple[int, Any]] = deque(maxlen=MESSAGES_REMEMBERED)

    def is_news(self, sent: int, message: Any, by_first: bool) -> bool:
        """Whether to pass on a message; ``sent``: when, in ns, 0 if unknown. ``by_first``: it came
        through the first subscription."""
        if not sent:
            return True
        this = sent, message
        if by_first:
            self._by_first.append(this)
        if this in self._passed_on:
            since = islice(self._passed_on, self._passed_on.index(this) + 1, None)
            late = (other for other in since if other[0] < sent and other in self._by_first)
            if not by_first or not any(late):
                return False
            self._passed_on.remove(this)
        self._passed_on.append(this)
        return True


Take = Callable[[Any], Any]


def take_message(subscription: Any) -> Any:
    """The next message and its info; None if there is none."""
    return subscription.handle.take_message(subscription.msg_type, False)


class SubscriptionThread:
    """Calls back for each message, in its own thread and with its own wait set.

    An executor rebuilds its wait set, over all entities of the node, for every message; that takes
    longer than the message's way through DDS, and other callbacks may run first. Here one wait set
    is kept, for these subscriptions only. ``subscribe`` first, then ``start``; ``close`` before the
    node is destroyed. An exception in a callback is logged, and the next message is handled. A
    managed node's watch notices a callback that hangs.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._group = _NoExecutor()
        self._subscriptions: list[tuple[Any, Callable[[Any], None]]] = []
        self._events: list[Any] = []
        self._closed = False
        self._pulse = Pulse("subscriptions")
        self._pulses: list[Pulse] = getattr(node, "pulses", [])
        self._thread = threading.Thread(target=self._run, name="subscriptions", daemon=True)

    def subscribe(
        self,
        kind: type[Any],
        topic: str,
        callback: Callable[[Any], None],
        *profiles: QoSProfile,
        take: Take = take_message,
    ) -> None:
        """Subscribe to a topic; its messages are queued until ``start``.

        ``take`` returns the next message of a subscription and its info, or None.

        With several profiles, the first of them reliable, it subscribes with each, and passes each
        message on ``Once``. With one profile, rclpy warns of an incompatible publisher.
        """
        once = Once()

        def pass_on(by_first: bool, message: Any, info: Any) -> None:
            if len(profiles) == 1 or once.is_news(info["source_timestamp"], message, by_first):
                callback(message)

        for number, profile in enumerate(profiles):
            receive = partial(pass_on, number == 0)
            subscription: Any = self._node.create_subscription(
                kind,
                topic,
                callback,
                profile,
                callback_group=self._group,
                event_callbacks=NO_WARNINGS if len(profiles) > 1 else None,
            )
            self._subscriptions.append((subscription, partial(self._pass_on, take, receive)))
            # Not for an executor either: DDS has one condition for a reader's events and messages.
            # One that waits for the events wakes for each message, and goes round until this
            # thread has taken it, which gets no turn at the interpreter meanwhile: up to 0.6 s.
            self._events += subscription.event_handlers

    def start(self) -> None:
        """Start calling back."""
        self._pulses.append(self._pulse)
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current callback."""
        self._closed = True
        if self._pulse in self._pulses:
            self._pulses.remove(self._pulse)
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        context = self._node.context
        count, events = len(self._subscriptions), len(self._events)
        wait_set = rclpy_implementation.WaitSet(count, 0, 0, 0, 0, events, context.handle)
        while not self._closed and context.ok():
            self._pulse.beat()
            wait_set.clear_entities()
            for subscription, _ in self._subscriptions:
                wait_set.add_subscription(subscription.handle)
            for event in self._events:
                event.add_to_wait_set(wait_set)
            wait_set.wait(int(WAIT_S * 1e9))
            ready = wait_set.get_ready_entities("subscription")
            for subscription, pass_on in self._subscriptions:
                if subscription.handle.pointer in ready:
                    self._attempt(partial(pass_on, subscription))
            for event in self._events:  # one that nobody takes would keep the wait set awake
                if event.is_ready(wait_set):
                    self._attempt(partial(self._take_event, event))

    def _pass_on(self, take: Take, callback: Callable[[Any, Any], None], subscription: Any) -> None:
        taken = take(subscription)
        if taken is not None:
            callback(*taken)

    def _take_event(self, event: Any) -> None:
        taken = event.take_data()
        if taken:
            event.callback(taken)

    def _attempt(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._node.get_logger().error(f"a callback failed, going on: {error!r}")
            TRACEBACKS.debug("a callback failed", exc_info=True)


class _NoExecutor(MutuallyExclusiveCallbackGroup):
    """A callback group that no executor serves."""

    def can_execute(self, entity: Any) -> bool:
        return False
