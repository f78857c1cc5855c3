"""Leases: the router's signed permission for a client to decode at one replica, for a short
time."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

from ...errors import first_mistake

KEY_BYTES = 32
_TAG_BYTES = 32


def new_key() -> bytes:
    """A new signing key, shared only by a fleet's router and replicas."""
    return secrets.token_bytes(KEY_BYTES)


def sign(client: str, replica: str, expires: float, key: bytes) -> bytes:
    """A signed lease: its HMAC-SHA256, then its content.

    ``client``: the credential's name (empty in a fleet without credentials). ``expires``: Unix time
    on the replica's clock, s, since two machines' clocks may differ by more than a lease lasts.
    """
    content = json.dumps([client, replica, expires]).encode()
    return hmac.digest(key, content, hashlib.sha256) + content


def lease_problem(shown: bytes, key: bytes, client: str, replica: str, now: float) -> str:
    """Why a client's signed lease does not admit it to this replica; empty if it does.

    ``now`` is Unix time, s. The signature is checked before anything is parsed.
    """
    if not shown:
        return "a lease is needed: ask the fleet's router for a replica"
    tag, content = shown[:_TAG_BYTES], shown[_TAG_BYTES:]
    if not hmac.compare_digest(tag, hmac.digest(key, content, hashlib.sha256)):
        return "the lease is not signed by this fleet; ask its router"
    its_client, its_replica, expires = json.loads(content)
    return first_mistake(
        (its_replica != replica, "the lease is for another replica; ask the fleet's router"),
        (its_client != client, "the lease was given to another client; ask the fleet's router"),
        (now >= expires, "the lease has expired; ask the fleet's router for another"),
    )
