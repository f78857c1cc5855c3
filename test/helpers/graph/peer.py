"""The other side of a node's topics: a node with a context and an executor of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

PATIENCE = 120.0  # s; only a hung test takes that long


class Peer(Node):
    """Its callbacks run in ``until``; ``known`` is what a test that hangs should show."""

    def __init__(
        self,
        name: str = "peer",
        namespace: str = "",
        domain: int | None = None,
        args: tuple[str, ...] = (),
    ) -> None:
        context = Context()
        rclpy.init(args=list(args), context=context, domain_id=domain)
        super().__init__(name, context=context, namespace=namespace or None)
        self.executor_ = SingleThreadedExecutor(context=context)
        self.executor_.add_node(self)

    def known(self) -> object:
        return "nothing came of it"

    def until(
        self,
        what: Callable[[], Any],
        patience: float = PATIENCE,
        meanwhile: Callable[[], Any] = lambda: None,
    ) -> None:
        """Spin until this holds, with a call of ``meanwhile`` now and then."""
        end = time.monotonic() + patience
        next_time = 0.0
        while not what():
            assert time.monotonic() < end, self.known()
            if time.monotonic() > next_time:
                meanwhile()
                next_time = time.monotonic() + 0.05
            self.executor_.spin_once(timeout_sec=0.05)

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end)

    def collect(self, kind: type[Any], topic: str, qos: Any) -> list[Any]:
        """What comes on this topic from now on."""
        heard: list[Any] = []
        self.create_subscription(kind, topic, heard.append, qos)
        return heard

    def close(self) -> None:
        self.executor_.shutdown()
        self.destroy_node()
        rclpy.shutdown(context=self.context)


P = TypeVar("P", bound=Peer)


@contextmanager
def closed_after(peer: P) -> Iterator[P]:
    """Closes it, whatever happens."""
    try:
        yield peer
    finally:
        peer.close()
