"""Who may decode here: TLS with or without client certificates, tokens, and how much each may ask.

Certificates, keys and token files are read again when they were replaced; streams that are open go
on, the next one is judged anew.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf

import grpc
import grpc.aio

from ...errors import UserError
from ...lru_cache import LruCache
from ...options import bounded, described
from ...wire.channel import DEFAULT_ADDRESS, RETRY_AFTER, check_address, is_loopback
from ...wire.secret_files import Reloaded, named_tokens, read_pair, read_pem, read_tokens

log = logging.getLogger(__name__)

MAX_CLIENTS = 4096  # whose rates are kept; of more, the one that was quiet for longest is forgotten


@dataclass(frozen=True)
class AccessSettings:
    """Where to serve whom. Off loopback TLS and tokens or client certificates are required.

    ``token``: what robots may show, in place of ``token_file``. ``streams_per_s`` and
    ``bytes_per_s`` have a burst of ten seconds' worth. A client that sends more than
    ``messages_per_s``, with a burst of two, is read that slowly. Raises UserError.
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
        address = self.address
        check_address(address)
        if bool(self.certificate) != bool(self.key):
            raise UserError("TLS needs both --certificate and --key")
        if self.client_authority and not self.certificate:
            raise UserError("--client-authority needs TLS: give --certificate and --key too")
        if self.token and self.token_file:
            raise UserError("give the token or the file that holds it, not both")
        known = self.token or self.token_file or self.client_authority
        if not is_loopback(address) and not (self.certificate and known):
            raise UserError(
                f"{address} can be reached from other machines: give --certificate, --key and "
                "--token-file or --client-authority, or serve on 127.0.0.1 behind a tunnel"
            )


def server_credentials(settings: AccessSettings) -> grpc.ServerCredentials | None:
    """TLS with the newest files at each handshake; None without TLS. Raises UserError."""
    if not settings.certificate:
        return None
    authority = settings.client_authority

    def read() -> tuple[tuple[bytes, bytes], bytes | None]:
        roots = read_pem(authority, "client authority") if authority else None
        if roots is not None and b"-----BEGIN CERTIFICATE-----" not in roots:
            raise UserError(f"the client authority {authority} holds no PEM certificate")
        return read_pair(settings.certificate, settings.key), roots

    files = Reloaded(read, settings.certificate, settings.key, authority)

    def configuration() -> grpc.ServerCertificateConfiguration:
        pair, roots = files.value
        return grpc.ssl_server_certificate_configuration([pair], roots)

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        lambda: configuration() if files.renew() else None,
        require_client_authentication=bool(authority),
    )


class TokenBucket:
    """A token bucket: ``per_s`` a second, ``burst`` at once. Times are steady, in s."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at = burst, now

    def take(self, amount: float, now: float) -> float:
        """Use this much; returns 0, or the seconds to wait, when nothing was used."""
        self._left = min(self._burst, self._left + self._per_s * (now - self._at))
        self._at = now
        if self._left >= min(amount, self._burst):
            self._left -= amount
            return 0.0
        return (min(amount, self._burst) - self._left) / self._per_s


class ClientRates:
    """The token buckets of each client, by the name of its credential (``Gate.admit``)."""

    def __init__(self, settings: AccessSettings) -> None:
        # Per second, and in a burst.
        self._bounds = {
            "streams": (settings.streams_per_s, 10 * settings.streams_per_s),
            "bytes": (settings.bytes_per_s, 10 * settings.bytes_per_s),
            "messages": (settings.messages_per_s, max(1.0, 2 * settings.messages_per_s)),
        }
        self._buckets: LruCache[str, dict[str, TokenBucket]] = LruCache(MAX_CLIENTS)

    def take(self, what: str, client: str, now: float, amount: float = 1.0) -> float:
        """A client uses up this much; 0, or the seconds after which it may try again.

        what: opened ``streams``, ``bytes`` that arrived, or ``messages`` that are to be read.
        """
        buckets = self._buckets.get_or_make(
            client,
            lambda: {kind: TokenBucket(*bound, now) for kind, bound in self._bounds.items()},
        )
        return buckets[what].take(amount, now)


class Gate:
    """Admits robots with a valid token, and refuses those that ask too much."""

    def __init__(self, access: AccessSettings) -> None:
        """Raises UserError for a token file that cannot be used."""
        path, given = access.token_file, (access.token,) if access.token else ()
        # Those that are good now, each with its name; without any, everybody is let in.
        self._tokens = Reloaded(lambda: named_tokens(read_tokens(path) if path else given), path)
        self.rates = ClientRates(access)
        self.refused: Counter[str] = Counter()  # streams, by why

    def name_of(self, authorization: str) -> str | None:
        """The name of the token that this metadata shows; empty: none is asked for; None: wrong."""
        tokens = self._tokens.current
        shown = authorization.encode()
        good = [
            name for name, token in tokens if hmac.compare_digest(shown, f"Bearer {token}".encode())
        ]
        if not tokens:
            return ""
        return good[0] if good else None

    async def admit(self, context: grpc.aio.ServicerContext) -> tuple[str, str]:
        """The names of this client and of its credential, or the stream is refused.

        The credential, to which a lease is bound, is the identity in its certificate, else its
        token's name, else nothing. It names the client in bounds, fairness and logs, else its
        connection does; never a secret.
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
        """Refuse a stream of a client that opens too many."""
        seconds = self.rates.take("streams", client, time.monotonic())
        await self.refuse_for("streams_per_second", seconds, client, context)

    async def refuse_for(
        self, reason: str, seconds: float, client: str, context: grpc.aio.ServicerContext
    ) -> None:
        """Refuse a robot that asks too much, and say when it may try again; 0: do not."""
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
    """The metadata that says when a refused robot may try again."""
    return ((RETRY_AFTER, str(math.ceil(1e3 * seconds))),)


def raise_file_limit() -> None:
    """Allow as many open files as the system does: a connection is one, and strangers make many."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65_536
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, 65_536), hard))
    except (OSError, ValueError):
        return
