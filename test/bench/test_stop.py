"""The stop suite with one trial of each event: the whole graph, and real kills."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")
from helpers.bench_options import arguments

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.bench import stop


def test_e_stop_is_heard_while_a_decode_is_under_way() -> None:
    (row,) = stop.run(arguments("stop", "--events", "e_stop", "--trials", "2"))
    assert (row["event"], row["trials"]) == ("e_stop", 2)
    assert 0 < row["ms_p50"] <= row["ms_p99"]
    assert 0 < row["bare_ms_p50"] <= row["bare_ms_p99"]
    assert row["load"] > 0


def test_nothing_moves_without_the_killed_one_and_the_robot_goes_on_with_it() -> None:
    rows = stop.run(arguments("stop", "--events", "cloud_killed,navigator_killed", "--kills", "1"))
    assert [row["event"] for row in rows] == ["cloud_killed", "navigator_killed"]
    assert all(row["stayed"] and row["recovered"] for row in rows)


def test_an_unknown_event_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="--events has flood"):
        stop.run(arguments("stop", "--events", "flood"))
