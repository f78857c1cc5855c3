"""A ROS domain for each module, and nodes in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from helpers.graph.launching import launching
from helpers.graph.ros_domain import ros_domain

collect_ignore_glob = [] if find_spec("rclpy") else ["test_*"]
launch = pytest.fixture(launching, name="launch")


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    """The ROS domain of a module's nodes, here and in the processes that it starts."""
    with ros_domain() as domain:
        yield domain
