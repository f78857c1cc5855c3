"""The replicas of a fleet as its router knows them: who gets a client, and how many are needed.

Their number follows from the load: replicas are added soon, and drained late.

A client gets the replica of the highest random weight that is not too full. Rendezvous hashing
(Thaler and Ravishankar 1998): only the clients of a lost replica move, and a new one gets only
those whose highest weight it has. The bound on a replica's load is that of consistent hashing with
bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018, 1608.01350).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from ...errors import UserError

ABOVE_MEAN = 1.25  # times the mean of sessions that a replica may have
FULL = 0.9  # share of its KV memory with which a replica gets no client while another has room
MISSES = 2  # reports in a row that did not come, after which a replica is late


@dataclass(frozen=True)
class ReplicaLoad:
    """A replica's load: ``waiting`` passes are queued, ``memory`` is the used share of its KV."""

    sessions: int = 0
    waiting: int = 0
    memory: float = 0.0


def weight(client: str, replica: str) -> int:
    """The pseudo-random weight of a client and a replica; always the same."""
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
    """The most sessions that a replica may have, once one more is placed."""
    sessions = [load.sessions for load in loads]
    return math.ceil(ABOVE_MEAN * (sum(sessions) + 1) / len(sessions)) if sessions else 0.0


@dataclass
class _Entry:
    address: str
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    missed: int = 0
    draining: bool = False
    ahead_s: float = 0.0


class Registry:
    """Replicas by name. No I/O: others report to it. ``placed`` counts clients by replica."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._since_report: Counter[str] = Counter()  # clients placed that no report counts yet
        self.placed: Counter[str] = Counter()

    @property
    def loads(self) -> dict[str, ReplicaLoad]:
        """The loads of replicas that take clients, with clients that were placed just now."""
        return self._loads(late=False)

    def _loads(self, *, late: bool) -> dict[str, ReplicaLoad]:
        """Loads of the replicas whose reports are late, or of the others."""
        return {
            name: replace(one.load, sessions=one.load.sessions + self._since_report[name])
            for name, one in self._entries.items()
            if not one.draining and (one.missed >= MISSES) == late
        }

    def ahead_s(self, name: str) -> float:
        """How far a replica's clock is ahead of the router's, s; KeyError where it is gone."""
        return self._entries[name].ahead_s

    def reported(self, name: str, address: str, load: ReplicaLoad, ahead_s: float = 0.0) -> None:
        """Take a replica's report: its address, load and clock offset."""
        entry = self._entries.get(name)
        if entry is None or entry.address != address:
            entry = self._entries[name] = _Entry(address)  # it was started, or started again
        entry.load, entry.missed, entry.ahead_s = load, 0, ahead_s
        self._since_report[name] = 0

    def missed(self, name: str) -> None:
        """Note that a report is overdue."""
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


@dataclass(frozen=True)
class ScalingLimits:
    """When to add or drain one of ``least`` to ``most`` replicas. Raises UserError.

    Add one when the mean of sessions or of waiting passes has been above its bound for ``up_s``
    (s); drain one when, without it, the sessions would have been at most ``idle`` of the bound for
    ``down_s``.
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
    """Decides how many replicas a fleet should have: ``wanted``. Times are monotonic, s."""

    def __init__(self, limits: ScalingLimits) -> None:
        self.wanted = limits.least
        self._limits = limits
        self._since: float | None = None  # since when it should change, and
        self._step = 0  # in which direction

    def look(self, loads: Collection[ReplicaLoad], now: float) -> int:
        """Returns ``wanted`` for these loads of the replicas that accept clients.

        It does not change while replicas are still starting.
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
