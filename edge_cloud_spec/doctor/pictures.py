"""Checks our picture preprocessing against the model's own processor.

Robot and cloud both use ours, so a difference does not make them disagree; but a model that was
trained on other values answers worse.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from ..errors import UserError, one_line
from ..health import Health, Level
from ..models.checkpoint import ImagePreprocessing, image_preprocessing, quiet_libraries
from ..models.image import patches

Patches = tuple[np.ndarray, tuple[int, int, int]]  # float32 [patches, numbers], the grid (t, h, w)
Process = Callable[[Image.Image], Patches]

SIZES = ((640, 480), (1280, 720), (300, 200), (224, 224))  # width and height, of usual cameras
SAME = 1e-4  # of numbers that go from about -2 to 2: rounding
RESIZED = 0.05  # another library's resize; measured: 0.015


@dataclass(frozen=True)
class Difference:
    """How two preprocessors differ on a picture of this size; ``largest`` is for equal grids
    only."""

    size: tuple[int, int]
    ours: tuple[int, int, int]
    theirs: tuple[int, int, int]
    largest: float

    def __str__(self) -> str:
        picture = f"a picture of {self.size[0]}x{self.size[1]}"
        if self.ours != self.theirs:
            counts = (self.theirs[1] * self.theirs[2], self.ours[1] * self.ours[2])
            return f"{picture} becomes {counts[0]} patches there and {counts[1]} here"
        return f"{picture} differs by up to {self.largest:.2g}"


def compare(ours: Process, theirs: Process) -> list[Difference]:
    """Compare both on one picture of each size; the pictures are smooth with some noise, like a
    camera's."""
    found = []
    for size in SIZES:
        picture = sample(size)
        (our_values, our_grid), (their_values, their_grid) = ours(picture), theirs(picture)
        same = our_grid == their_grid and our_values.shape == their_values.shape
        largest = float(np.abs(our_values - their_values).max()) if same else float("inf")
        found.append(Difference(size, our_grid, their_grid, largest))
    return found


def sample(size: tuple[int, int]) -> Image.Image:
    """A reproducible picture with edges, gradients and noise."""
    wide, high = size
    rng = np.random.default_rng((wide, high))
    across = np.linspace(0, 255, wide)[None, :, None] * np.ones((high, 1, 3))
    across[high // 3 : high // 2, wide // 4 : wide // 2] = (20, 60, 200)
    noisy = across + rng.normal(0, 4, across.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def judge(check: str, differences: list[Difference], grid_level: Level) -> Health:
    """The worst difference as a finding; ``grid_level``: the severity of a different number of
    patches."""
    other = [d for d in differences if d.ours != d.theirs]
    if other:
        advice = (
            "give target and drafter pictures by this package alone, and check min_pixels and "
            "max_pixels in preprocessor_config.json"
        )
        return Health(grid_level, "; ".join(map(str, other)), advice, check=check)
    worst = max(differences, key=lambda d: d.largest)
    if worst.largest <= SAME:
        return Health(Level.OK, f"equal to ours ({worst})", check=check)
    if worst.largest <= RESIZED:
        return Health(Level.OK, f"{worst}: another library's resize", check=check)
    advice = "check image_mean, image_std and the sizes in preprocessor_config.json"
    return Health(Level.WARN, str(worst), advice, check=check)


def check_pictures(name: str, directory: str) -> Iterator[Health]:
    """Compare ours with the checkpoint's own processor, and with qwen-vl-utils before it."""
    try:
        preprocessing = image_preprocessing(directory)
    except UserError:
        return  # said of the checkpoint already
    check = f"pictures of {name}"
    try:
        own = own_processor(directory)
        yield judge(f"{check}: own processor", compare(_ours(preprocessing), own), Level.ERROR)
    except Exception as error:  # whatever a library raises on its way
        yield _skipped(f"{check}: own processor", error)
        return
    try:
        behind = behind_qwen_vl_utils(own, preprocessing.spec.patch_size)
    except Exception as error:
        yield _skipped(f"{check}: qwen-vl-utils", error)
        return
    yield judge(f"{check}: qwen-vl-utils", compare(_ours(preprocessing), behind), Level.WARN)


def _ours(preprocessing: ImagePreprocessing) -> Process:
    return lambda image: patches(image, preprocessing.spec, preprocessing.mean, preprocessing.std)


def own_processor(directory: str) -> Process:
    """The checkpoint's image processor, loaded by transformers."""
    with quiet_libraries():
        from transformers import AutoImageProcessor

        processor: Any = AutoImageProcessor.from_pretrained(directory, local_files_only=True)

    def process(image: Image.Image) -> Patches:
        made = processor(images=image, return_tensors="np")
        t, high, wide = (int(n) for n in np.asarray(made["image_grid_thw"])[0])
        return np.asarray(made["pixel_values"], np.float32), (t, high, wide)

    return process


def behind_qwen_vl_utils(own: Process, patch_size: int) -> Process:
    """A processor that first resizes pictures by qwen-vl-utils, as its README shows."""
    fetch_image = importlib.import_module("qwen_vl_utils").fetch_image
    return lambda image: own(fetch_image({"image": image}, image_patch_size=patch_size))


def _skipped(check: str, error: Exception) -> Health:
    advice = "pip install 'qwen-vl-utils>=0.0.11' torchvision, of the version that fits this torch"
    return Health(
        Level.OK, f"not compared ({type(error).__name__}: {one_line(error)})", advice, check=check
    )
