"""Which nodes are there and speak: diagnostics once a second are a node's heartbeat."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from .health import Health, Level

UNSEEN_S = 2.0  # a node's diagnostics may be discovered before its name
LIE_S = 5.0  # a lie is reported for so long after it was told last
STOOD_STILL_S = 1.0  # between two looks: this process stood still, and its ears too


@dataclass
class _Heard:
    at: float
    message: str
    newest_at: float  # when the newest instance spoke last
    instances: list[str] = field(default_factory=list)  # in the order of their first words
    lied: float = float("-inf")
    absent_since: float | None = None


@dataclass
class Heartbeats:
    """Full node names are watched from ``started``; times are steady seconds.

    A node that said nothing for ``silence`` hangs; nodes have ``startup`` to appear.
    """

    names: tuple[str, ...]
    started: float
    silence: float = 3.0
    startup: float = 10.0
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _looked: float | None = None

    def hear(self, name: str, instance: str, message: str, now: float) -> None:
        """A status was published in the name of this node, by this ``instance`` of it."""
        if name not in self.names:
            return
        heard = self._heard.setdefault(name, _Heard(now, message, now))
        heard.at, heard.message = now, message
        newest = heard.instances[-1] if heard.instances else ""
        if instance != newest and instance in heard.instances:
            if now - heard.newest_at <= self.silence:
                heard.lied = now  # the one from before the other speaks again: there are two
                return
            heard.instances.remove(instance)  # the other has ended, and this one goes on alone
        heard.newest_at = now
        if instance != newest:
            heard.instances = [*heard.instances[-3:], instance]  # after a restart, a new one

    def look(self, present: Collection[str], now: float) -> dict[str, Health]:
        """The health of each watched node; ``present``: the full names that the graph has."""
        if self._looked is not None and now - self._looked > STOOD_STILL_S:
            for heard in self._heard.values():
                heard.at += now - self._looked
        self._looked = now
        found = {name: self._health(name, name in present, now) for name in self.names}
        return {  # a node that was never heard may still start
            name: replace(health, check=name if name in self._heard else "")
            for name, health in found.items()
        }

    def _health(self, name: str, present: bool, now: float) -> Health:
        heard = self._heard.get(name)
        if heard is None:
            return self._unheard(name, present, now - self.started)
        silent = now - heard.at
        values = {"silent_s": round(silent, 1)}
        if present:
            heard.absent_since = None
        elif heard.absent_since is None:
            heard.absent_since = now
        if not present and silent > self.silence:
            advice = "start it again, and see its log for why it ended"
            return Health(Level.ERROR, f"{name} is gone", advice, values)
        if heard.absent_since is not None and now - heard.absent_since > UNSEEN_S:
            said = f"diagnostics come in the name of {name}, which is not running"
            return Health(Level.ERROR, said, "find who publishes them and end it", values)
        if silent > self.silence:
            said = f"{name} has said nothing for {silent:.0f} s; last: {heard.message!r}"
            return Health(Level.STALE, said, "see its log, or restart it", values)
        if now - heard.lied < LIE_S:
            said = f"two nodes publish diagnostics in the name of {name}"
            return Health(Level.ERROR, said, "end one of them", values)
        return Health(Level.OK, f"{name} speaks", values=values)

    def _unheard(self, name: str, present: bool, waited: float) -> Health:
        if present:
            level = Level.OK if waited < self.silence else Level.WARN
            said = f"{name} has said nothing yet"
            return Health(level, said, "it loads its model, or see its log" if level else "")
        if waited < self.startup:
            return Health(Level.OK, f"{name} is not running yet")
        return Health(Level.ERROR, f"{name} is not running", "start it, or see its log")
