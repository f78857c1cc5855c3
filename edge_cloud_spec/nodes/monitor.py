"""The monitor node: are this robot's nodes alive, and does nobody else speak in their place?

``python -m edge_cloud_spec.nodes.monitor --ros-args ...``; it watches and reports on
``/diagnostics``, and commands nothing.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from ..bounds import bounded, check_bounds, described
from .health.health import Health, Level, worst_of
from .health.heartbeats import Heartbeats
from .health.publishers import OWNERS, PublisherWatch
from .runtime.diagnostics import INSTANCE, PERIOD_S, Diagnostics
from .runtime.parameters import Parameters
from .runtime.qos import RELIABLE
from .runtime.run import spin

LOOK_S = 0.25  # between two looks at the graph; what is found is published at once


@dataclass(frozen=True)
class MonitorSettings:
    """What is watched. Names are separated by blanks, and are of the monitor's own namespace."""

    nodes: str = described("drafter cloud_bridge navigator", "nodes that must be alive", fixed=True)
    allowed_publishers: str = described(
        "", "other nodes that may publish on the topics of ours, such as a joystick's", fixed=True
    )

    silence: float = bounded(3.0, 1.5, 60.0, "a node that said nothing for so long hangs, s", True)
    startup: float = bounded(10.0, 0.5, 600.0, "nodes have so long to appear, s", True)

    def __post_init__(self) -> None:
        check_bounds(self)


class MonitorNode(Node):
    """Looks at the graph and listens to ``/diagnostics``; ``health/`` judges."""

    def __init__(self, **options: Any) -> None:
        """``options``: rclpy's own of a node (its context, its namespace)."""
        super().__init__("monitor", **options)
        settings = Parameters(self, MonitorSettings()).start_value()
        now = time.monotonic()
        names = tuple(self._full(name) for name in settings.nodes.split())
        allowed = frozenset(self._full(name) for name in settings.allowed_publishers.split())
        self._heartbeats = Heartbeats(names, now, settings.silence, settings.startup)
        owners = {self.resolve_topic_name(t): self._full(name) for t, name in OWNERS.items()}
        self._publisher_watch = PublisherWatch(owners, allowed)
        self._known: dict[str, Health] = {}  # of every topic that ever had a fault
        self._shown: dict[str, Level] = {}
        self._showed_at = -PERIOD_S
        self._diagnostics = Diagnostics(self)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, RELIABLE)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(LOOK_S, self._look, clock=steady)

    def _full(self, name: str) -> str:
        return name if name.startswith("/") else f"{self.get_namespace().rstrip('/')}/{name}"

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        now = time.monotonic()
        for status in message.status:
            instance = next((each.value for each in status.values if each.key == INSTANCE), "")
            self._heartbeats.hear(status.name, instance, status.message, now)

    def _look(self) -> None:
        now = time.monotonic()
        faults = self._publisher_watch.look(self._publishers_by_topic(), now)
        self._known = {topic: Health(Level.OK, "only its own node") for topic in self._known}
        self._known |= faults
        found = {**self._heartbeats.look(self._present(), now), **self._known}
        levels = {name: health.level for name, health in found.items()}
        if levels != self._shown or now - self._showed_at >= PERIOD_S:
            self._shown, self._showed_at = levels, now
            good = Health(Level.OK, "all nodes speak, and nobody else in their place")
            self._diagnostics.show(worst_of([good, *found.values()]), found)

    def _publishers_by_topic(self) -> dict[str, list[str]]:
        return {
            topic: [
                f"{info.node_namespace.rstrip('/')}/{info.node_name}"
                for info in self.get_publishers_info_by_topic(topic)
            ]
            for topic in self._publisher_watch.owners
        }

    def _present(self) -> set[str]:
        found = self.get_node_names_and_namespaces()
        return {f"{namespace.rstrip('/')}/{name}" for name, namespace in found}


def main() -> int:
    """Run the node until a signal."""
    return spin(MonitorNode)


if __name__ == "__main__":
    sys.exit(main())
