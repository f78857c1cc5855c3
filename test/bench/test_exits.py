"""``bench exits``: how often an exit foretells the verdict, and at what cost."""

from __future__ import annotations

import json
from pathlib import Path

from edge_cloud_spec.cli import main


def test_the_benchmark_says_how_often_and_at_what_cost(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert main(["bench", "exits", "--requests", "3", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {row["rule"] for row in rows} == {"greedy", "coupled"}
    for rule in ("greedy", "coupled"):
        hits = {row["depth"]: row["hit"] for row in rows if row["rule"] == rule}
        assert 0.6 in hits and 0.3 < hits[0.6] <= 1
        assert [hits[depth] for depth in sorted(hits)] == sorted(hits.values())
    assert all(row["verify_ratio"] > 0 and row["rounds"] > 10 for row in rows)
    assert main(["bench", "exits", "--requests", "1", "--exits", str(tmp_path)]) == 2
