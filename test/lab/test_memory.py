"""The memory that a checkpoint needs, from its configuration alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.checkpoints import ALL_FAMILIES, checkpoint, headed, vlm
from safetensors.numpy import load_file

from edge_cloud_spec.cli import main
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.cache import KeyValueCache
from edge_cloud_spec.models.draft_head import MTP, keep_hidden
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec_lab.memory import footprint


def real_weights(directory: Path) -> dict[str, int]:
    """Numbers of the weights in the files, by what they belong to."""
    counts = {"text": 0, "embeddings": 0, "vision": 0}
    for name, tensor in load_file(directory / "model.safetensors").items():
        kind = "vision" if "visual" in name else "text" if ".layers." in name else "embeddings"
        counts[kind] += tensor.size
    return counts


@pytest.mark.parametrize("directory", [EMBEDDED / "target", EMBEDDED / "drafter", *ALL_FAMILIES])
def test_weights_are_those_of_the_files(directory: Path | str) -> None:
    path = directory if isinstance(directory, Path) else checkpoint(directory)
    found = footprint(path)
    real = real_weights(path)
    assert (found.text, found.embeddings, found.vision) == tuple(real.values())
    assert found.weight_bytes(16) == 2 * sum(real.values())
    assert found.weight_bytes(4) < found.weight_bytes(8) < found.weight_bytes(16)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_keys_and_values_are_those_of_a_session(family: str) -> None:
    row, found = vlm(family).transformer.cache_layout, footprint(checkpoint(family))
    assert found.kv_bytes == row.row_bytes * 2 // row.dtype.itemsize
    cache = KeyValueCache(row, 1, KvMemory())
    assert cache.size - cache.capacity * row.row_bytes == found.state_bytes
    assert (found.state_bytes > 0) == family.startswith("qwen3_5")


@pytest.mark.parametrize("family", ["qwen3_5", "qwen2_vl", "qwen3_vl_moe"])
def test_a_head_that_drafts_is_told_apart(family: str, tmp_path: Path, capsys) -> None:
    model = load(checkpoint(family), check=False)  # its own: it is changed
    without = footprint(checkpoint(family))
    found = footprint(headed(family))
    weights = load_file(headed(family) / "model.safetensors")
    assert found.head == sum(each.size for name, each in weights.items() if name.startswith(MTP))
    before = model.transformer.cache_layout.row_bytes
    keep_hidden(model)
    row = model.transformer.cache_layout
    assert found.head_kv_bytes == (row.row_bytes - before) * 2 // row.dtype.itemsize
    assert replace(found, head=0, head_kv_bytes=0) == without
    assert main(["memory", str(headed(family)), "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["head_mb"] == pytest.approx(2e-6 * found.head)


def test_by_a_published_configuration_alone_a_head_is_told(tmp_path: Path) -> None:
    """Of the widths of Qwen3.5-27B, and fewer layers."""
    text = {
        "head_dim": 256,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 24,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "vocab_size": 248320,
    }
    config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = footprint(tmp_path)
    assert found.head_kv_bytes == 14336 and found.head == pytest.approx(0.425e9, rel=0.01)


def test_a_published_configuration_gives_its_models_size(tmp_path: Path, capsys) -> None:
    """Qwen2.5-VL-3B as it was published, of transformers before 5: 3.75 billion weights, of which
    the head is the embedding."""
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
    config = {
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {**vision, "out_hidden_size": 2048, "patch_size": 14, "window_size": 112},
    }
    path, figures = tmp_path / "published.json", tmp_path / "figures.json"
    path.write_text(json.dumps(config))
    assert main(["memory", str(path), "--json", str(figures)]) == 0
    row = json.loads(figures.read_text())
    assert row["mb_at_16_bits"] == pytest.approx(7509, abs=1)  # 3.754 billion of two bytes
    assert row["kv_mb_per_1000_tokens"] == pytest.approx(36.864)
    assert "3,433.8" in capsys.readouterr().out


def test_of_experts_all_are_held_and_those_of_a_token_are_active(tmp_path: Path) -> None:
    """Qwen3-30B-A3B as it was published: 30.5 billion weights, of which a token uses 3.3, with the
    embeddings."""
    config = {
        "model_type": "qwen3_moe",
        "head_dim": 128,
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = footprint(tmp_path)
    assert found.text + found.embeddings == pytest.approx(30.5e9, abs=5e7)
    assert found.active + found.embeddings == pytest.approx(3.35e9, abs=5e7)
    dense = footprint(checkpoint("qwen3"))
    assert dense.active == dense.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"model_type": "llava"}', "'llava' model"),
        ("no JSON", "fetch it again"),
        ('{"model_type": "qwen3_vl", "text_config": {"num_hidden_layers": "x"}}', "fetch it again"),
    ],
)
def test_a_file_that_describes_no_such_model_is_one_sentence(
    tmp_path: Path, capsys, content: str, words: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    assert main(["memory", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    (tmp_path / "a.gguf").write_bytes(b"GGUF\xff")
    for other in ("nothing", "a.gguf"):
        assert main(["memory", str(tmp_path / other)]) == 2
        assert f"{other} is neither a model directory nor a config" in capsys.readouterr().err
