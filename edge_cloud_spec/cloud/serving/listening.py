"""Where a server listens."""

from __future__ import annotations

import socket

import grpc.aio

from ...errors import UserError
from ...wire.channel import host_of
from .access import AccessSettings, server_credentials


def check_free(address: str) -> None:
    """Raise UserError where nothing can listen on this ``host:port`` (a ``unix:`` path always can).

    For who has to load a model before it listens.
    """
    if address.startswith("unix:"):
        return
    host, port = host_of(address), int(address.rpartition(":")[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        raise _refusal(address) from None


def listen(server: grpc.aio.Server, access: AccessSettings) -> str:
    """Bind a server; returns its address with the port in use. Raises UserError."""
    address, credentials = access.address, server_credentials(access)
    try:
        if credentials is not None:
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except RuntimeError:
        raise _refusal(address) from None
    if address.startswith("unix:"):
        return address
    if not port:
        raise _refusal(address)
    return f"{address.rpartition(':')[0]}:{port}"


def _refusal(address: str) -> UserError:
    return UserError(
        f"cannot listen on {address}: the port is taken or the host unknown; give another "
        "--address, or use the verifier that listens there (ros2 launch: cloud:=HOST:PORT)"
    )
