"""`doctor` compares our picture preprocessing with the checkpoint's own."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.doctor import pictures
from edge_cloud_spec.doctor.pictures import Difference, check_pictures, judge
from edge_cloud_spec.health import Level
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.checkpoint import image_preprocessing

GRID = (1, 12, 18)
LARGER = {"max_pixels": 32768, "size": {"shortest_edge": 16384, "longest_edge": 32768}}


@pytest.mark.parametrize(
    ("largest", "level", "said"),
    [
        (0.0, Level.OK, "equal to ours"),
        (0.015, Level.OK, "resize"),
        (0.5, Level.WARN, "differs by up to 0.5"),
    ],
)
def test_the_size_of_a_difference_decides(largest: float, level: Level, said: str) -> None:
    same = Difference((640, 480), GRID, GRID, 0.0)
    finding = judge("pictures", [same, Difference((300, 200), GRID, GRID, largest)])
    assert finding.level == level and said in finding.message


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({}, Level.OK, "equal to ours"),
        ({"image_std": [1.0, 1.0, 1.0]}, Level.WARN, "image_std"),
        (LARGER, Level.ERROR, "640x480 becomes"),
    ],
)
def test_what_the_checkpoints_own_processor_gives_is_what_we_give_or_it_is_said(
    changes: dict[str, Any], level: Level, said: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Ours goes by the embedded target, theirs by a copy of it that differs so."""
    folder = Path(shutil.copytree(EMBEDDED / "target", tmp_path / "target"))
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    ours = image_preprocessing(EMBEDDED / "target")
    monkeypatch.setattr(pictures, "image_preprocessing", lambda directory: ours)
    [finding] = check_pictures("target", str(folder))
    assert finding.level == level and said in f"{finding.message} {finding.advice}"


def test_what_cannot_be_imported_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    [finding] = check_pictures("target", str(EMBEDDED / "target"))
    assert finding.level == Level.OK
    assert "not compared (ModuleNotFoundError" in finding.message and finding.advice
    assert not list(check_pictures("target", str(tmp_path))), "what has no files is said elsewhere"
