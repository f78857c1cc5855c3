"""What both ends of the gRPC channel share: the method, limits and keepalive."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

from ..errors import UserError

METHOD = "/edge_cloud_spec.v2.Verifier/Decode"
SERVICE, METHOD_NAME = METHOD[1:].split("/")
EARLIER_SERVICE = "edge_cloud_spec.v1.Verifier"  # of protocols before 4; refused with a sentence
DEFAULT_ADDRESS = "127.0.0.1:50151"  # a verifier on this machine
RETRY_AFTER_KEY = "retry-after-ms"  # trailing metadata of a temporary refusal
ASK = "ask-for-replica"  # metadata of a robot that expects a router, and sends no message
AVOID = "avoid-replica"  # metadata: the address of a replica that the robot could not reach
LEASE = "lease-bin"  # metadata: the router's lease for a replica
MAX_PAUSE_S = 30.0  # a cloud cannot ask for a longer pause
# Holds a camera frame or dense distributions; larger messages are refused.
MESSAGE_BYTES = 16 * 2**20
# gRPC's health check, in bytes: no distribution has a package of grpcio-health-checking.
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
HEALTH_SERVING = b"\x08\x01"

# Of a ping, whose answer waits behind a picture: half a minute on a link of 30 kB/s. gRPC 1.85 ends
# a silent connection by this time, a minute if it is not given, whatever keepalive's timeout is.
PING_TIMEOUT_MS = 30_000
# Detects a dead link, even if nothing is sent.
CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    # Otherwise the robots of one process would share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # of one attempt: TLS takes three round trips
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
# For addresses of this machine: a proxy of the environment would look for them on its own.
NO_PROXY: tuple[tuple[str, int], ...] = (("grpc.enable_http_proxy", 0),)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.server_handshake_timeout_ms", 10_000),  # until a silent connection is closed
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.bdp_probe", 0),  # otherwise a fast client's stream gets a window of 16 MB
    ("grpc.http2.lookahead_bytes", 2**20),  # bytes of a message per round trip
    ("grpc.so_reuseport", 0),  # a second server on the port fails, instead of sharing connections
)


def health_request(service: str = "") -> bytes:
    """Asks whether a service serves, or the server as a whole; its name has at most 127 bytes."""
    name = service.encode()
    return bytes((0x0A, len(name))) + name


def check_address(address: str) -> None:
    """Raise UserError unless this is ``host:port`` or a ``unix:`` path."""
    if not (address.startswith("unix:") or (is_host(host_of(address)) and port_of(address) >= 0)):
        raise UserError(f"the verifier's address must be HOST:PORT, not {address!r}")


def is_host(text: str) -> bool:
    """Whether this may name a host, as a URL does not; ``dns:///`` before it is for gRPC."""
    return re.fullmatch(r"(dns:///)?[^\s/@?#,]+", text) is not None


def host_of(address: str) -> str:
    """The host of a ``host:port``, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """The port of a ``host:port``; -1: it names none."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) < 6 and int(port) < 2**16 else -1


def check_free(address: str) -> None:
    """Raise UserError if this ``host:port`` is in use (a ``unix:`` path never is).

    For who needs long until it listens, or starts who does.
    """
    if address.startswith("unix:"):
        return
    host, port = host_of(address), port_of(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        raise cannot_listen(address) from None


def cannot_listen(address: str) -> UserError:
    """Why a verifier cannot listen there, and what to do."""
    return UserError(
        f"cannot listen on {address}: the port is taken or the host unknown; give another "
        "--address, or use the verifier that listens there (ros2 launch: cloud:=HOST:PORT)"
    )


def is_loopback(address: str) -> bool:
    """Whether a ``host:port`` (or ``unix:`` path) stays on this machine."""
    host = host_of(address)
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a host name, which may resolve to another machine
        return False


def retry_after_s(metadata: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """After how many seconds a refused client may retry; None if the metadata does not say."""
    for name, value in metadata or ():
        if name == RETRY_AFTER_KEY:
            try:
                return min(max(0.0, int(value) / 1e3), MAX_PAUSE_S)
            except ValueError:
                return None
    return None
