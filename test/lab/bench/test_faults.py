"""Three rows of the fault matrix, in one running system; and what the suite refuses."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
from helpers.cloud.grpc_cloud import Cloud
from helpers.suites import arguments

from edge_cloud_spec.cloud.command import make_worker
from edge_cloud_spec.errors import UserError
from edge_cloud_spec_lab.bench.command import write
from edge_cloud_spec_lab.bench.faults import rig, suite
from edge_cloud_spec_lab.bench.faults.suite import TABLE_BEGIN, TABLE_END, write_page
from edge_cloud_spec_lab.harness.server import parsed


def test_three_faults_of_the_running_system_move_nothing_unverified_and_pass_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier that comes back for the one that was killed is in this process: no fault behind
    that touches it."""
    monkeypatch.setattr(rig, "DRIVES_ON", 2.0)  # on a busy machine no motion replaces another
    start_node = rig.Rig.start_node
    with ExitStack() as here:

        def start_here(started: rig.Rig, name: str, **parameters: object) -> None:
            if name == "verifier":
                argv = started.verifier_command(started.verifier_address)
                settings = parsed(argv[argv.index("--target") :])
                here.enter_context(Cloud(make_worker(settings), **vars(settings.server)))
            elif name == "simulator":
                start_node(started, name, **{"renderer": "rays", "camera_rate": 5.0, **parameters})
            else:
                start_node(started, name, **parameters)

        monkeypatch.setattr(rig.Rig, "start_node", start_here)
        file = tmp_path / "rows.json"
        only = ",".join(suite.QUICK_FAULTS)
        rows = suite.run(arguments("faults", "--only", only, "--trials", "1", "--json", str(file)))
    assert [row["fault"] for row in rows] == list(suite.QUICK_FAULTS)
    for row in rows:
        assert row["passed"], row
        assert row["recovered"] and row["recovery_s_max"] is not None
    assert json.loads(file.read_text())["rows"] == rows


def test_a_matrix_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = [{"fault": name} for name in suite.QUICK_FAULTS]
    write(file, "faults", 0, done)
    rows = suite.run(
        arguments("faults", "--resume", "--only", ",".join(suite.QUICK_FAULTS), "--json", str(file))
    )
    assert rows == done


def test_the_page_has_a_line_for_every_fault() -> None:
    page = (Path(__file__).parents[3] / "docs/faults.md").read_text(encoding="utf-8")
    lines = page.partition(TABLE_BEGIN)[2].partition(TABLE_END)[0].strip().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == list(suite.FAULTS_BY_NAME)
    assert len(lines) >= 30
    for line, fault in zip(lines, suite.FAULTS_BY_NAME.values(), strict=True):
        assert f"| {fault.injected} | {fault.robot} |" in line


def test_a_page_keeps_its_text_and_takes_the_rows(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{TABLE_BEGIN}\nstale rows\n{TABLE_END}\nafter\n")
    row = {"fault": "link_cut", "reported": "link_state: lost no answer", "recovery_s_max": 0.25}
    write_page(page, suite.FAULTS_BY_NAME, [row])
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "stale rows" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("| link_cut |"))
    assert line.endswith("| `link_state` | 0.25 |")
    page.write_text("no marks")
    with pytest.raises(UserError, match="between which the table goes"):
        write_page(page, suite.FAULTS_BY_NAME, [])


def test_what_is_no_fault_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--only has flood"):
        suite.run(arguments("faults", "--only", "flood"))
    with pytest.raises(UserError, match="needs --json"):
        suite.run(arguments("faults", "--resume"))
    file = tmp_path / "rows.json"
    file.write_text("{")
    with pytest.raises(UserError, match="cannot go on with it"):
        suite.run(arguments("faults", "--resume", "--json", str(file)))
