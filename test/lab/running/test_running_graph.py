"""A graph that was started is up when its nodes can work with each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.msg import LinkState
from edge_cloud_spec_lab.running.run_log import RunLog
from edge_cloud_spec_lab.running.running_graph import is_ready


@pytest.mark.parametrize(
    ("cloud", "state", "ready"),
    [
        ("local", LinkState.DEGRADED, False),  # its decision would complain
        ("local", LinkState.CLOUD, True),
        ("cloud.lan:443", LinkState.LOST, True),  # that is the run's to say
    ],
)
def test_the_bridge_is_up_when_it_has_found_the_verifier_that_is_started_with_it(
    cloud: str, state: int, ready: bool
) -> None:
    log = RunLog()
    log.on_message("link_state", LinkState(state=state), 0.0)
    observer: Any = SimpleNamespace(
        subscribers=lambda topic: {"cloud_bridge"}, read=lambda query: query(log)
    )
    assert is_ready("cloud_bridge", observer, GraphSettings(cloud=cloud)) == ready
