"""What a test trains on."""

from __future__ import annotations

import shutil
from pathlib import Path

from helpers.checkpoints import checkpoint, jpeg
from safetensors.torch import load_file, save_file


def material(folder: Path) -> tuple[Path, Path]:
    """A folder of pictures and a file of prompts."""
    (folder / "pictures").mkdir()
    for seed in range(3):
        (folder / "pictures" / f"{seed}.jpg").write_bytes(jpeg(seed))
    prompts = folder / "prompts.txt"
    prompts.write_text("find the silver bottle\n\ngo to the door\n")
    return folder / "pictures", prompts


def decided(folder: Path) -> Path:
    """A random checkpoint whose layers matter and which is sure of its words."""
    shutil.copytree(checkpoint(), folder)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if weight.dim() == 2 and "language_model" in name:
            weight.mul_(12)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
