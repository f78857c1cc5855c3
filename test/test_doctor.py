"""What `edge-cloud-spec doctor` promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.doctor import check_cloud, check_messages, check_model, check_ros

FILES = ("config.json", "tokenizer.json", "preprocessor_config.json", "model.safetensors")


def test_a_whole_model_directory_is_ok_and_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(b"x")
    assert check_model("target", str(tmp_path)).state == "ok"
    (tmp_path / "tokenizer.json").unlink()
    finding = check_model("target", str(tmp_path))
    assert finding.state == "fail"
    assert "tokenizer.json" in finding.found and finding.advice


def test_ros_and_the_messages_are_found_here() -> None:
    assert check_ros().state == check_messages().state == "ok"


def test_a_cloud_that_is_not_there_fails_with_advice() -> None:
    finding = check_cloud("127.0.0.1:1", "")
    assert finding.state == "fail" and "serve" in finding.advice


def test_doctor_exits_1_on_a_failure_and_writes_every_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "doctor.json"
    assert main(["doctor", "--target", str(tmp_path / "nothing"), "--json", str(file)]) == 1
    rows = json.loads(file.read_text())["rows"]
    assert {"python", "ROS 2", "target"} <= {row["check"] for row in rows}
    printed = capsys.readouterr().out
    assert all(f"{row['check']}: " in printed for row in rows)
    assert [row["state"] for row in rows if row["check"] == "target"] == ["fail"]
