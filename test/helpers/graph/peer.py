"""The other side of a node's topics: a node with a context and an executor of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter

REPLY_TIMEOUT = 120.0  # s; only a hung test takes that long


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
        self._clients_of: dict[str, Any] = {}

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def known(self) -> object:
        return "nothing came of it"

    def until(
        self,
        what: Callable[[], Any],
        reply_timeout: float = REPLY_TIMEOUT,
        meanwhile: Callable[[], Any] = lambda: None,
    ) -> None:
        """Spin until this holds, with a call of ``meanwhile`` now and then."""
        end = time.monotonic() + reply_timeout
        next_time = 0.0
        while not what():
            assert time.monotonic() < end, self.known()
            if time.monotonic() > next_time:
                meanwhile()
                next_time = time.monotonic() + 0.05
            self.executor_.spin_once(timeout_sec=0.05)

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.executor_.spin_once(timeout_sec=left)

    def match(self, *nodes: str) -> None:
        """Wait until these nodes know all that this one publishes and subscribes to by now.

        Else they lose its first messages, or it loses theirs. That a publisher of this node counts
        a subscription says nothing of the other side. DDS announces a node's readers, and its
        writers, in their order: who answers a client knows what was made before it.
        """
        for node in nodes:
            client = self.create_client(GetParameters, f"{node}/get_parameters")
            self._answer(client, GetParameters.Request())
            self.destroy_client(client)

    def collect(self, kind: type[Any], topic: str, qos: Any) -> list[Any]:
        """What comes on this topic from now on."""
        heard: list[Any] = []
        self.create_subscription(kind, topic, heard.append, qos)
        return heard

    def call(self, kind: Any, name: str, request: Any, again: bool = True) -> Any:
        """A service's answer; ``again``: the request may be made twice, for an answer is lost where
        the server has not found the client yet."""
        if name not in self._clients_of:
            self._clients_of[name] = self.create_client(kind, name)
        return self._answer(self._clients_of[name], request, again)

    def _answer(self, client: Any, request: Any, again: bool = True) -> Any:
        self.until(client.service_is_ready)
        future = client.call_async(request)
        self.executor_.spin_until_future_complete(future, 3.0 if again else REPLY_TIMEOUT)
        assert future.done() or again, "no answer"
        return future.result() if future.done() else self._answer(client, request)

    def set_parameters_of(self, node: str, values: Mapping[str, object]) -> list[str]:
        """Why each value was refused; empty where it was not."""
        given = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        request = SetParameters.Request(parameters=given)
        results = self.call(SetParameters, f"{node}/set_parameters", request).results
        return ["" if each.successful else each.reason for each in results]

    def hear_diagnostics(self) -> None:
        """From now on ``statuses`` are heard, and ``last`` has the newest one of each name."""
        self.statuses: list[DiagnosticStatus] = []
        self.last: dict[str, DiagnosticStatus] = {}
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 100)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.statuses += message.status
        self.last.update({status.name: status for status in message.status})

    def says(self, name: str, level: bytes, *words: str) -> bool:
        """Whether the newest status of this name has this level, and these words in it."""
        status = self.last.get(name)
        told = status is not None and status.level == level
        return told and all(word in status.message for word in words)

    def values(self, name: str) -> dict[str, str]:
        """The figures in the newest status of this name."""
        status = self.last.get(name, DiagnosticStatus())
        return {each.key: each.value for each in status.values}

    def close(self) -> None:
        self.executor_.shutdown()
        self.destroy_node()
        rclpy.shutdown(context=self.context)
