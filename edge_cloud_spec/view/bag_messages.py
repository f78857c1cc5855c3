"""Reads the messages of a bag under the graph's topic names. Needs no ROS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..observe.bag import Bag, robot_topics
from .entities import TOPICS

TYPES = dict.fromkeys(TOPICS, "") | {
    "nav_status": "edge_cloud_spec/msg/NavStatus",
    "instruction_status": "edge_cloud_spec/msg/InstructionStatus",
    "link_state": "edge_cloud_spec/msg/LinkState",
}
"""Of the topics that held a std_msgs/String once; of others any that has their fields."""
DIAGNOSTICS = "/diagnostics"  # of all robots

Timed = tuple[float, str, Any]


def bag_messages(path: Path, namespace: str = "") -> Iterator[Timed]:
    """(seconds since the first, topic, message), in the order of time. Raises UserError.

    ``namespace``: the robot's, if the bag has several.
    """
    bag = Bag(path)
    topics = robot_topics(bag.topics, TYPES, namespace)
    names = {full.lstrip("/"): name for name, full in topics.items()}
    if not names:
        raise UserError(f"{path} has none of the graph's topics to show")
    names[DIAGNOSTICS.lstrip("/")] = DIAGNOSTICS
    begun = None
    for stamp, full, _, message in bag.read(names):
        begun = stamp if begun is None else begun
        yield (stamp - begun) / 1e9, names[full], message
