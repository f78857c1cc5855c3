"""Processes the nodes' health, and checks who publishes. No ROS here.

``HealthConsole`` selects the findings to print; ``PublisherWatch`` (for the monitor and ``doctor``)
finds nodes that publish in another's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..health import Health, Level

WARNING_S = 4.0  # a warning that is over sooner is not reported: something may still start
ERROR_S = 0.5  # two looks: a publisher may not be discovered yet
WELL_S = 3.0  # what comes and goes faster is one trouble


@dataclass
class _Trouble:
    since: float
    last: float  # when it was seen last
    severity: int = 0  # of what was reported
    reported: set[str] = field(default_factory=set)  # advice


@dataclass
class HealthConsole:
    """Prints a node's health to its console: each trouble once, and its end.

    It gets all healths once a second; those without a ``check`` are not printed.
    """

    _troubles: dict[str, _Trouble] = field(default_factory=dict)

    def look(self, healths: Iterable[Health], now: float) -> Iterator[tuple[Level, str]]:
        """The lines to print now, with their levels; ``now`` is monotonic, s.

        A lasting trouble is printed again if its advice changes, unless it has become less severe.
        """
        for health in healths:
            if not (health.check and health.severity):
                continue
            trouble = self._troubles.setdefault(health.check, _Trouble(now, now))
            trouble.last = now
            settles = WARNING_S if health.level == Level.WARN else ERROR_S
            known = health.advice in trouble.reported or health.severity < trouble.severity
            if not known and now - trouble.since >= settles:
                trouble.reported |= {health.advice, ""}
                trouble.severity = health.severity
                yield health.level, f"{health.check}: {health}"
        for check, trouble in list(self._troubles.items()):
            if now - trouble.last >= WELL_S:
                del self._troubles[check]
                if trouble.reported:
                    yield Level.OK, f"{check}: well again"


OUTPUT = "output"  # the key of how a node commands the base, in its diagnostics


def output_health(outputs: Mapping[str, str]) -> dict[str, Health]:
    """An ERROR if the nodes that command one base (full names) do not do it in one way."""
    if len({*outputs.values()}) < 2:
        return {}
    found = "; ".join(f"{name} has {output}" for name, output in sorted(outputs.items()))
    advice = "give navigator and stop_guard the same output.* and base_frame, and start them again"
    return {OUTPUT: Health(Level.ERROR, found, advice, check=OUTPUT)}


UNKNOWN_S = 2.0  # a publisher is discovered before its node's name is; then it counts by its name
LEFT_S = 30.0  # a node that was killed is seen for twenty seconds more
UNKNOWN_NODE = "_NODE_NAME_UNKNOWN_"

OWNERS = {
    "decode_request": ("drafter",),
    "draft": ("drafter",),
    "verified_tokens": ("drafter",),
    "instruction_status": ("drafter",),
    "verdict": ("cloud_bridge",),
    "prediction": ("cloud_bridge",),
    "link_state": ("cloud_bridge",),
    "nav_command": ("navigator",),
    "nav_status": ("navigator",),
    "free_space": ("navigator",),
    "pulse": ("navigator",),
    "cmd_vel": ("navigator", "stop_guard"),
}
"""Topic -> who alone publishes it, once each; all relative to one robot's namespace."""

ROBOT_NODES = tuple(dict.fromkeys(name for names in OWNERS.values() for name in names))
"""The nodes that a robot cannot do without."""


@dataclass
class PublisherWatch:
    """Checks who publishes. ``owners``: full topic name -> full names of its expected publishers.

    ``allowed``: other nodes (full names) that may publish on any of these topics.
    """

    owners: Mapping[str, Sequence[str]]
    allowed: frozenset[str] = frozenset()
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(self, publishers: Mapping[str, Sequence[str]], now: float) -> dict[str, Health]:
        """A health per topic with a fault; ``publishers``: full node names by topic, one per
        publisher."""
        faults: dict[str, Health] = {}
        seen: set[tuple[str, str]] = set()
        for topic, owners in self.owners.items():
            counts = Counter(publishers.get(topic, ()))
            strangers = {name for name in counts if name not in {*owners, *self.allowed}}
            twice = {name for name in owners if counts[name] > 1}
            for name in strangers | twice:
                seen.add((topic, name))
                self._since.setdefault((topic, name), now)
            long_ago = now - UNKNOWN_S
            named = {
                n for n in strangers if UNKNOWN_NODE not in n or self._since[topic, n] <= long_ago
            }
            if named:
                faults[topic] = _strangers(topic, " and ".join(owners), sorted(named))
            elif twice:
                first = min(twice, key=lambda name: self._since[topic, name])
                faults[topic] = _twice(topic, first, now - self._since[topic, first])
        self._since = {key: at for key, at in self._since.items() if key in seen}
        return faults


def _strangers(topic: str, owner: str, names: Sequence[str]) -> Health:
    who = ", ".join("a program without a ROS name" if UNKNOWN_NODE in n else n for n in names)
    return Health(
        Level.ERROR,
        f"{who} publishes on {topic}, where {owner} alone should",
        "press the e_stop and end it, or name it in the parameter allowed_publishers",
        {"foreign": who},
        check=topic,
    )


def _twice(topic: str, owner: str, seconds: float) -> Health:
    level = Level.ERROR if seconds > LEFT_S else Level.WARN
    found = f"two nodes with the name {owner} publish on {topic}"
    advice = "end one of them; one that was killed is seen for twenty seconds more"
    return Health(level, found, advice, {"foreign": owner})
