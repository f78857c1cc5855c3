"""Whether the navigator can move the robot: stops, odometry, what it refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...nav.status import Status
from .health import Health, Level, worst_of


@dataclass(frozen=True)
class NavigatorFacts:
    """What the navigator knows of itself.

    ``topic``: odometry's; ``missing``: why odometry that is needed does not tell where the base is,
    empty where it does; ``timed``: odometry was never heard, and motions are timed. ``problem``:
    the last one, while it is recent. ``parameters``: what is wrong with them.
    """

    status: Status
    topic: str
    missing: str = ""
    timed: bool = False
    problem: str = ""
    parameters: str = ""
    e_stop: bool = False
    values: Mapping[str, object] = field(default_factory=dict)


def navigator_health(facts: NavigatorFacts) -> Health:
    """The worst of what holds the robot, its odometry and its last problem."""
    found = [Health(Level.OK, facts.status.text, values=facts.values)]
    if facts.parameters:
        said = f"nothing moves: parameter {facts.parameters}"
        found.append(Health(Level.ERROR, said, "set it again (ros2 param set)"))
    if facts.e_stop:
        advice = "release it (publish false on e_stop), then publish the instruction again"
        found.append(Health(Level.WARN, "e_stop is on", advice))
    if facts.missing:
        advice = f"see the base's driver, or what publishes {facts.topic}; nothing moves without it"
        said = f"{facts.missing} ({facts.topic})"
        found.append(Health(Level.ERROR, said, advice, check="odometry"))
    elif facts.timed:
        said = f"no odometry on {facts.topic}: motions are timed, not measured"
        advice = "start it, launch with odom:=, or set the parameter odometry to off"
        found.append(Health(Level.WARN, said, advice, check="odometry"))
    if facts.problem:
        found.append(_problem(facts.problem, facts.topic))
    return worst_of(found)


def _problem(problem: str, topic: str) -> Health:
    advice = ""
    if "jumped" in problem:
        advice = f"check what publishes {topic}: two sources, or a base that was carried"
    elif "is not a number" in problem or "no place" in problem:
        advice = f"check what publishes {topic}"
    return Health(Level.WARN, problem, advice, {"last problem": problem})
