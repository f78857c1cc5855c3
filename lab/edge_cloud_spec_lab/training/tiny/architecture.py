"""The two shapes of the pair, as configurations of transformers' Qwen3-VL classes.

What lets so small a model see (found by ablation): learned vision positions with a wide initial
spread, vision rotary frequencies for a 16 x 16 grid, and text frequencies for short prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    GenerationConfig,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from edge_cloud_spec.errors import write_json
from edge_cloud_spec.nav.answer import ORDERS

from ...sim.kinds import THING_KINDS
from ...sim.room import PHRASINGS
from .language import FLAT_PHRASES, INSTRUCTION_PATTERN, ROOM_INSTRUCTION
from .tokenizer import build_tokenizer, save_tokenizer

IMAGE_PX = 128  # pixels of an image's side
PATCH = 8
MERGE = 2
PATCH_GRID = IMAGE_PX // PATCH  # 16 patches a side
VISUAL = (PATCH_GRID // MERGE) ** 2  # 64 visual tokens


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model; ``vocabulary`` includes the padding rows."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head: int
    sections: tuple[int, int, int]
    vision_hidden: int
    vision_depth: int
    vision_heads: int
    deepstack: tuple[int, ...]


TARGET = ModelShape(608, 256, 768, 6, 4, 2, 64, (12, 10, 10), 128, 6, 4, (1, 3))
DRAFTER = ModelShape(576, 96, 192, 2, 3, 1, 32, (6, 5, 5), 48, 2, 2, (0,))
TINY_SHAPES = {"target": TARGET, "drafter": DRAFTER}


def configuration(shape: ModelShape) -> Qwen3VLConfig:
    """The Qwen3-VL configuration of ``shape``; token ids are the pair's tokenizer's."""
    ids = build_tokenizer().get_vocab()
    end = ids["<|im_end|>"]
    return Qwen3VLConfig(
        text_config={
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.key_heads,
            "head_dim": shape.head,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "pad_token_id": None,
            "eos_token_id": end,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "mrope_section": list(shape.sections),
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": shape.vision_depth,
            "hidden_size": shape.vision_hidden,
            "intermediate_size": 4 * shape.vision_hidden,
            "num_heads": shape.vision_heads,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": shape.hidden,
            "num_position_embeddings": PATCH_GRID * PATCH_GRID,
            "deepstack_visual_indexes": list(shape.deepstack),
            "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
        eos_token_id=end,
    )


def build_model(shape: ModelShape, seed: int) -> Qwen3VLForConditionalGeneration:
    """A model of ``shape`` with random weights, float32."""
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(configuration(shape))
    torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=0.3)
    return model


def load_weights(model: Qwen3VLForConditionalGeneration, folder: Path) -> None:
    """Put a shipped model's weights into one of the same shape, which may know more tokens."""
    state = model.state_dict()
    for name, stored in load_file(folder / "model.safetensors").items():
        state[name][tuple(map(slice, stored.shape))] = stored.to(torch.float32)
    model.load_state_dict(state)


def save_pair_model(
    model: Qwen3VLForConditionalGeneration, folder: Path, *, flats: bool = False
) -> None:
    """Write a model into ``folder``: fp16 weights and every file that loading needs.

    flats: whether it was taught the instructions that are for flats.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=model.config.eos_token_id, max_new_tokens=40
    )
    model.to(torch.float16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    model.to(torch.float32).load_state_dict(kept)
    save_tokenizer(folder)
    preprocessing = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": IMAGE_PX * IMAGE_PX, "longest_edge": IMAGE_PX * IMAGE_PX},
        "min_pixels": IMAGE_PX * IMAGE_PX,
        "max_pixels": IMAGE_PX * IMAGE_PX,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
        "resample": 3,
    }
    language = {
        "instructions": INSTRUCTION_PATTERN.pattern if flats else ROOM_INSTRUCTION,
        "phrases": [*PHRASINGS, *(FLAT_PHRASES if flats else ())],
        "names": list(THING_KINDS),
        "orders": list(ORDERS),
    }
    write_json(folder / "preprocessor_config.json", preprocessing)
    write_json(folder / "edge_cloud_spec.json", language)
