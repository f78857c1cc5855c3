"""A ROS graph as it was seen for a few seconds: plain data, whatever its names and types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Endpoint:
    """One node's publisher (``publishes``) or subscription; ``node`` and ``topic`` in full."""

    node: str
    topic: str
    kind: str  # of its messages
    publishes: bool
    reliable: bool = True
    latched: bool = False  # durability transient local


@dataclass(frozen=True)
class Said:
    """The last status on ``/diagnostics`` under this name; ``level`` as in diagnostic_msgs."""

    name: str
    level: int
    message: str
    hardware_id: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """Nodes by full name (twice where there are two of a name), endpoints, diagnostics."""

    nodes: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    said: tuple[Said, ...] = ()
    domain: str = "0"
    seconds: float = 0.0

    def of(self, node: str, publishes: bool) -> list[Endpoint]:
        """The publishers or subscriptions of a node."""
        return [e for e in self.endpoints if e.node == node and e.publishes == publishes]

    def on(self, topic: str, publishes: bool) -> list[Endpoint]:
        """The publishers or subscriptions of a topic."""
        return [e for e in self.endpoints if e.topic == topic and e.publishes == publishes]


def mismatches(publisher: Endpoint, subscription: Endpoint) -> str:
    """Why these two never exchange a message; empty where they do."""
    if publisher.kind != subscription.kind:
        return f"it is {publisher.kind} there and {subscription.kind} here"
    wrong = []
    if subscription.reliable and not publisher.reliable:
        wrong.append("it is published best effort, and reliable is asked for")
    if subscription.latched and not publisher.latched:
        wrong.append("it is published volatile, and transient local is asked for")
    return " and ".join(wrong)
