"""How to reach the verifier: address, authentication, and a stream's redirects.

``Route`` is a state machine without I/O: it leads to the configured verifier, or to a replica that
the verifier names. Whoever answers at these addresses could lie. Under TLS each must hold a
certificate for the configured verifier's name. The hosts that a redirect may name are bounded as
well, so that a router cannot make robots connect anywhere in their network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from ...errors import UserError, first_mistake, refuse
from ...options import Bounded, described
from ...wire.channel import DEFAULT_ADDRESS, check_address, host_of, is_loopback
from ...wire.secret_files import read_authority, read_pair, read_token

MAX_REDIRECTS = 4  # in a row without an answer; each further one waits
UNREACHABLE_S = 1.0  # after which an address counts as unreachable
MAX_DOUBLINGS = 4  # of UNREACHABLE_S, for replicas


@dataclass(frozen=True)
class ClientSettings(Bounded):
    """The verifier's address, and how it and the robot authenticate each other.

    Beyond loopback TLS is always used, by default with the system's authorities. Files are read
    again after they are replaced. Invalid or inconsistent settings are refused by ``read_token``
    and ``credentials`` only, because a node gets its parameters one by one. ``token`` replaces the
    file; ``retry_s``: seconds before a broken stream reconnects.
    """

    cloud: str = described(DEFAULT_ADDRESS, "the verifier's HOST:PORT", fixed=True)
    authority: str = described("", "PEM file of the verifier's certificate authority", fixed=True)
    token: str = field(default="", repr=False)
    retry_s: float = 0.2
    token_file: str = described("", "file that holds the verifier's bearer token", fixed=True)
    certificate: str = described(
        "", "PEM file of this robot's certificate (mutual TLS)", fixed=True
    )
    key: str = described("", "PEM file of the certificate's key", fixed=True)
    replica_hosts: str = described(
        "", "hosts, with commas, that a fleet's router may send us to beside its own", fixed=True
    )

    @property
    def secure(self) -> bool:
        """Whether the channel is encrypted."""
        return bool(self.authority) or not is_loopback(self.cloud)

    def check(self) -> None:
        """Raise UserError for invalid or inconsistent settings."""
        self.read_token()
        self.credentials()

    def read_token(self) -> str:
        """The current token, empty for none; raises UserError if its file has none."""
        if self.token and self.token_file:
            raise UserError("give the token or the file that holds it, not both")
        return read_token(self.token_file) if self.token_file else self.token

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials for a new channel; None without TLS. Raises UserError."""
        check_address(self.cloud)
        refuse(
            (
                bool(self.certificate) != bool(self.key),
                "a robot's certificate needs its key, and a key its certificate",
            ),
            (
                self.certificate and not self.secure,
                f"a certificate is not shown to {self.cloud} without TLS; give the authority too",
            ),
        )
        if not self.secure:
            return None
        roots = read_authority(self.authority, "certificate authority") if self.authority else None
        pair = read_pair(self.certificate, self.key) if self.certificate else (None, None)
        return grpc.ssl_channel_credentials(roots, *pair)


@dataclass(frozen=True)
class Place:
    """A verifier's address, and the lease for it (empty at the configured address)."""

    address: str
    lease: bytes = b""


def redirect_problem(settings: ClientSettings, address: str) -> str:
    """Why a robot with these settings must not follow this redirect; empty if it may."""
    try:
        check_address(address)
    except UserError as error:
        return str(error)
    host, refused = host_of(address), f"a redirect to {address} is not followed"
    known = [host_of(settings.cloud), *map(str.strip, settings.replica_hosts.split(","))]
    return first_mistake(
        (address.startswith("unix:") or not host, f"{refused}: it is no host and port"),
        (
            not settings.secure and not is_loopback(address),
            f"{refused}: without TLS it would leave this machine",
        ),
        (
            host not in known,
            f"{refused}; name its host in replica_hosts if it is yours",
        ),
    )


class KnownPlace:
    """The replica that the router last assigned to this robot, for later streams.

    ``now`` is monotonic, s.
    """

    def __init__(self) -> None:
        self.is_router = False  # whether the configured verifier has redirected before
        self._place: Place | None = None
        self._until = 0.0

    def at(self, now: float) -> Place | None:
        """The replica while its lease is valid; None: the stream must ask the router."""
        return self._place if now < self._until else None

    def given(self, place: Place, lease_s: float, now: float) -> None:
        """Store the replica that the router assigned, with a lease of ``lease_s`` seconds."""
        self.is_router = True
        self._place, self._until = place, now + 0.9 * lease_s

    def forget(self, place: Place) -> None:
        """Forget this replica, because it did not serve the stream."""
        if self._place == place:
            self.clear()

    def clear(self) -> None:
        """Forget any replica, so that the next stream asks the router."""
        self._place, self._until = None, 0.0


class Route:
    """The route of one stream. ``here`` is its current destination; None: ask the router first."""

    def __init__(self, settings: ClientSettings, known: KnownPlace, now: float) -> None:
        self.avoid = ""  # an address that could not be reached, for the router
        self._settings, self._known = settings, known
        self._router = Place(settings.cloud)
        self._redirects = 0  # since the last answer
        self._retried = False  # whether the replica was tried again since its last answer
        self._silent = 0  # unreachable replicas since the last answer
        self.here: Place | None = known.at(now) or (None if known.is_router else self._router)

    @property
    def at_router(self) -> bool:
        """Whether the current or next request goes to the configured verifier."""
        return self.here is None or self.here == self._router

    @property
    def in_circles(self) -> bool:
        """Whether it was redirected more than MAX_REDIRECTS times without an answer."""
        return self._redirects > MAX_REDIRECTS

    @property
    def connect_s(self) -> float:
        """How long to wait for a connection, s; doubles after each replica that does not respond.

        TCP and TLS take four round trips, so a constant timeout would never succeed over a slow
        link.
        """
        doublings = 0 if self.at_router else min(self._silent, MAX_DOUBLINGS)
        return UNREACHABLE_S * (1 << doublings)

    def follow(self, address: str, lease: bytes, lease_s: float, now: float) -> str:
        """Follow a redirect; empty ``address``: back to the router. Returns why not, empty if it
        does."""
        self._redirects += 1
        if self.here is not None and not self.at_router:
            self._known.forget(self.here)
        if not address:
            self._known.is_router = True
            self.here = None
            return ""
        if problem := redirect_problem(self._settings, address):
            return problem
        self.here = Place(address, lease)
        self._retried = False
        self._known.given(self.here, lease_s, now)
        return ""

    def is_plain(self) -> None:
        """The configured verifier turned out not to be a router."""
        self._known.is_router = False
        self.here = self._router

    def answered(self) -> None:
        """Record that the destination answered."""
        self._redirects, self._retried, self._silent, self.avoid = 0, False, 0, ""

    def lost(self, *, connected: bool) -> bool:
        """Record that the stream broke or could not be made; returns whether to try again at once.

        A replica that was connected is tried once more, since the link alone may have broken; then
        the router is asked for another.
        """
        if self.here is None or self.at_router:
            return False
        if connected and not self._retried:
            self._retried = True
            return not self.in_circles
        self._silent += not connected
        self.avoid = self.here.address
        self._known.forget(self.here)
        self.here = None
        return not self.in_circles
