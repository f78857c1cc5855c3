"""Keeps a node out of Fast DDS' shared memory, so that its death holds up no other process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import rclpy

from ...errors import UserError
from ...share import share

# Of Fast DDS 2, 3.
PROFILE_VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
RANGE, LOCALHOST_ONLY = "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_LOCALHOST_ONLY"
HAS_RANGE = find_spec("rclpy.event_handler") is not None  # Humble has neither
WIDE_RANGES = ("", "OFF", "SUBNET", "SYSTEM_DEFAULT")  # rcl takes any other range for LOCALHOST
PEER = "<locator><udpv4><address>{}</address></udpv4></locator>"
PEERS_END = "</initialPeersList>"


@contextmanager
def udp_alone() -> Iterator[None]:
    """Have Fast DDS use UDP alone in this process, whose first node is made within.

    A process that is killed or suspended within a lock of the shared memory stops whoever reads
    from or writes to the same port, for seconds: a base then receives no stop. Nothing changes with
    another RMW, or where the user has chosen transports or profiles. Raises UserError.
    """
    chosen = any(map(os.environ.get, ("FASTDDS_BUILTIN_TRANSPORTS", *PROFILE_VARIABLES)))
    chosen = chosen or any(Path().glob("DEFAULT_FAST*_PROFILES.xml"))
    if chosen or not rclpy.get_rmw_implementation_identifier().startswith("rmw_fastrtps"):
        yield
        return
    only = os.environ.get(LOCALHOST_ONLY) == "1"
    local = only or os.environ.get(RANGE, "") not in WIDE_RANGES
    name = "udp_localhost.xml" if local else "udp.xml"
    name = "udp_loopback.xml" if only and not HAS_RANGE else name
    profile = share() / "config/dds" / name
    peers = "" if only or not local else os.environ.get("ROS_STATIC_PEERS", "")
    if local:  # where rmw_fastrtps adds shared memory to any profile; this one has the same peers
        os.environ[RANGE] = "SYSTEM_DEFAULT"
        os.environ.pop(LOCALHOST_ONLY, None)
    if peers:
        from tempfile import NamedTemporaryFile  # rarely needed, and a megabyte
    with NamedTemporaryFile("w", suffix=".xml") if peers else profile.open() as file:
        if peers:
            locators = "".join(PEER.format(_address(peer)) for peer in peers.split(";") if peer)
            file.write(profile.read_text().replace(PEERS_END, locators + PEERS_END))
            file.flush()
        os.environ.update(dict.fromkeys(PROFILE_VARIABLES, file.name))
        yield


def _address(peer: str) -> str:
    try:
        return socket.gethostbyname(peer)
    except (OSError, UnicodeError) as error:
        raise UserError(f"ROS_STATIC_PEERS: {peer!r} cannot be resolved: {error}") from None
