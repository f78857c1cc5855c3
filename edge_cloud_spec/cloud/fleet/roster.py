"""The replicas of a fleet as its front knows them: addresses, loads, and who takes clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from .placement import ReplicaLoad, place

MISSES = 2  # reports in a row that did not come, after which a replica is late


@dataclass
class _Entry:
    address: str
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    missed: int = 0
    draining: bool = False
    ahead_s: float = 0.0


class Roster:
    """Replicas by name. No I/O: others report to it. ``placed`` counts clients by replica."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._since_report: Counter[str] = Counter()  # clients placed that no report counts yet
        self.placed: Counter[str] = Counter()

    @property
    def loads(self) -> dict[str, ReplicaLoad]:
        """What the replicas hold that take clients, with those that were placed just now."""
        return self._loads(late=False)

    def _loads(self, *, late: bool) -> dict[str, ReplicaLoad]:
        """Of those that are late with their reports, or of those that are not."""
        return {
            name: replace(one.load, sessions=one.load.sessions + self._since_report[name])
            for name, one in self._entries.items()
            if not one.draining and (one.missed >= MISSES) == late
        }

    def address(self, name: str) -> str:
        """Where robots reach it; KeyError where it is gone."""
        return self._entries[name].address

    def ahead_s(self, name: str) -> float:
        """How far its clock is ahead of the front's, s; KeyError where it is gone."""
        return self._entries[name].ahead_s

    def reported(self, name: str, address: str, load: ReplicaLoad, ahead_s: float = 0.0) -> None:
        """It serves at this address, holds this, and has this clock."""
        entry = self._entries.get(name)
        if entry is None or entry.address != address:
            entry = self._entries[name] = _Entry(address)  # it was started, or started again
        entry.load, entry.missed, entry.ahead_s = load, 0, ahead_s
        self._since_report[name] = 0

    def missed(self, name: str) -> None:
        """A report was due."""
        if name in self._entries:
            self._entries[name].missed += 1

    def left(self, name: str) -> None:
        """It died, or was stopped."""
        self._entries.pop(name, None)

    def drain(self, name: str) -> None:
        """It gets no more clients."""
        if name in self._entries:
            self._entries[name].draining = True

    def place(self, client: str, avoid: Collection[str] = ()) -> tuple[str, str] | None:
        """The name and the address of this client's replica; None where none serves.

        ``avoid``: addresses that the client could not reach. One that is late may only be busy:
        after a death all robots are at the others. So it is taken before one that was not reached.
        """
        choices = (self.loads, self._loads(late=True))
        reached = (
            {name: load for name, load in loads.items() if self._entries[name].address not in avoid}
            for loads in choices
        )
        name = place(client, next(filter(None, (*reached, *choices)), {}))
        if name is None:
            return None
        self._since_report[name] += 1
        self.placed[name] += 1
        return name, self._entries[name].address
