"""Who publishes what to whom: the graph's endpoints, and whether the navigator's commands and the
stop guard's stops reach a base. No ROS here; the navigator and ``doctor`` ask the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..health import Health, Level

TWISTS = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")
VELOCITIES = (*TWISTS, "unitree_api/msg/Request")
PULSE_TYPE = "std_msgs/msg/Bool"  # the navigator publishes one topic of this type
BASE, GUARD = "base", "stop_guard"  # what a problem is about; the latter is the node's name, too
# What subscribes to commands and is no base: ours, a bag's recorder, and consoles
OBSERVERS = {"observer", "recorder", "viewer", "rosbag2_recorder", "foxglove_bridge", "rviz"}
CONSOLE = "_ros2cli"  # with a number behind it


@dataclass(frozen=True)
class Endpoint:
    """One node's publisher (``publishes``) or subscription; ``node`` and ``topic`` are full
    names."""

    node: str
    topic: str
    kind: str  # of its messages
    publishes: bool
    reliable: bool = True
    latched: bool = False  # durability transient local

    @property
    def is_guard(self) -> bool:
        """Whether it is a stop guard's, by its name."""
        return _name(self.node) == GUARD


def full_name(node: Any, name: str) -> str:
    """This name in the namespace of ``node``, unless it is a full one."""
    return name if name.startswith("/") else f"{node.get_namespace().rstrip('/')}/{name}"


def endpoints_of(node: Any, topics: Iterable[str]) -> Iterator[Endpoint]:
    """The endpoints of these topics (full names), as ``node`` has discovered them."""
    for topic in topics:
        for info in (
            *node.get_publishers_info_by_topic(topic),
            *node.get_subscriptions_info_by_topic(topic),
        ):
            qos = info.qos_profile
            yield Endpoint(
                node=f"{info.node_namespace.rstrip('/')}/{info.node_name}",
                topic=topic,
                kind=info.topic_type,
                publishes=info.endpoint_type.name == "PUBLISHER",
                reliable=qos.reliability.name != "BEST_EFFORT",
                latched=qos.durability.name == "TRANSIENT_LOCAL",
            )


def mismatches(publisher: Endpoint, subscription: Endpoint) -> str:
    """Why these two cannot exchange messages; empty if they can."""
    if publisher.kind != subscription.kind:
        return f"it is {publisher.kind} there and {subscription.kind} here"
    wrong = []
    if subscription.reliable and not publisher.reliable:
        wrong.append("it is published best effort, and reliable is asked for")
    if subscription.latched and not publisher.latched:
        wrong.append("it is published volatile, and transient local is asked for")
    return " and ".join(wrong)


def base_and_guard(navigator: str, endpoints: Sequence[Endpoint]) -> Iterator[Health]:
    """What keeps the commands of this navigator (full name), or its guard's stops, from the base.

    ``check`` is ``BASE`` or ``GUARD``. A WARN may end by itself, an ERROR does not.
    """
    ours = [e for e in endpoints if e.publishes and e.node == navigator]
    pulses = {e.topic for e in ours if e.kind == PULSE_TYPE}
    guards = {e.node for e in endpoints if e.is_guard and e.topic in pulses and not e.publishes}
    for own in ours:
        if own.kind in VELOCITIES:
            others = [e for e in endpoints if e.topic == own.topic and e.node != navigator]
            bases = [e for e in others if not e.publishes and not _observes(_name(e.node))]
            yield from _base(own, bases)
            sent = {e.kind for e in others if e.publishes and e.node in guards}
            yield from _guard(own, guards, sent)


def _base(own: Endpoint, subscribers: Sequence[Endpoint]) -> Iterator[Health]:
    other = [e for e in subscribers if e.kind != own.kind]  # one of them may be the base
    wrong = other or [e for e in subscribers if mismatches(own, e)]
    if not subscribers:
        advice = "start the base's driver, or launch with cmd_vel:= and its topic"
        yield Health(Level.WARN, f"nobody subscribes to {own.topic}", advice, check=BASE)
    elif wrong:
        first, advice = wrong[0], "give the base's driver the QoS that docs/interfaces.md lists"
        why = mismatches(own, first)
        if first.kind != own.kind:
            stamped = "true" if first.kind == TWISTS[1] else "false"
            setting = f"stamped to {stamped}" if first.kind in TWISTS else "kind to what that needs"
            why = f"it takes {_name(first.kind)}, not {_name(own.kind)}"
            advice = f"set output.{setting} (navigator, stop_guard), and start both again"
            advice += "" if len(other) == len(subscribers) else "; if it is no base, end it"
        level = Level.ERROR if other or len(wrong) == len(subscribers) else Level.WARN
        yield Health(level, f"{first.node} receives no {own.topic}: {why}", advice, check=BASE)


def _guard(own: Endpoint, guards: set[str], sent: set[str]) -> Iterator[Health]:
    what = " and ".join(sorted(map(_name, sent))) or "nothing"
    found = (
        f"the stop guard cannot stop the base: it sends {what} on {own.topic}, and this node "
        f"{_name(own.kind)}"
    )
    advice = "give the guard the navigator's output.* and cmd_vel:=, and start it again"
    if not guards:
        found, advice = "no stop guard receives the pulse", "start it, or set guarded to false"
    if sent != {own.kind}:
        yield Health(Level.ERROR, found, advice, check=GUARD)


def _observes(name: str) -> bool:
    return name in OBSERVERS or name.startswith(CONSOLE)


def _name(full: str) -> str:
    return full.rpartition("/")[2]
