"""ROS domains for tests: one that no other process of tests on this machine is in."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

# Every Linux has free ports for these, and the package's own graphs take domains from 1 to 100.
DOMAINS = range(215, 233)
_next = itertools.cycle(DOMAINS)

# Who is new often misses the answer to its first announcement (``config/dds/udp.xml``), and hears
# of the others by the next announcement of each: those of this process come soon.
ANNOUNCING = """<?xml version="1.0" encoding="UTF-8" ?>
<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles">
  <participant profile_name="announcing" is_default_profile="true">
    <rtps>
      <builtin>
        <discovery_config>
          <leaseAnnouncement>
            <sec>0</sec>
            <nanosec>100000000</nanosec>
          </leaseAnnouncement>
        </discovery_config>
      </builtin>
    </rtps>
  </participant>
</profiles>
"""


@contextmanager
def ros_domain() -> Iterator[int]:
    """A domain that is locked while it is used, and another one each time.

    This process and those that it starts are in it.

    (A node that was killed is seen in its domain for twenty seconds more.)
    """
    for domain in itertools.islice(_next, len(DOMAINS)):
        path = Path(tempfile.gettempdir()) / f"edge_cloud_spec_test_{os.getuid()}_{domain}.lock"
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("ROS_DOMAIN_ID", str(domain))
                patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
                _announce_often()
                yield domain
            return
    raise RuntimeError(f"{len(DOMAINS)} processes of tests are in ROS domains on this machine")


@cache
def _announce_often() -> None:
    """Fast DDS reads its profiles once, as a process makes its first participant."""
    import rclpy
    from rclpy.context import Context

    context = Context()
    with (
        tempfile.NamedTemporaryFile("w", suffix=".xml") as file,
        pytest.MonkeyPatch.context() as patch,
    ):
        file.write(ANNOUNCING)
        file.flush()
        patch.setenv("FASTRTPS_DEFAULT_PROFILES_FILE", file.name)
        rclpy.init(args=[], context=context)
        rclpy.create_node("first", context=context).destroy_node()
        rclpy.shutdown(context=context)
