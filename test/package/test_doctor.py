"""`edge-cloud-spec doctor` on a machine: its files, and what is installed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cli import main
from edge_cloud_spec.doctor.machine import check_model, check_ros, check_threads
from edge_cloud_spec.health import Level
from edge_cloud_spec.models import EMBEDDED


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EMBEDDED / "target", tmp_path / "target"))


def test_a_whole_model_directory_is_ok_and_a_missing_file_is_named(model: Path) -> None:
    assert check_model("target", str(model)).level == Level.OK
    (model / "tokenizer.json").unlink()
    finding = check_model("target", str(model))
    assert finding.level == Level.ERROR
    assert "tokenizer.json" in finding.message and finding.advice


@settings(max_examples=20)
@given(share=st.floats(0, 1, exclude_max=True), more=st.sampled_from([b"", b"x"]))
def test_weights_that_are_cut_short_or_too_long_are_never_ok(
    tmp_path_factory: pytest.TempPathFactory, share: float, more: bytes
) -> None:
    whole = (EMBEDDED / "drafter/model.safetensors").read_bytes()
    folder = shutil.copytree(EMBEDDED / "drafter", tmp_path_factory.mktemp("model") / "drafter")
    damaged = whole + more if more else whole[: int(share * len(whole))]
    (folder / "model.safetensors").write_bytes(damaged)
    finding = check_model("drafter", str(folder))
    assert finding.level == Level.ERROR and "model.safetensors is damaged" in finding.message
    assert "copy it anew" in finding.advice
    shutil.rmtree(folder)


def test_a_shard_that_is_missing_and_exits_that_are_cut_short_are_named(model: Path) -> None:
    exits = next(model.glob("exits/*.safetensors"))
    exits.write_bytes(exits.read_bytes()[:-1])
    assert "exits.safetensors is damaged" in check_model("target", str(model)).message
    shards = {"weight_map": {"a": "model-1.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(shards))
    (model / "model.safetensors").unlink()  # before which no shard counts
    finding = check_model("target", str(model))
    assert finding.level == Level.ERROR and "model-1.safetensors" in finding.message


def test_without_torch_a_model_in_torch_is_a_warning_that_says_what_to_install(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "safetensors"):
        monkeypatch.setitem(sys.modules, name, None)
    finding = check_model("drafter", str(model))
    assert finding.level == Level.WARN and "cannot run here" in finding.message
    assert "-r requirements/torch.txt -r requirements/transformers.txt" in finding.advice
    monkeypatch.setattr("edge_cloud_spec.doctor.machine.find_spec", lambda _: None)
    assert "no torch" in check_threads().message and "GGUF" in check_threads().advice


@pytest.mark.parametrize("name", ["bytes", "openai:http://127.0.0.1:8080/v1"])
def test_a_drafter_without_files_is_no_missing_directory(name: str) -> None:
    finding = check_model("drafter", name)
    assert finding.level == Level.OK and name in finding.message


def test_ros_and_the_messages_are_found_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.level for finding in check_ros()] == [Level.OK, Level.OK]
    monkeypatch.setitem(sys.modules, "rclpy", None)
    ros, messages = check_ros()
    assert (ros.level, messages.level) == (
        Level.WARN,
        Level.OK,
    ) and "source your ROS 2" in ros.advice


def test_doctor_exits_1_on_a_failure_and_prints_every_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--target", str(tmp_path / "nothing")]) == 1
    printed = capsys.readouterr().out
    assert all(f"  {check}: " in printed for check in ("python", "ROS 2", "drafter"))
    assert [line[:12] for line in printed.splitlines() if "target: " in line] == ["fail  target"]
