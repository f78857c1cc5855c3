"""A lease: the router's signed word that a client may decode at a replica, for a short while."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass

KEY_BYTES = 32
_TAG_BYTES = 32


@dataclass(frozen=True)
class Lease:
    """``client`` names the credential (empty: a fleet without any); ``expires`` is Unix time by the
    replica's clock, s: the clocks of two machines may differ by more than a lease lasts.
    """

    client: str
    replica: str
    expires: float


def new_key() -> bytes:
    """A new fleet's key, known only to its router and replicas."""
    return secrets.token_bytes(KEY_BYTES)


def sign(lease: Lease, key: bytes) -> bytes:
    """The lease as a robot shows it: its HMAC-SHA256, and what that is of."""
    said = json.dumps([lease.client, lease.replica, lease.expires]).encode()
    return hmac.digest(key, said, hashlib.sha256) + said


def lease_problem(shown: bytes, key: bytes, client: str, replica: str, now: float) -> str:
    """Why this client may not decode at this replica with what it shows; empty: it may.

    ``now`` is Unix time, s. Nothing of an unsigned lease is read.
    """
    if not shown:
        return "a lease is needed: ask the fleet's router for a replica"
    tag, said = shown[:_TAG_BYTES], shown[_TAG_BYTES:]
    if not hmac.compare_digest(tag, hmac.digest(key, said, hashlib.sha256)):
        return "the lease is not signed by this fleet; ask its router"
    lease = Lease(*json.loads(said))
    if lease.replica != replica:
        return "the lease is for another replica; ask the fleet's router"
    if lease.client != client:
        return "the lease was given to another client; ask the fleet's router"
    if now >= lease.expires:
        return "the lease has expired; ask the fleet's router for another"
    return ""
