"""The monitor node: checks that this robot's nodes are alive, and that no others publish for them.

``python -m edge_cloud_spec.nodes.monitor --ros-args ...``; it reports on ``/diagnostics``, and
commands nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node

from ..health import Health, Level, worst_of
from ..options import Bounded, bounded, described
from .endpoints import endpoints_of, full_name
from .health import OUTPUT, OWNERS, ROBOT_NODES, PublisherWatch, output_health
from .runtime.diagnostics import INSTANCE, PERIOD_S, Diagnostics
from .runtime.parameters import Parameters
from .runtime.qos import RELIABLE, STEADY
from .runtime.run import spin

GRAPH_PERIOD_S = 0.25  # between two looks at the graph; what is found is published at once
UNSEEN_S = 2.0  # a node's diagnostics may be discovered before its name
DOUBLED_S = 5.0  # a second node of a name is reported for so long after it published last
STOOD_STILL_S = 1.0  # between two looks: this process stood still, and received nothing


@dataclass(frozen=True)
class MonitorSettings(Bounded):
    """What is monitored. Names are separated by blanks, in the monitor's namespace."""

    nodes: str = described(" ".join(ROBOT_NODES), "nodes that must be alive", fixed=True)
    allowed_publishers: str = described(
        "", "other nodes that may publish on the topics of ours, such as a joystick's", fixed=True
    )

    silence: float = bounded(3.0, 1.5, 60.0, "a node that said nothing for so long hangs, s", True)
    startup: float = bounded(10.0, 0.5, 600.0, "nodes have so long to appear, s", True)


class MonitorNode(Node):
    """Reads the graph and ``/diagnostics``; ``Heartbeats`` and ``PublisherWatch`` decide."""

    def __init__(self, **options: Any) -> None:
        """``options``: rclpy's options of a node (context, namespace)."""
        super().__init__("monitor", **options)
        settings = Parameters(self, MonitorSettings()).start_value()
        now = time.monotonic()
        names = tuple(full_name(self, name) for name in settings.nodes.split())
        allowed = frozenset(full_name(self, name) for name in settings.allowed_publishers.split())
        self._heartbeats = Heartbeats(names, now, settings.silence, settings.startup)
        owners = {
            self.resolve_topic_name(topic): [full_name(self, name) for name in names]
            for topic, names in OWNERS.items()
        }
        self._publisher_watch = PublisherWatch(owners, allowed)
        self._outputs: dict[str, str] = {}
        self._known: dict[str, Health] = {}  # of every topic that ever had a fault
        self._shown: dict[str, Level] = {}
        self._showed_at = -PERIOD_S
        self._diagnostics = Diagnostics(self)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, RELIABLE)
        self.create_timer(GRAPH_PERIOD_S, self._look, clock=STEADY)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        now = time.monotonic()
        for status in message.status:
            values = {each.key: each.value for each in status.values}
            self._heartbeats.receive(status.name, values.get(INSTANCE, ""), status.message, now)
            if OUTPUT in values and status.name in self._heartbeats.names:
                self._outputs[status.name] = values[OUTPUT]

    def _look(self) -> None:
        now = time.monotonic()
        publishers = {
            topic: [each.node for each in endpoints_of(self, [topic]) if each.publishes]
            for topic in self._publisher_watch.owners
        }
        faults = self._publisher_watch.look(publishers, now)
        self._known = dict.fromkeys(self._known, Health(Level.OK, "only its own node")) | faults
        present = {
            f"{namespace.rstrip('/')}/{name}"
            for name, namespace in self.get_node_names_and_namespaces()
        }
        found = self._heartbeats.look(present, now) | self._known | output_health(self._outputs)
        levels = {name: health.level for name, health in found.items()}
        if levels != self._shown or now - self._showed_at >= PERIOD_S:
            self._shown, self._showed_at = levels, now
            good = Health(Level.OK, "all nodes speak, and nobody else in their place")
            self._diagnostics.show(worst_of([good, *found.values()]), found)


@dataclass
class _Source:
    at: float
    message: str
    newest_at: float  # when the newest instance published last
    instances: list[str] = field(default_factory=list)  # in the order of their first messages
    doubled: float = float("-inf")
    absent_since: float | None = None


@dataclass
class Heartbeats:
    """Whether nodes are present and alive: their diagnostics, once a second, are the heartbeat.

    It watches these full node names from ``started``; times are monotonic, s.

    A node silent for ``silence`` hangs; nodes have ``startup`` to appear.
    """

    names: tuple[str, ...]
    started: float
    silence: float = 3.0
    startup: float = 10.0
    _sources: dict[str, _Source] = field(default_factory=dict)
    _looked: float | None = None

    def receive(self, name: str, instance: str, message: str, now: float) -> None:
        """Record a node's status message, from this ``instance`` of the node."""
        if name not in self.names:
            return
        source = self._sources.setdefault(name, _Source(now, message, now))
        source.at, source.message = now, message
        newest = source.instances[-1] if source.instances else ""
        if instance != newest and instance in source.instances:
            if now - source.newest_at <= self.silence:
                source.doubled = now  # the one from before the other speaks again: there are two
                return
            source.instances.remove(instance)  # the other has ended, and this one goes on alone
        source.newest_at = now
        if instance != newest:
            source.instances = [*source.instances[-3:], instance]  # after a restart, a new one

    def look(self, present: Collection[str], now: float) -> dict[str, Health]:
        """The health of each watched node; ``present``: the graph's full node names."""
        if self._looked is not None and now - self._looked > STOOD_STILL_S:
            for source in self._sources.values():
                source.at += now - self._looked
        self._looked = now
        found = {name: self._health(name, name in present, now) for name in self.names}
        return {  # a node that has published nothing may still start
            name: replace(health, check=name if name in self._sources else "")
            for name, health in found.items()
        }

    def _health(self, name: str, present: bool, now: float) -> Health:
        source = self._sources.get(name)
        if source is None:
            return self._silent(name, present, now - self.started)
        silent = now - source.at
        values = {"silent_s": round(silent, 1)}
        if present:
            source.absent_since = None
        elif source.absent_since is None:
            source.absent_since = now
        if not present and silent > self.silence:
            advice = "start it again, and see its log for why it ended"
            return Health(Level.ERROR, f"{name} is gone", advice, values)
        if source.absent_since is not None and now - source.absent_since > UNSEEN_S:
            found = f"diagnostics come in the name of {name}, which is not running"
            return Health(Level.ERROR, found, "find who publishes them and end it", values)
        if silent > self.silence:
            found = f"{name} has said nothing for {silent:.0f} s; last: {source.message!r}"
            return Health(Level.STALE, found, "see its log, or restart it", values)
        if now - source.doubled < DOUBLED_S:
            found = f"two nodes publish diagnostics in the name of {name}"
            return Health(Level.ERROR, found, "end one of them", values)
        return Health(Level.OK, f"{name} speaks", values=values)

    def _silent(self, name: str, present: bool, waited: float) -> Health:
        if present:
            level = Level.OK if waited < self.silence else Level.WARN
            found = f"{name} has said nothing yet"
            return Health(level, found, "it loads its model, or see its log" if level else "")
        if waited < self.startup:
            return Health(Level.OK, f"{name} is not running yet")
        return Health(Level.ERROR, f"{name} is not running", "start it, or see its log")


main = partial(spin, MonitorNode)  # runs it until a signal

if __name__ == "__main__":
    main()
