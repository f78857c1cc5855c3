"""`doctor` compares our picture preprocessing with the checkpoint's own and with qwen-vl-utils."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


def test_other_statistics_of_the_colours_are_said(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EMBEDDED / "target", tmp_path / "target"))
    file = folder / "preprocessor_config.json"
    content = json.loads(file.read_text())
    content["image_std"] = [2 * value for value in content["image_std"]]
    file.write_text(json.dumps(content))
    finding = judge("pictures", compare(ours, own_processor(str(folder))), Level.ERROR)
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
