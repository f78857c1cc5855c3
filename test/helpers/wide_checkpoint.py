"""A checkpoint of Qwen3-VL whose vision part has another rotary base, for servers that know only
everybody's: the same model, so many times as wide.

``PYTHONPATH=test python -m helpers.wide_checkpoint CHECKPOINT DIRECTORY``, for ``vllm serve``.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from edge_cloud_spec.models.checkpoint import weight_files

Weights = dict[str, np.ndarray]
VISUAL = re.compile(r"^(model\.)?visual\.")
ROPE_BASE = 10_000  # of every vision part in llama.cpp and vLLM


def write_wide(source: Path, directory: Path) -> tuple[dict[str, Any], Weights, bool]:
    """Write a checkpoint's small files, and where its rotary base is another one the wide model.

    Its configuration, its weights, and whether it is a wide one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, directory)
    config = json.loads((source / "config.json").read_text("utf-8"))
    weights: Weights = {}
    for file in weight_files(source):
        weights |= load_file(file)
    if is_wide := widen(config, weights):
        save_file(weights, directory / "model.safetensors", {"format": "pt"})
        (directory / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    return config, weights, is_wide


def widen(config: dict[str, Any], weights: Weights) -> bool:
    """Make a checkpoint whose vision part (Qwen3-VL's) has another rotary base the same with
    ``ROPE_BASE``, so many times as wide; False: it has that base.
    """
    vision = config["vision_config"]
    theta = vision.get("rope_parameters", {}).get("rope_theta", ROPE_BASE)
    times = round(math.log(ROPE_BASE, theta))
    if theta**times != ROPE_BASE:
        raise ValueError(f"servers have no rotary base {theta}, and no power of it")
    if times == 1:
        return False
    width, heads = vision["hidden_size"], vision["num_heads"]
    vision["hidden_size"] = times * width
    vision["rope_parameters"]["rope_theta"] = ROPE_BASE
    config["dtype"] = "float32"
    for name, weight in weights.items():
        each = weight.astype(np.float32)
        wide = _wide(name, each, width, heads, times) if VISUAL.match(name) else each
        weights[name] = np.ascontiguousarray(wide, np.float32)
    return True


def _wide(name: str, each: np.ndarray, width: int, heads: int, times: int) -> np.ndarray:
    """The residual stream is repeated, which a LayerNorm does not see; what reads it reads its
    first copy. A head has zeros behind each part of a rotary half, and so the low frequencies of a
    head of the larger base, which are all of those of its own."""
    quarter = width // heads // 4

    def spread(rows: np.ndarray) -> np.ndarray:
        parts = rows.reshape(heads, 4, quarter, -1)
        zeros = np.zeros((heads, 4, (times - 1) * quarter, parts.shape[-1]), rows.dtype)
        return np.concatenate([parts, zeros], 2).reshape(times * width, *rows.shape[1:])

    def reads(columns: np.ndarray) -> np.ndarray:
        parts = columns.reshape(len(columns), -1, 1, width)
        zeros = np.zeros((*parts.shape[:2], times - 1, width), columns.dtype)
        return np.concatenate([parts, zeros], 2).reshape(len(columns), -1)

    def repeats(rows: np.ndarray) -> np.ndarray:
        parts = rows.reshape(-1, 1, width, *rows.shape[1:])
        return np.repeat(parts, times, 1).reshape(-1, *rows.shape[1:])

    def silent(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows, np.zeros(((times - 1) * len(rows), *rows.shape[1:]))])

    if ".qkv." in name:
        query, key, value = map(spread, np.split(reads(each) if each.ndim > 1 else each, 3))
        # of the wider head's scale
        return np.concatenate([math.sqrt(times) * query, key, value])
    if ".attn.proj." in name:
        return repeats(spread(each.T).T if each.ndim > 1 else each)
    if "linear_fc1" in name:
        each = reads(each) if each.ndim > 1 else each
        return silent(each) if "merger" in name else each
    if "merger" in name and "linear_fc2.weight" in name:
        return silent(each.T).T
    if "pos_embed" in name:
        return repeats(each.T).T
    if "mlp.linear_fc2" in name or "norm" in name or "patch_embed" in name:
        return repeats(each)
    return each


if __name__ == "__main__":
    write_wide(Path(sys.argv[1]), Path(sys.argv[2]))
