"""A ROS domain for the module's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from helpers.graph.launching import launching
from helpers.graph.ros_domain import ros_domain

collect_ignore_glob = [] if find_spec("rclpy") and find_spec("mcp") else ["test_*"]
launch_once = pytest.fixture(launching, name="launch_once", scope="module")


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    """The ROS domain of the nodes, here and in the processes that are started."""
    with ros_domain() as domain:
        yield domain
