"""The replicas of a fleet as its front knows them, and which of them gets a client.

The highest random weight wins, unless that replica is too full: rendezvous hashing (Thaler and
Ravishankar 1998) moves only the clients of a replica that went, and to a new one only those that it
wins; the bound on a replica's load is that of consistent hashing with bounded loads (Mirrokni,
Thorup and Zadimoghaddam 2018, 1608.01350).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

ABOVE_MEAN = 1.25  # times the mean of sessions that a replica may have
FULL = 0.9  # share of its KV memory with which a replica gets no client while another has room
MISSES = 2  # reports in a row that did not come, after which a replica is late


@dataclass(frozen=True)
class ReplicaLoad:
    """What a replica holds: ``waiting`` passes are queued, ``memory`` is the share of its KV."""

    sessions: int = 0
    waiting: int = 0
    memory: float = 0.0


def weight(client: str, replica: str) -> int:
    """The random weight of this pair, the same for ever."""
    said = f"{len(client)}:{client}{replica}".encode()
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "big")


def place(client: str, loads: dict[str, ReplicaLoad]) -> str | None:
    """The replica of this client, by name; None where there is none."""
    ranked = sorted(loads, key=lambda name: weight(client, name), reverse=True)
    bound = _bound(loads.values())
    for name in ranked:
        if loads[name].memory < FULL and loads[name].sessions < bound:
            return name
    return min(ranked, key=lambda name: (loads[name].memory, loads[name].sessions), default=None)


def _bound(loads: Iterable[ReplicaLoad]) -> float:
    """How many sessions a replica may have, with one more among them all."""
    sessions = [load.sessions for load in loads]
    return math.ceil(ABOVE_MEAN * (sum(sessions) + 1) / len(sessions)) if sessions else 0.0


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
