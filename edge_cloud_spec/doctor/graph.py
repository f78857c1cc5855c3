"""Diagnoses a running node graph from a ``Snapshot``, in sentences for people."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..health import Health, Level
from ..nodes.drafting.camera import PICTURE_TYPES, TYPES, camera_topics, no_picture
from ..nodes.endpoints import (
    GUARD,
    TWISTS,
    VELOCITIES,
    Endpoint,
    base_and_guard,
    endpoints_of,
    mismatches,
)
from ..nodes.health import OUTPUT, OWNERS, ROBOT_NODES, PublisherWatch, output_health

ODOMETRY_TYPE = "nav_msgs/msg/Odometry"
NAME = "edge_cloud_spec_doctor"


def check_graph(snapshot: Snapshot, namespace: str | None = None) -> list[Health]:
    """Findings about each robot in the graph, or the one in ``namespace``."""
    ours = {node.rpartition("/") for node in snapshot.nodes}
    robots = sorted({place for place, _, name in ours if name in ROBOT_NODES})
    wanted = robots if namespace is None else [f"/{namespace.strip('/')}".rstrip("/")]
    if robots and {*wanted} <= {*robots}:
        return [finding for robot in wanted for finding in _check_robot(snapshot, robot)]
    if robots:
        places = ", ".join(robot or "/" for robot in robots)
        found = f"no node of ours in namespace {wanted[0] or '/'}; there are some in {places}"
        advice = "give --namespace one of these, or leave it out to look at all of them"
    else:
        found = f"no node of ours in ROS domain {snapshot.domain}"
        if snapshot.nodes:
            found += f", where there are {len(snapshot.nodes)} others"
        advice = (
            f"start ros2 launch edge_cloud_spec go2_nav.launch.py, and check ROS_DOMAIN_ID "
            f"(here {snapshot.domain}), ROS_AUTOMATIC_DISCOVERY_RANGE and RMW_IMPLEMENTATION: they "
            "must be the same as the robot's"
        )
    return [Health(Level.ERROR, found, advice, check="graph")]


def _check_robot(snapshot: Snapshot, robot: str) -> Iterator[Health]:
    for check in (_nodes, _camera, _ends, _connections, _publishers):
        yield from check(snapshot, robot)
    commanders = {f"{robot}/{name}" for name in OWNERS["cmd_vel"]}
    outputs = {
        name: str(health.values[OUTPUT])
        for name, health in snapshot.diagnostics.items()
        if name in commanders and OUTPUT in health.values
    }
    yield from output_health(outputs).values()
    for name in ROBOT_NODES:
        if f"{robot}/{name}" in snapshot.nodes:
            yield _heartbeat(snapshot, f"{robot}/{name}")
    mine = tuple(f"{robot}/{name}" for name in (*ROBOT_NODES, "monitor"))
    for name, health in sorted(snapshot.diagnostics.items()):
        if name in mine or name.startswith(f"{robot}/monitor: "):
            yield health
            for key, value in health.values.items():
                if "clock" in key or key in ("drive", "edges"):
                    yield Health(Level.OK, f"{key}: {value}", check=health.check)


def _nodes(snapshot: Snapshot, robot: str) -> Iterator[Health]:
    missing = [f"{robot}/{name}" for name in ROBOT_NODES if f"{robot}/{name}" not in snapshot.nodes]
    twice = [
        f"{robot}/{name}" for name in ROBOT_NODES if snapshot.nodes.count(f"{robot}/{name}") > 1
    ]
    check = f"nodes of {robot or '/'}"
    if missing:
        advice = "start it, and see the launch's output for why it ended"
        yield Health(Level.ERROR, f"{', '.join(missing)} is not running", advice, check=check)
    if twice:
        advice = (
            "give each robot a namespace of its own (namespace:=robot1), or end one of them; one "
            "that was killed is seen for twenty seconds more"
        )
        yield Health(Level.ERROR, f"there are two of {', '.join(twice)}", advice, check=check)
    if not (missing or twice):
        yield Health(Level.OK, ", ".join(f"{robot}/{name}" for name in ROBOT_NODES), check=check)


def _camera(snapshot: Snapshot, robot: str) -> Iterator[Health]:
    inputs = [e for e in snapshot.of(f"{robot}/drafter", False) if e.kind in PICTURE_TYPES]
    inputs.sort(key=lambda e: [*TYPES.values()].index(e.kind))
    if not inputs:
        return  # the drafter is missing, or not active: another finding says so
    good = [p for e in inputs for p in snapshot.on(e.topic, True) if not mismatches(p, e)]
    if good:
        found = f"{good[0].topic} ({good[0].kind}) by {good[0].node}"
        yield Health(Level.OK, found, check=f"camera of {robot or '/'}")
        return
    topics = camera_topics({e.topic: e.kind for e in inputs}, snapshot.endpoints)
    yield replace(no_picture(topics), check=f"camera of {robot or '/'}")


def _ends(snapshot: Snapshot, robot: str) -> Iterator[Health]:
    """Check odometry, base and guard, which the navigator needs from other nodes."""
    navigator = f"{robot}/navigator"
    for end in snapshot.of(navigator, False):
        if end.kind == ODOMETRY_TYPE and not snapshot.on(end.topic, True):
            advice = "start the odometry, or launch with odom:= and its topic"
            found = f"nothing publishes {end.topic}: motions are timed, not measured"
            yield Health(Level.WARN, found, advice, check=f"odometry of {robot or '/'}")
    for problem in base_and_guard(navigator, snapshot.endpoints):
        # Of a guard that is missing another finding says so.
        if problem.check != GUARD or f"{robot}/{GUARD}" in snapshot.nodes:
            yield replace(problem, level=Level.ERROR, check=f"{problem.check} of {robot or '/'}")


def _connections(snapshot: Snapshot, robot: str) -> Iterator[Health]:
    """Find nodes that publish and subscribe to a topic and cannot exchange messages: where a node
    has several ends, as for ``e_stop``, one that fits is enough."""
    ours = {f"{robot}/{name}" for name in (*ROBOT_NODES, "monitor", "simulator")}
    whys: dict[tuple[str, str, str], list[str]] = {}
    for subscription in (e for e in snapshot.endpoints if not e.publishes):
        for publisher in snapshot.on(subscription.topic, True):
            pair = publisher.topic, publisher.node, subscription.node
            if publisher.kind not in VELOCITIES and ours & {*pair[1:]}:
                whys.setdefault(pair, []).append(mismatches(publisher, subscription))
    wrong = {pair: each[0] for pair, each in whys.items() if all(each)}
    for (topic, publishes, subscribes), why in wrong.items():
        yield Health(
            Level.ERROR,
            f"{subscribes} receives nothing of {publishes}: {why}",
            "give both ends the same type and QoS (docs/interfaces.md lists ours)",
            check=f"topic {topic}",
        )
    if not wrong:
        found = "publishers and subscriptions agree on types and QoS"
        yield Health(Level.OK, found, check=f"topics of {robot or '/'}")


def _publishers(snapshot: Snapshot, robot: str) -> Iterator[Health]:
    owners = {f"{robot}/{t}": [f"{robot}/{name}" for name in names] for t, names in OWNERS.items()}
    navigator, movers = f"{robot}/navigator", owners[f"{robot}/cmd_vel"]
    owners |= {e.topic: movers for e in snapshot.of(navigator, True) if e.kind in TWISTS}
    names = {topic: [e.node for e in snapshot.on(topic, True)] for topic in owners}
    watch = PublisherWatch(owners)
    watch.look(names, 0.0)
    for topic, health in watch.look(names, snapshot.seconds + 1.0).items():
        yield replace(health, check=f"publishers of {topic}")


def _heartbeat(snapshot: Snapshot, node: str) -> Health:
    if node in snapshot.diagnostics:
        return Health(Level.OK, "comes", check=f"heartbeat of {node}")
    found = f"{node} said nothing on /diagnostics in {snapshot.seconds:g} s"
    return Health(
        Level.ERROR,
        found,
        "it hangs, or loads its model: see its log",
        check=f"heartbeat of {node}",
    )


@dataclass(frozen=True)
class Snapshot:
    """A graph's nodes by full name (twice if two share a name), endpoints, and the latest status of
    each node on ``/diagnostics``."""

    nodes: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    diagnostics: Mapping[str, Health] = field(default_factory=dict)
    domain: str = "0"
    seconds: float = 0.0

    def of(self, node: str, publishes: bool) -> list[Endpoint]:
        """The publishers or subscriptions of a node."""
        return [e for e in self.endpoints if e.node == node and e.publishes == publishes]

    def on(self, topic: str, publishes: bool) -> list[Endpoint]:
        """The publishers or subscriptions of a topic."""
        return [e for e in self.endpoints if e.topic == topic and e.publishes == publishes]


def check_live(seconds: float, namespace: str | None = None) -> Iterable[Health]:
    """Findings about the graph of this ROS domain, or about one namespace's robot.

    It looks for ``seconds``.
    """
    try:
        from diagnostic_msgs.msg import DiagnosticArray

        from ..nodes.runtime.node_thread import NodeThread
    except ImportError as error:
        advice = "source your ROS 2 (source /opt/ros/DISTRO/setup.bash), and try again"
        return [Health(Level.ERROR, f"ROS 2 cannot be imported ({error})", advice, check="graph")]
    thread = NodeThread(f"{NAME}_{os.getpid()}")
    node, diagnostics = thread.node, dict[str, Health]()

    def receive(message: DiagnosticArray) -> None:
        diagnostics.update({status.name: _health_of(status) for status in message.status})

    node.create_subscription(DiagnosticArray, "/diagnostics", receive, 100)
    thread.start()
    try:
        time.sleep(seconds)
        named = [
            f"{space.rstrip('/')}/{name}" for name, space in node.get_node_names_and_namespaces()
        ]
        topics = [topic for topic, _ in node.get_topic_names_and_types()]
        snapshot = Snapshot(
            nodes=tuple(sorted(name for name in named if NAME not in name)),
            endpoints=tuple(e for e in endpoints_of(node, topics) if NAME not in e.node),
            diagnostics=diagnostics.copy(),
            domain=os.environ.get("ROS_DOMAIN_ID", "0"),
            seconds=seconds,
        )
    finally:
        thread.close()
    return check_graph(snapshot, namespace)


def _health_of(status: Any) -> Health:
    number = status.level if isinstance(status.level, int) else int.from_bytes(status.level, "big")
    level = Level(number) if number in set(Level) else Level.ERROR
    who = f" ({status.hardware_id})" if status.hardware_id else ""
    values = {each.key: each.value for each in status.values}
    return Health(level, status.message, values=values, check=f"{status.name}{who}")
