"""Our pictures, made by numpy and PIL, are those of each checkpoint's own image processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, checkpoint
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from edge_cloud_spec.models import EMBEDDED, FLATS
from edge_cloud_spec.models.checkpoint import image_preprocessing
from edge_cloud_spec.models.image import ImageSpec, patches, target_size

SIZES = ((640, 480), (1280, 720), (300, 200), (224, 224), (97, 411))  # width, height: of cameras
SAME = 1e-4  # of numbers that go from about -2 to 2: rounding
PUBLISHED = (  # least and most pixels, and the patch's side, of Qwen2-VL, 2.5-VL and 3-VL
    (56 * 56, 28 * 28 * 1280, 14),
    (56 * 56, 28 * 28 * 16384, 14),
    (256 * 28 * 28, 1280 * 28 * 28, 14),
    (256 * 256, 4096 * 4096, 16),
    (256 * 32 * 32, 1280 * 32 * 32, 16),
)
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


@given(
    high=st.integers(1, 3000),
    wide=st.integers(1, 3000),
    patch=st.sampled_from((8, 14, 16)),
    least=st.integers(1, 2**24),
    ratio=st.sampled_from((1.0, 1.1, 1.5, 2.0, 16.0)),
)
def test_the_size_is_that_of_transformers_near_any_limits(
    high: int, wide: int, patch: int, least: int, ratio: float
) -> None:
    assume(max(high, wide) <= 200 * min(high, wide))
    most = max(int(least * ratio), (2 * patch) ** 2)
    theirs = smart_resize(high, wide, 2 * patch, least, most)
    assert target_size(high, wide, ImageSpec(least, most, patch, 2, 2)) == theirs


@pytest.mark.parametrize("limits", PUBLISHED, ids=str)
@given(high=st.integers(1, 4000), wide=st.integers(1, 4000))
def test_a_resized_picture_stays_with_published_limits(
    limits: tuple[int, int, int], high: int, wide: int
) -> None:
    """So that vLLM, which gets it resized, counts as many tokens."""
    assume(max(high, wide) <= 200 * min(high, wide))
    least, most, patch = limits
    spec = ImageSpec(least, most, patch, 2, 2)
    size = target_size(high, wide, spec)
    assert target_size(*size, spec) == size


def test_the_check_sees_other_statistics_of_the_colours() -> None:
    assert difference(EMBEDDED / "target", (300, 200), contrast=1.001) > SAME
