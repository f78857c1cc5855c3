"""`edge-cloud-spec doctor` on a machine: its files, and its pictures beside other processors."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edge_cloud_spec.cli import main
from edge_cloud_spec.doctor.machine import check_model, check_ros
from edge_cloud_spec.doctor.pictures import (
    Patches,
    behind_qwen_vl_utils,
    check_pictures,
    compare,
    judge,
    own_processor,
    sample,
)
from edge_cloud_spec.health import Level
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.checkpoint import image_preprocessing
from edge_cloud_spec.models.image import patches


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
    assert main(["doctor", "--json", str(file / "x")]) == 2
    printed, error = capsys.readouterr()
    assert not printed and "doctor.json/x cannot be written" in error


TARGET = str(EMBEDDED / "target")


def ours(image: Image.Image) -> Patches:
    made = image_preprocessing(TARGET)
    return patches(image, made.spec, made.mean, made.std)


def shifted(by: float) -> object:
    def theirs(image: Image.Image) -> Patches:
        values, grid = ours(image)
        return values + np.float32(by), grid

    return theirs


@pytest.mark.parametrize(
    ("by", "state", "said"),
    [
        (0.0, Level.OK, "equal to ours"),
        (0.015, Level.OK, "resize"),
        (0.5, Level.WARN, "differs by up to 0.5"),
    ],
)
def test_the_size_of_a_difference_decides(by: float, state: str, said: str) -> None:
    finding = judge("pictures", compare(ours, shifted(by)), Level.ERROR)  # type: ignore[arg-type]
    assert finding.level == state and said in finding.message


@pytest.mark.parametrize("state", [Level.WARN, Level.ERROR])
def test_another_number_of_patches_is_said_with_both(state: str) -> None:
    def theirs(image: Image.Image) -> Patches:
        return ours(image.resize((image.width * 2, image.height)) if image.width == 300 else image)

    finding = judge("pictures", compare(ours, theirs), state)
    here, there = (len(process(sample((300, 200)))[0]) for process in (ours, theirs))
    assert finding.level == state
    assert f"300x200 becomes {there} patches there and {here} here" in finding.message
    assert "640x480" not in finding.message and finding.advice


def test_the_embedded_checkpoints_own_processor_gives_what_we_give() -> None:
    finding = judge("pictures", compare(ours, own_processor(TARGET)), Level.ERROR)
    assert finding.level == Level.OK and "equal to ours" in finding.message


def test_other_statistics_of_the_colours_are_said(model: Path) -> None:
    file = model / "preprocessor_config.json"
    content = json.loads(file.read_text())
    content["image_std"] = [2 * value for value in content["image_std"]]
    file.write_text(json.dumps(content))
    finding = judge("pictures", compare(ours, own_processor(str(model))), Level.ERROR)
    assert finding.level == Level.WARN and "image_std" in finding.advice


def test_qwen_vl_utils_resizes_first_and_gives_other_patches() -> None:
    """It knows nothing of the checkpoint's limits, and rounds to whole patches before them."""
    pytest.importorskip("qwen_vl_utils", exc_type=ImportError)
    own = own_processor(TARGET)
    patch = image_preprocessing(TARGET).spec.patch_size
    differences = compare(ours, behind_qwen_vl_utils(own, patch))
    finding = judge("pictures", differences, Level.WARN)
    assert finding.level == Level.WARN
    assert "300x200 becomes 240 patches there and 216 here" in finding.message
    assert [d.ours == d.theirs for d in differences] == [True, True, False, True]


def test_what_cannot_be_imported_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", None)
    own, behind = check_pictures("target", TARGET)
    assert own.level == Level.OK and behind.level == Level.OK
    assert "not compared (ModuleNotFoundError" in behind.message and "qwen" in behind.advice


def test_a_checkpoint_without_its_files_is_left_to_the_check_of_the_files(tmp_path: Path) -> None:
    assert list(check_pictures("target", str(tmp_path))) == []
