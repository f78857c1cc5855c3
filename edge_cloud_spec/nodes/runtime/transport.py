"""Keeps a node out of the shared memory of Fast DDS, so that its death holds nobody else up."""

from __future__ import annotations

import os
from pathlib import Path

import rclpy

from ...share import share

PROFILES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")  # Fast DDS 2, 3
RANGE, LOCALHOST_ONLY = "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_LOCALHOST_ONLY"
WIDE = ("", "OFF", "SUBNET", "SYSTEM_DEFAULT")  # ranges; rcl takes any other for LOCALHOST


def leave_shared_memory() -> None:
    """Have Fast DDS use UDP alone in this process; call it before ROS is initialized.

    A process that is killed or suspended within a lock of the shared memory stops everybody who
    reads from or writes to the same port, for seconds: a base then hears no stop. Nothing changes
    with another RMW, or where the user has chosen profiles or transports.
    """
    chosen = any(map(os.environ.get, ("FASTDDS_BUILTIN_TRANSPORTS", *PROFILES)))
    if chosen or any(Path().glob("DEFAULT_FAST*_PROFILES.xml")):
        return
    if not rclpy.get_rmw_implementation_identifier().startswith("rmw_fastrtps"):
        return
    only = os.environ.get(LOCALHOST_ONLY) == "1"
    profile = "udp.xml"
    if only or os.environ.get(RANGE, "") not in WIDE:
        profile = (
            "udp_localhost.xml"  # in this range rmw_fastrtps adds shared memory to any profile
        )
        os.environ.update({RANGE: "SUBNET", LOCALHOST_ONLY: "0"})
        if only:  # which ignores them
            os.environ["ROS_STATIC_PEERS"] = ""
    os.environ.update(dict.fromkeys(PROFILES, str(share() / "config/dds" / profile)))
