"""Our pictures, made by numpy and PIL, are those of each checkpoint's own image processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, checkpoint
from PIL import Image
from transformers import AutoImageProcessor

from edge_cloud_spec.models import EMBEDDED, FLATS
from edge_cloud_spec.models.checkpoint import image_preprocessing
from edge_cloud_spec.models.image import patches

SIZES = ((640, 480), (1280, 720), (300, 200), (224, 224), (97, 411))  # width, height: of cameras
SAME = 1e-4  # of numbers that go from about -2 to 2: rounding
CHECKPOINTS = {"embedded": EMBEDDED / "target", "flats": FLATS / "target"}


def sample(size: tuple[int, int]) -> Image.Image:
    """A reproducible picture with edges, gradients and noise."""
    wide, high = size
    rng = np.random.default_rng((wide, high))
    across = np.linspace(0, 255, wide)[None, :, None] * np.ones((high, 1, 3))
    across[high // 3 : high // 2, wide // 4 : wide // 2] = (20, 60, 200)
    noisy = across + rng.normal(0, 4, across.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def difference(directory: Path, size: tuple[int, int], contrast: float = 1.0) -> float:
    """The largest difference of a value; infinite for another number of patches."""
    made = image_preprocessing(directory)
    std = tuple(value / contrast for value in made.std)
    ours, grid = patches(sample(size), made.spec, made.mean, std)
    own = AutoImageProcessor.from_pretrained(directory, local_files_only=True)
    theirs = own(images=sample(size), return_tensors="np")
    if tuple(theirs["image_grid_thw"][0]) != grid:
        return np.inf
    return float(np.abs(ours - theirs["pixel_values"]).max())


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", [*CHECKPOINTS, *FAMILIES])
def test_a_picture_is_what_the_checkpoints_own_processor_makes_of_it(
    name: str, size: tuple[int, int]
) -> None:
    assert difference(CHECKPOINTS.get(name) or checkpoint(name), size) <= SAME


def test_the_check_sees_other_statistics_of_the_colours() -> None:
    assert difference(EMBEDDED / "target", (300, 200), contrast=1.001) > SAME
