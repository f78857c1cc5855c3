"""Which replica gets a client: the highest random weight, unless that replica is too full.

Rendezvous hashing (Thaler and Ravishankar 1998) moves only the clients of a replica that went,
and to a new one only those that it wins; the bound on a replica's load is that of consistent
hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018, 1608.01350).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

ABOVE_MEAN = 1.25  # times the mean of sessions that a replica may have
FULL = 0.9  # share of its KV memory with which a replica gets no client while another has room


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
