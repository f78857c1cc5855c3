"""The stop suite with one trial: the whole graph."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")
from helpers.suites import arguments

from edge_cloud_spec_lab.bench import stop


def test_e_stop_is_heard_while_a_decode_is_under_way() -> None:
    (row,) = stop.run(arguments("stop", "--trials", "1"))
    assert row["trials"] == 1 and row["load"] > 0
    assert 0 < row["ms_p50"] <= row["ms_p99"]
    assert 0 < row["bare_ms_p50"] <= row["bare_ms_p99"]
