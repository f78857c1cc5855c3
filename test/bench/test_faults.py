"""Six rows of the fault matrix, in one running system; and what the suite refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
from edge_cloud_spec.bench.command import write
from edge_cloud_spec.bench.faults import suite
from edge_cloud_spec.errors import UserError


def arguments(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    suite.add_arguments(parser)
    return parser.parse_args(argv)


def test_six_faults_of_the_running_system_move_nothing_unverified_and_pass_by_themselves(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.json"
    only = ",".join(suite.QUICK)
    rows = suite.run(arguments("--only", only, "--trials", "1", "--json", str(file)))
    assert [row["fault"] for row in rows] == list(suite.QUICK)
    for row in rows:
        assert row["passed"], row
        assert row["recovered"] and row["recovery_s_max"] is not None
    assert json.loads(file.read_text())["rows"] == rows


def test_a_matrix_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = [{"fault": name} for name in suite.QUICK]
    write(file, "faults", 0, done)
    rows = suite.run(arguments("--resume", "--only", ",".join(suite.QUICK), "--json", str(file)))
    assert rows == done


def test_what_is_no_fault_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--only has flood"):
        suite.run(arguments("--only", "flood"))
    file = tmp_path / "rows.json"
    file.write_text("{")
    with pytest.raises(UserError, match="no rows to resume from"):
        suite.run(arguments("--resume", "--json", str(file)))
