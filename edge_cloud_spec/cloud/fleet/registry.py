"""The router's list of replicas: which one a client gets, and how many are needed.

The number of replicas follows the load: they are added quickly and drained slowly.

A client gets the replica with the highest random weight that is not too full. Rendezvous hashing
(Thaler and Ravishankar 1998): if a replica is lost only its clients move, and a new one gets only
the clients that weight it highest. The bound on load is that of consistent hashing with bounded
loads (Mirrokni, Thorup and Zadimoghaddam 2018, 1608.01350).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from ...errors import UserError

ABOVE_MEAN = 1.25  # a replica may have this many times the mean number of sessions
FULL_MEMORY = 0.9  # share of KV memory above which a replica gets no client while others have space
LATE_REPORTS = 2  # missing reports in a row after which a replica is late


@dataclass(frozen=True)
class ReplicaLoad:
    """A replica's load: ``sessions`` held, ``waiting`` passes queued, ``memory`` share of KV
    used."""

    sessions: int = 0
    waiting: int = 0
    memory: float = 0.0


def weight(client: str, replica: str) -> int:
    """The pseudo-random weight of a client and replica; constant over time."""
    key = f"{len(client)}:{client}{replica}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def place(client: str, loads: dict[str, ReplicaLoad]) -> str | None:
    """The name of this client's replica; None if there is none."""
    ranked = sorted(loads, key=lambda name: weight(client, name), reverse=True)
    sessions = sum(load.sessions for load in loads.values())
    # The most sessions that a replica may have after one more is placed.
    bound = math.ceil(ABOVE_MEAN * (sessions + 1) / max(1, len(loads)))
    for name in ranked:
        if loads[name].memory < FULL_MEMORY and loads[name].sessions < bound:
            return name
    return min(ranked, key=lambda name: (loads[name].memory, loads[name].sessions), default=None)


@dataclass
class _Entry:
    address: str
    load: ReplicaLoad
    ahead_s: float
    draining: bool
    missed: int = 0
    placed: int = 0  # clients since the last report


class Registry:
    """The replicas by name, from their reports. No I/O. ``placed`` counts clients per replica."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self.placed: Counter[str] = Counter()

    @property
    def loads(self) -> dict[str, ReplicaLoad]:
        """The loads of replicas that accept clients, including clients placed since their last
        report."""
        return self._loads(late=False)

    def _loads(self, *, late: bool) -> dict[str, ReplicaLoad]:
        """The loads of replicas whose reports are late (True) or punctual (False)."""
        return {
            name: replace(one.load, sessions=one.load.sessions + one.placed)
            for name, one in self._entries.items()
            if not one.draining and (one.missed >= LATE_REPORTS) == late
        }

    def ahead_s(self, name: str) -> float:
        """How far a replica's clock is ahead of the router's, s; KeyError for an unknown
        replica."""
        return self._entries[name].ahead_s

    def reported(self, name: str, address: str, load: ReplicaLoad, ahead_s: float = 0.0) -> None:
        """Record a replica's address, load and clock offset."""
        known = self._entries.get(name)
        # At another address it was started anew.
        draining = known is not None and known.draining and known.address == address
        self._entries[name] = _Entry(address, load, ahead_s, draining)

    def missed(self, name: str) -> None:
        """Record that a replica's report is overdue."""
        if name in self._entries:
            self._entries[name].missed += 1

    def left(self, name: str) -> None:
        """Remove a replica that died or was stopped."""
        self._entries.pop(name, None)

    def drain(self, name: str) -> None:
        """Send no more clients to this replica."""
        if name in self._entries:
            self._entries[name].draining = True

    def place(self, client: str, avoid: Collection[str] = ()) -> tuple[str, str] | None:
        """The name and address of this client's replica; None if none serves.

        ``avoid``: addresses that the client could not reach, used last. Replicas whose report is
        late come before those: they may only be busy with robots of a replica that died.
        """
        choices = (self.loads, self._loads(late=True))
        reached = (
            {name: load for name, load in loads.items() if self._entries[name].address not in avoid}
            for loads in choices
        )
        name = place(client, next(filter(None, (*reached, *choices)), {}))
        if name is None:
            return None
        entry = self._entries[name]
        entry.placed += 1
        self.placed[name] += 1
        return name, entry.address


@dataclass(frozen=True)
class ScalingLimits:
    """When to add or drain one of ``least`` to ``most`` replicas. Raises UserError.

    Add one when the mean number of sessions or of waiting passes stays above its bound for ``up_s``
    seconds; drain one when, without it, the mean of sessions would stay at or below ``idle`` times
    the bound for ``down_s`` seconds.
    """

    least: int = 1
    most: int = 1
    sessions: float = 16.0
    waiting: float = 8.0
    idle: float = 0.5
    up_s: float = 3.0
    down_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError("--replicas must be at least 1, --max-replicas not below it")


class Scaling:
    """Decides how many replicas a fleet needs: ``wanted``. Times are monotonic, s."""

    def __init__(self, limits: ScalingLimits) -> None:
        self.wanted = limits.least
        self._limits = limits
        self._since: float | None = None  # since when a change has been due
        self._step = 0  # its direction: 1, 0 or -1

    def look(self, loads: Collection[ReplicaLoad], now: float) -> int:
        """Update and return ``wanted`` from the loads of the replicas that accept clients.

        It stays constant while replicas are starting.
        """
        limits, step = self._limits, self._due(loads)
        if step != self._step:
            self._step, self._since = step, now
        held = limits.up_s if step > 0 else limits.down_s
        if step and self._since is not None and now - self._since >= held:
            self.wanted += step
            self._step, self._since = 0, None
        return self.wanted

    def _due(self, loads: Collection[ReplicaLoad]) -> int:
        limits, count = self._limits, len(loads)
        if count != self.wanted:
            return 0
        sessions = sum(load.sessions for load in loads)
        waiting = sum(load.waiting for load in loads)
        busy = sessions > limits.sessions * count or waiting > limits.waiting * count
        if busy:
            return 1 if count < limits.most else 0
        fits = sessions <= limits.idle * limits.sessions * (count - 1)
        return -1 if count > limits.least and fits and not waiting else 0
