"""What a drafter in a GGUF file needs of this package, where llama.cpp is not installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.checkpoints import jpeg

from edge_cloud_spec.doctor.machine import check_model
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.health import Level
from edge_cloud_spec.instruction import known_instructions
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.image import ImageSpec, decode_image, patches, picture_of, target_size
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A GGUF file, as far as this process looks at it."""
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED / "drafter", folder)
    (folder / "model.safetensors").unlink()
    for name in ("x.gguf", "mmproj-x.gguf"):
        (folder / name).write_bytes(b"GGUF")
    return folder / "x.gguf"


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("mean", [(0.5, 0.5, 0.5), (0.48145466, 0.4578275, 0.40821073)])
def test_a_picture_is_what_its_patches_were_cut_from(mean: tuple[float, ...], merge: int) -> None:
    image, std = decode_image(jpeg(3, 97, 131)), (0.26862954, 0.26130258, 0.27577711)
    spec = ImageSpec(16, 64 * 64 * 3, 8, merge, 2)
    pixels, grid = patches(image, spec, mean, std)
    high, wide = target_size(image.height, image.width, spec)
    seen = np.asarray(image.resize((wide, high), 3))
    assert np.array_equal(picture_of(pixels, grid, spec, mean, std), seen)


def test_a_library_that_is_missing_is_one_sentence(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('not here')")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    with pytest.raises(UserError, match=r"there is no llama-cpp-python\): pip install '[^']*'.*$"):
        load_drafter(DraftModelSettings(path=str(file)))


def test_a_file_is_known_by_what_lies_beside_it(file: Path) -> None:
    here, there = known_instructions(file), known_instructions(EMBEDDED / "drafter")
    assert here is not None and there is not None and here.pattern == there.pattern
    assert check_model("drafter", str(file)).level == Level.OK
    (file.parent / "mmproj-x.gguf").unlink()
    finding = check_model("drafter", str(file))
    assert finding.level == Level.ERROR and "mmproj-x.gguf is missing" in finding.message
    (file.parent / "tokenizer.json").unlink()
    assert "lacks tokenizer.json" in check_model("drafter", str(file)).message
    assert check_model("drafter", str(file.with_name("y.gguf"))).level == Level.ERROR
