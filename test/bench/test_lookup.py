"""``bench lookup`` on a room: what it says of a pass is what a walk through the answer gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.decoding.suffix_index import BYTES_PER_SUFFIX, SuffixIndex
from edge_cloud_spec.lab.bench.lookup import HOSTILE, RecordedAnswer, Replayed, replay


def test_a_room_is_told_again_and_an_index_attacked(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    options = "--scenes 1 --processes 1 --renderer rays --nodes 4,16 --answers 50 --suffixes 5000"
    assert main(["bench", "lookup", "--seed", "3", "--json", str(path), *options.split()]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["what"] for row in rows] == ["replay"] * 2 + ["lookup"] * 2 + ["hostile"] * 4
    assert [row["nodes"] for row in rows[:4]] == [4, 16, 4, 16]
    assert 1 < rows[0]["tokens_per_pass"] <= rows[1]["tokens_per_pass"]
    assert {row["of"] for row in rows[4:]} == set(HOSTILE)
    assert all(row["bytes"] == 5000 * BYTES_PER_SUFFIX and row["ms_p99"] > 0 for row in rows[2:])


@pytest.mark.parametrize("nodes", ["0", "1000000", "four"])
def test_a_tree_of_so_many_nodes_is_refused(nodes: str) -> None:
    assert main(["bench", "lookup", "--nodes", nodes]) == 2


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_passes_of_a_replay_are_those_of_its_drafts(nodes: int) -> None:
    """The same answer three times: token by token, then a chain and a token in each pass."""
    answer = RecordedAnswer("find it", (), (1, 2, 3, 4, 5, 6))
    done = replay([answer] * 3, SuffixIndex(1000), nodes, with_words=True)
    assert done == Replayed(6 + 2 * (6 // (nodes + 1) + (6 % (nodes + 1) > 0)), 18, done.proposed)
    others = [RecordedAnswer("find it", (), tuple(range(7 * n, 7 * n + 6))) for n in range(3)]
    assert replay(others, SuffixIndex(1000), nodes, with_words=True).tokens_per_pass == 1
