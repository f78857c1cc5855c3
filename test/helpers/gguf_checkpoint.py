"""Checkpoints of the three families as GGUF files: for tests, and for ways through llama.cpp here.

``PYTHONPATH=test python -m helpers.gguf_checkpoint CHECKPOINT DIRECTORY``. Names of keys and
tensors are those of the package gguf. Owners of a published model take its own GGUF files. For the
embedded pair DIRECTORY holds, too, what servers read as it is: a checkpoint whose vision part has
everybody's rotary base (``vllm serve DIRECTORY``), and server.gguf, with words cut as they should
be and the chat template inside (``llama-server``).
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from helpers.wide_checkpoint import VISUAL, Weights, write_wide
from transformers.convert_slow_tokenizer import bytes_to_unicode

ARCHITECTURES = {
    "qwen2_vl": (gguf.MODEL_ARCH.QWEN2VL, "qwen2vl_merger"),
    "qwen2_5_vl": (gguf.MODEL_ARCH.QWEN2VL, "qwen2.5vl_merger"),
    "qwen3_vl": (gguf.MODEL_ARCH.QWEN3VL, "qwen3vl_merger"),
}
DEEPSTACK = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
MERGER = {
    "merger.norm": "v.post_ln",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
}
Q4_0 = 2  # LLAMA_FTYPE_MOSTLY_Q4_0


def convert(source: Path, directory: Path) -> Path:
    """Write f16.gguf, q4_0.gguf, their mmproj.gguf and the small files of a checkpoint; the first.

    Blocks of four bits (Q4_0) are 32 wide, those of the K-quants 256.
    """
    config, weights, own = write_wide(source, directory)
    # A file's names begin as in transformers' class, or as Qwen's own.
    seen = {name: VISUAL.sub("", name) for name in weights if VISUAL.match(name)}
    vision = {short: weights[name] for name, short in seen.items()}
    text = {
        name.replace("model.language_model.", "model."): weight
        for name, weight in weights.items()
        if name not in seen
    }
    _write_vision(directory / "mmproj.gguf", source, config, vision)
    _write_text(directory / "f16.gguf", source, config, text, _add_words)
    if own:
        _write_text(directory / "server.gguf", source, config, text, _add_whole_texts)
    quantize(directory / "f16.gguf", directory / "q4_0.gguf")
    return directory / "f16.gguf"


def quantize(source: Path, path: Path) -> None:
    """Write the same model in blocks of four bits."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = Q4_0
    status = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(path), options)
    if status:
        raise ValueError(f"llama.cpp cannot quantize {source}: {status}")


def _write(writer: gguf.GGUFWriter, weights: Weights) -> None:
    for name, weight in weights.items():
        wide = weight.ndim == 1 or "position" in name
        writer.add_tensor(name, np.ascontiguousarray(weight, np.float32 if wide else np.float16))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_text(
    path: Path, source: Path, config: dict[str, Any], weights: Weights, add_words: Any
) -> None:
    text, (kind, _) = config["text_config"], ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_rope_dimension_sections([*text["rope_parameters"]["mrope_section"], 0])
    writer.add_rope_freq_base(text["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    if "head_dim" in text:
        writer.add_key_length(text["head_dim"])
        writer.add_value_length(text["head_dim"])
    layers = config["vision_config"].get("deepstack_visual_indexes")
    if layers:
        writer.add_num_deepstack_layers(len(layers))
    writer.add_chat_template((source / "chat_template.jinja").read_text("utf-8"))
    add_words(writer, json.loads((source / "tokenizer.json").read_text("utf-8")), text)
    names = gguf.get_tensor_name_map(kind, text["num_hidden_layers"])
    _write(writer, {_named(names, name): weight for name, weight in weights.items()})


def _add_words(
    writer: gguf.GGUFWriter, words: dict[str, Any], text: dict[str, Any], cut: str = "qwen2"
) -> None:
    special = {token["id"]: token["content"] for token in words["added_tokens"]}
    tokens = {index: token for token, index in words["model"]["vocab"].items()} | special
    rows, kinds = range(text["vocab_size"]), gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list([tokens.get(row, f"[PAD{row}]") for row in rows])
    writer.add_token_types(
        [
            kinds.CONTROL
            if row in special
            else kinds.BYTE
            if tokens.get(row, "").startswith("<0x")
            else kinds.NORMAL
            for row in rows
        ]
    )
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in words["model"]["merges"]
    ]
    writer.add_token_merges(merges)
    writer.add_eos_token_id(text["eos_token_id"])


def _add_whole_texts(writer: gguf.GGUFWriter, words: dict[str, Any], text: dict[str, Any]) -> None:
    """The same tokens without a cut between words, since llama.cpp has no pattern that leaves
    "action:" and " 3.0" whole, and the merges cross no word. Texts are plain, bytes hexadecimal.
    """
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}

    def plain(token: str) -> str:
        raw = bytes(byte_of[letter] for letter in token)
        if len(raw) == 1 and not (raw == b"\n" or 0x20 <= raw[0] < 0x80):
            return f"<0x{raw[0]:02X}>"
        return raw.decode().replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")

    model, pairs = (
        words["model"],
        (pair.split(" ") if isinstance(pair, str) else pair for pair in words["model"]["merges"]),
    )
    vocabulary = {plain(token): index for token, index in model["vocab"].items()}
    merges = [" ".join(map(plain, pair)) for pair in pairs]
    _add_words(
        writer,
        words | {"model": {"vocab": vocabulary, "merges": merges}},
        text,
        cut="sarvam-moe",
    )


def _named(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise ValueError(f"the package gguf has no name for {name}")
    return str(found)


def _write_vision(path: Path, source: Path, config: dict[str, Any], weights: Weights) -> None:
    vision, (_, merger) = config["vision_config"], ARCHITECTURES[config["model_type"]]
    pictures = json.loads((source / "preprocessor_config.json").read_text("utf-8"))
    width = vision.get("embed_dim", vision["hidden_size"])
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(merger)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    side = math.isqrt(vision.get("num_position_embeddings", 1600))
    writer.add_vision_image_size(side * vision["patch_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(vision.get("intermediate_size", width))
    writer.add_vision_block_count(vision["depth"])
    writer.add_vision_head_count(vision["num_heads"])
    writer.add_vision_image_mean(pictures["image_mean"])
    writer.add_vision_image_std(pictures["image_std"])
    writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
    writer.add_vision_attention_layernorm_eps(1e-6)
    stacked = vision.get("deepstack_visual_indexes", [])
    if merger.startswith("qwen3"):
        writer.add_vision_use_gelu(True)
        writer.add_vision_is_deepstack_layers([at in stacked for at in range(vision["depth"])])
    if "fullatt_block_indexes" in vision:
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(vision["depth"], 3))
    named: Weights = {}
    for name, weight in weights.items():
        stem, _, kind = name.rpartition(".")
        if stem == "patch_embed.proj" and kind == "weight":  # of two equal frames
            named |= {"v.patch_embd.weight": weight[:, :, 0]}
            named |= {"v.patch_embd.weight.1": weight[:, :, 1]}
        elif stem in MERGER:
            named[f"{MERGER[stem]}.{kind}"] = weight
        elif stem.startswith("deepstack_merger_list"):
            _, at, layer = stem.split(".")
            named[f"v.deepstack.{stacked[int(at)]}.{DEEPSTACK[layer]}.{kind}"] = weight
        elif ".qkv" in stem and not stacked:
            for letter, part in zip("qkv", np.split(weight, 3), strict=True):
                named[_named(names, "visual." + name.replace("qkv", letter))] = part
        else:
            named[_named(names, "visual." + name)] = weight
    _write(writer, named)


if __name__ == "__main__":
    print(convert(Path(sys.argv[1]), Path(sys.argv[2])))
