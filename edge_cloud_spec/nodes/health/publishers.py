"""Who publishes what may move the robot: anybody but the node that should is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .health import Health, Level

UNKNOWN_S = 0.5  # a publisher is discovered before its node's name is; then it counts by its name
LEFT_S = 30.0  # a node that was killed is seen for twenty seconds more
UNKNOWN = "_NODE_NAME_UNKNOWN_"

OWNERS = {
    "decode_request": "drafter",
    "draft": "drafter",
    "verified_tokens": "drafter",
    "instruction_status": "drafter",
    "verdict": "cloud_bridge",
    "prediction": "cloud_bridge",
    "link_state": "cloud_bridge",
    "nav_command": "navigator",
    "nav_status": "navigator",
    "cmd_vel": "navigator",
}
"""Topic -> the one node that publishes it; all relative to one robot's namespace."""

NODES = tuple(dict.fromkeys(OWNERS.values()))
"""The nodes that a robot cannot do without."""


@dataclass
class PublisherWatch:
    """``owners``: full topic name -> full name of the one node that may publish there.

    ``allowed``: other nodes (full names) that may publish on any of these topics.
    """

    owners: Mapping[str, str]
    allowed: frozenset[str] = frozenset()
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(self, publishers: Mapping[str, Sequence[str]], now: float) -> dict[str, Health]:
        """A health for each topic with a fault; ``publishers``: full node names, one each."""
        faults: dict[str, Health] = {}
        seen: set[tuple[str, str]] = set()
        for topic, owner in self.owners.items():
            counts = Counter(publishers.get(topic, ()))
            strangers = {name for name in counts if name != owner and name not in self.allowed}
            twice = {owner} if counts[owner] > 1 else set()
            for name in strangers | twice:
                seen.add((topic, name))
                self._since.setdefault((topic, name), now)
            named = {n for n in strangers if self._counts_now(topic, n, now)}
            if named:
                faults[topic] = _strangers(topic, owner, sorted(named))
            elif twice:
                faults[topic] = _twice(topic, owner, now - self._since[topic, owner])
        self._since = {key: at for key, at in self._since.items() if key in seen}
        return faults

    def _counts_now(self, topic: str, name: str, now: float) -> bool:
        return UNKNOWN not in name or now - self._since[topic, name] >= UNKNOWN_S


def _strangers(topic: str, owner: str, names: Sequence[str]) -> Health:
    who = ", ".join("a program without a ROS name" if UNKNOWN in n else n for n in names)
    return Health(
        Level.ERROR,
        f"{who} publishes on {topic}, where {owner} alone should",
        "press the e_stop and end it, or name it in the parameter allowed_publishers",
        {"foreign": who},
        check=topic,
    )


def _twice(topic: str, owner: str, seconds: float) -> Health:
    level = Level.ERROR if seconds > LEFT_S else Level.WARN
    said = f"two nodes with the name {owner} publish on {topic}"
    advice = "end one of them; one that was killed is seen for twenty seconds more"
    return Health(level, said, advice, {"foreign": owner})
