"""The messages of a bag under the graph's own topic names. No ROS is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..observe.bag import Bag
from .entities import TOPICS

TYPED = {"nav_status": "edge_cloud_spec/msg/NavStatus"}
"""Topics that held a std_msgs/String once."""

Timed = tuple[float, str, Any]


def bag_messages(path: Path, namespace: str = "") -> Iterator[Timed]:
    """(seconds since the first, topic, message), in the order of time. Raises UserError.

    ``namespace``: of the robot, where the bag has several.
    """
    bag = Bag(path)
    ours = _ours(bag, namespace.strip("/"))
    begun = None
    for stamp, full, _, message in bag.read(set(ours)):
        begun = stamp if begun is None else begun
        yield (stamp - begun) / 1e9, ours[full], message


def _ours(bag: Bag, namespace: str) -> dict[str, str]:
    """Names in the bag (without the first slash) and in the graph."""
    found: dict[str, dict[str, str]] = {}
    shared = {}
    for full in bag.topics:
        name = full.lstrip("/")
        if f"/{name}" in TOPICS:
            shared[name] = f"/{name}"
        for topic in TOPICS:
            if name == topic or name.endswith(f"/{topic}"):
                found.setdefault(name[: -len(topic)].rstrip("/"), {})[name] = topic
    robots = {space: names for space, names in found.items() if "instruction" in names.values()}
    robots = robots or found
    if not namespace and len(robots) > 1 and "" not in robots:
        named = ", ".join(sorted(robots))
        raise UserError(f"{bag.path} has several robots, choose one: --namespace {named}")
    space = namespace if namespace or "" in robots else next(iter(robots), "")
    if space not in found:
        wanted = f"under /{namespace} " if namespace else ""
        raise UserError(f"{bag.path} has none of the graph's topics {wanted}to show")
    for name, topic in found[space].items():
        kind = bag.topics[f"/{name}"]
        if kind != TYPED.get(topic, kind):
            raise UserError(
                f"{bag.path} has {kind} on /{name}, not {TYPED[topic]}: "
                "show it with the edge_cloud_spec that recorded it"
            )
    return {**found[space], **shared}
