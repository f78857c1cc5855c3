"""The overhead suite: real processes on both sides of the comparison, a few rounds of each."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")
from helpers.bench_options import arguments
from rclpy.serialization import serialize_message

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.bench import overhead
from edge_cloud_spec.lab.bench.bare import blob


@pytest.mark.parametrize("size", [24, 116, 137, 4000])
def test_a_bare_message_weighs_what_ours_weighs(size: int) -> None:
    assert len(serialize_message(blob(size))) == size


def test_both_paths_are_measured_over_the_same_number_of_rounds() -> None:
    (row,) = overhead.run(arguments("overhead", "--blocks", "1", "--tokens", "24"))
    assert row["rounds"] >= 4
    assert row["ratio"] == row["ours_ms_p50"] / row["bare_ms_p50"]
    for path in ("ours", "bare"):
        assert 0 < row[f"{path}_ms_p50"] <= row[f"{path}_ms_p99"]
    assert row["draft_bytes"] > row["up_bytes"] > 0
    assert row["verdict_bytes"] > row["down_bytes"] > 0


def test_counts_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="--blocks must be 1 or more"):
        overhead.run(arguments("overhead", "--blocks", "0"))
