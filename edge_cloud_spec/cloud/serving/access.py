"""Access control: TLS with or without client certificates, tokens, and rate limits.

Certificates, keys and token files are read again after they are replaced; open streams continue,
new ones are checked against the new files.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from functools import cache
from math import ceil, inf

import grpc
import grpc.aio

from ...errors import UserError, refuse
from ...lru_cache import LruCache
from ...options import bounded, described
from ...wire.channel import DEFAULT_ADDRESS, RETRY_AFTER_KEY, check_address, is_loopback
from ...wire.secret_files import (
    Reloaded,
    date_problem,
    named_tokens,
    read_authority,
    read_pair,
    read_tokens,
    validity,
)

log = logging.getLogger(__name__)

# Clients with remembered rates; beyond it the least recently active is forgotten.
MAX_CLIENTS = 4096


@dataclass(frozen=True)
class AccessSettings:
    """The address to serve, and who may use it. Beyond loopback, TLS and tokens or client
    certificates are required.

    ``token``: the robots' token, in place of ``token_file``. ``streams_per_s`` and ``bytes_per_s``
    allow a burst of ten seconds' worth. Messages beyond ``messages_per_s``, with a burst of two,
    are read at that rate. Raises UserError.
    """

    address: str = described(DEFAULT_ADDRESS, "HOST:PORT")
    certificate: str = described("", "PEM file; TLS (with --key)")
    key: str = described("", "PEM file of the certificate's key")
    token: str = field(default="", repr=False)
    token_file: str = described("", "file with the tokens robots may show, one a line")
    client_authority: str = described("", "PEM file of the robots' authority (mutual TLS)")
    streams_per_s: float = bounded(200.0, 1e-3, inf, "of one robot", flag="--streams-per-second")
    bytes_per_s: float = bounded(64.0 * 2**20, 1.0, inf, "of one robot", flag="--bytes-per-second")
    messages_per_s: float = bounded(500.0, 1e-3, inf, "of one robot", flag="--messages-per-second")

    def __post_init__(self) -> None:
        check_address(self.address)
        known = self.token or self.token_file or self.client_authority
        refuse(
            (
                bool(self.certificate) != bool(self.key),
                "TLS needs both --certificate and --key",
            ),
            (
                self.client_authority and not self.certificate,
                "--client-authority needs TLS: give --certificate and --key too",
            ),
            (
                self.token and self.token_file,
                "give the token or the file that holds it, not both",
            ),
            (
                not is_loopback(self.address) and not (self.certificate and known),
                f"{self.address} can be reached from other machines: give --certificate, --key and "
                "--token-file or --client-authority, or serve on 127.0.0.1 behind a tunnel",
            ),
        )


def server_credentials(settings: AccessSettings) -> grpc.ServerCredentials | None:
    """TLS credentials that use the newest files at each handshake; None without TLS. Raises
    UserError."""
    if not settings.certificate:
        return None
    certificate, authority = settings.certificate, settings.client_authority

    def read() -> tuple[tuple[bytes, bytes], bytes | None]:
        roots = read_authority(authority, "client authority") if authority else None
        pair = read_pair(certificate, settings.key)
        if problem := date_problem(certificate, "certificate"):
            raise UserError(f"{problem}, and no robot accepts it: make a new one, or set the clock")
        _remind(certificate, datetime.now(timezone.utc).date())
        return pair, roots

    files = Reloaded(read, certificate, settings.key, authority)

    def configuration() -> grpc.ServerCertificateConfiguration:
        pair, roots = files.value
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def is_new() -> bool:
        _remind(certificate, datetime.now(timezone.utc).date())
        return files.renew()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        lambda: configuration() if is_new() else None,
        require_client_authentication=bool(authority),
    )


@cache
def _remind(certificate: str, today: date) -> None:
    """Say in the log, once a day, that a certificate is in its last thirty days."""
    end = validity(certificate)[1].date()
    if (end - today).days <= 30:
        log.warning("the certificate %s expires on %s: replace it before", certificate, end)


class TokenBucket:
    """A token bucket: ``per_s`` per second, at most ``burst`` at once. Times are monotonic, s."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at = burst, now

    def take(self, amount: float, now: float) -> float:
        """Take this amount and return 0, or take nothing and return the seconds to wait."""
        self._left = min(self._burst, self._left + self._per_s * (now - self._at))
        self._at = now
        if self._left >= min(amount, self._burst):
            self._left -= amount
            return 0.0
        return (min(amount, self._burst) - self._left) / self._per_s


class ClientRates:
    """The token buckets of each client; clients are named as by ``Gate.admit``."""

    def __init__(self, settings: AccessSettings) -> None:
        # (per second, burst)
        self._bounds = {
            "streams": (settings.streams_per_s, 10 * settings.streams_per_s),
            "bytes": (settings.bytes_per_s, 10 * settings.bytes_per_s),
            "messages": (settings.messages_per_s, max(1.0, 2 * settings.messages_per_s)),
        }
        self._buckets: LruCache[str, dict[str, TokenBucket]] = LruCache(MAX_CLIENTS)

    def take(self, what: str, client: str, now: float, amount: float = 1.0) -> float:
        """Charge a client for this amount; returns 0, or the seconds until it may try again.

        what: ``streams`` opened, ``bytes`` that arrived, or ``messages`` to be read.
        """
        buckets = self._buckets.get_or_make(
            client,
            lambda: {kind: TokenBucket(*bound, now) for kind, bound in self._bounds.items()},
        )
        return buckets[what].take(amount, now)


class Gate:
    """Admits robots with a valid token, and refuses those beyond their rate limits."""

    def __init__(self, access: AccessSettings) -> None:
        """Raises UserError for an unusable token file."""
        path, given = access.token_file, (access.token,) if access.token else ()
        # Valid tokens with their names; if empty, everybody is admitted.
        self._tokens = Reloaded(lambda: named_tokens(read_tokens(path) if path else given), path)
        self.rates = ClientRates(access)
        self.refused: Counter[str] = Counter()  # refused streams, by reason

    def name_of(self, authorization: str) -> str | None:
        """The name of the token in this header; empty: none is required; None: it is invalid."""
        tokens = self._tokens.current
        shown = authorization.encode()
        good = [
            name for name, token in tokens if hmac.compare_digest(shown, f"Bearer {token}".encode())
        ]
        if not tokens:
            return ""
        return good[0] if good else None

    async def admit(self, context: grpc.aio.ServicerContext) -> tuple[str, str]:
        """The names of the client and of its credential; aborts the stream of a client that is
        refused.

        The credential, to which a lease is bound, is the identity in the certificate, else the
        token's name, else empty. The client's name, in limits, scheduling and logs, is the
        credential's or, without one, the connection's. Neither is a secret.
        """
        metadata = dict(context.invocation_metadata() or ())
        token = self.name_of(str(metadata.get("authorization", "")))
        if token is None:
            self.refused["unauthenticated"] += 1
            log.info("refused: no good token", extra={"client": str(context.peer())})
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the bearer token is missing or wrong; give the robot the verifier's token",
            )
        identities = context.peer_identities() or ()
        credential = " ".join(i.decode("utf-8", "replace") for i in identities) or token or ""
        return credential or str(context.peer()), credential

    async def admit_stream(self, client: str, context: grpc.aio.ServicerContext) -> None:
        """Abort the stream of a client that opens too many."""
        seconds = self.rates.take("streams", client, time.monotonic())
        await self.refuse_for("streams_per_second", seconds, client, context)

    async def refuse_for(
        self, reason: str, seconds: float, client: str, context: grpc.aio.ServicerContext
    ) -> None:
        """Abort the stream and say when to retry; does nothing if ``seconds`` is 0."""
        if not seconds:
            return
        self.refused[reason] += 1
        log.info("refused: %s", reason, extra={"client": client})
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"this robot asks more than it may; it tries again after {seconds:.1f} s",
            retry_after(seconds),
        )


def retry_after(seconds: float) -> tuple[tuple[str, str], ...]:
    """The metadata that tells a refused robot when to retry."""
    return ((RETRY_AFTER_KEY, str(ceil(1e3 * seconds))),)


def raise_file_limit() -> None:
    """Raise the limit of open files to the system's: each connection takes one."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65_536
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, 65_536), hard))
