"""Makes checkpoints of ``FAMILIES`` with random weights, for tests and for timing real
shapes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from edge_cloud_spec.models.families import FAMILIES

from ..tokens import SPECIAL_TOKENS

CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# In the form of Qwen's and Hermes' templates: results are the user's, neighbours one message.
TOOLS_TEMPLATE = """
{%- macro said(content) -%}
{%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}
{{- part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' -%}{{- said(messages[0].content) + '\\n\\n' }}{%- endif -%}
{{- 'Functions:\\n<tools>' }}
{%- for tool in tools -%}{{- '\\n' + tool | tojson }}{%- endfor -%}
{{- '\\n</tools>\\nCall one by <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>' }}
{{- '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}
{{- '<|im_start|>user' }}{%- endif -%}
{{- '\\n<tool_response>\\n' + said(message.content) + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' }}{%- endif -%}
{%- elif not (tools and loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\\n' + said(message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor -%}
{{- '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' }}{%- endif -%}
"""
TOKENIZER_TEXT = (
    "action: turn left small; reason: the silver bottle is far left, right of the red chair; "
    "find the green box near the brown door; move forward large; search; stop; action first"
)


@dataclass(frozen=True)
class CheckpointShape:
    """Sizes of a random checkpoint; `vocabulary` includes padding rows, 0 means none."""

    hidden: int = 32
    mlp: int = 64
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    vision: int = 32
    vision_layers: int = 2
    vision_heads: int = 2
    vocabulary: int = 0

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads


TINY = CheckpointShape()
SHAPE_100M = CheckpointShape(768, 2048, 16, 12, 4, 256, 4, 4)  # about 0.1 billion weights
SHAPE_500M = CheckpointShape(1024, 4096, 32, 16, 4, 512, 6, 8)


def make_checkpoint(
    directory: Path,
    family: str = "qwen3_vl",
    shape: CheckpointShape = TINY,
    *,
    seed: int = 0,
    follows: np.ndarray | None = None,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint of a family and return its directory.

    text: fields of the text's configuration. follows: int [tokens], the most likely successor of
    each token, -1 for none; see `make_pair`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _make_tokenizer()
    tokenizer.save_pretrained(directory)
    config = _config(family, shape, tokenizer, text or {})
    config.tie_word_embeddings = follows is None
    torch.manual_seed(seed)
    model = getattr(transformers, FAMILIES[family].model_class)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(".bias"):  # zero by default, which would hide a lost bias
                weight.normal_(0, 0.02)
            # So that 1 + weight, of Qwen3.5's norms, is not the weight.
            if FAMILIES[family].recurrent and "norm" in name:
                weight.add_(torch.randn_like(weight), alpha=0.1)
            if name.endswith("mlp.gate.weight"):  # a router decides, and not by a rounding
                weight.mul_(10)
            if name.endswith(".A_log"):  # by default nearly all forget a token at once
                weight.uniform_(-5, 0)
        if follows is not None:
            _follow(model, follows)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"), do_sample=False
    )
    model.half().save_pretrained(directory)
    if not FAMILIES[family].reads_pictures:
        return directory
    patch = config.vision_config.patch_size
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": (2 * patch) ** 2,
        "max_pixels": (8 * patch) ** 2,
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(processor, indent=2))
    return directory


def make_pair(
    directory: Path,
    target: CheckpointShape = SHAPE_500M,
    drafter: CheckpointShape = SHAPE_100M,
    family: str = "qwen3_vl",
    *,
    agreement: float = 0.8,
    seed: int = 0,
) -> tuple[Path, Path]:
    """The directories of a random target and drafter whose greedy tokens agree at about this rate.

    The passes cost what such shapes cost. The text is meaningless: each model's most likely token
    is a successor of the last one, along one cycle through all ordinary tokens; for 1 -
    ``agreement`` of the tokens the drafter has another successor. Answers never end by themselves.
    """
    tokenizer = _make_tokenizer()
    special = set(tokenizer.added_tokens_decoder)
    ordinary = np.array([i for i in sorted(tokenizer.get_vocab().values()) if i not in special])
    rng = np.random.default_rng(seed)
    cycle = rng.permutation(ordinary)
    follows = np.full(len(tokenizer), -1)
    follows[cycle] = np.roll(cycle, -1)
    errs = rng.permutation(len(cycle))[round(agreement * len(cycle)) :]
    drafted = follows.copy()
    drafted[cycle[errs]] = np.roll(cycle, -2)[errs]
    return (
        make_checkpoint(directory / "target", family, target, seed=seed, follows=follows),
        make_checkpoint(directory / "drafter", family, drafter, seed=seed + 1, follows=drafted),
    )


def make_shallow(target: Path, directory: Path) -> Path:
    """Copy a checkpoint without its text's last layer: a drafter that is right now and then."""
    shutil.copytree(target, directory)
    config = transformers.AutoConfig.from_pretrained(target)
    kind = getattr(transformers, FAMILIES[config.model_type].model_class)
    model = kind.from_pretrained(target)
    text, config = getattr(model.model, "language_model", model.model), model.config
    text.layers, config = text.layers[:-1], getattr(config, "text_config", config)
    config.num_hidden_layers = len(text.layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:-1]
    model.save_pretrained(directory)
    return directory


def _follow(model: Any, follows: np.ndarray) -> None:
    """Set the head's row of each token's successor to that token's embedding, and scale the blocks
    down so that the successor stays the most likely."""
    embeddings = model.get_input_embeddings().weight
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "experts.down_proj")):
            weight.mul_(0.1)
    known = torch.from_numpy(np.flatnonzero(follows >= 0))
    head = torch.zeros_like(model.lm_head.weight)
    head[torch.from_numpy(follows)[known]] = embeddings[known]
    # The right logit is about `size * spread`, the others' spread its root: bring it to 12.
    head *= 12.0 / (embeddings.shape[1] * float(embeddings.std()))
    model.lm_head.weight.copy_(head)


def _make_tokenizer() -> Any:
    """A byte-level BPE, always the same."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([TOKENIZER_TEXT], trainer)
    bpe.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHATML_TEMPLATE
    return tokenizer


def _config(family: str, shape: CheckpointShape, tokenizer: Any, fields: Mapping[str, Any]) -> Any:
    ids = {
        name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")
    }
    tokens = {
        "image_token_id": ids["image_pad"],
        "video_token_id": ids["video_pad"],
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    }
    # Of recurrent families a half of each head is rotated.
    head = shape.head_dim * (2 if FAMILIES[family].recurrent else 1)
    half = shape.head_dim // 2
    side = half // 3
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    text: dict[str, Any] = {
        "vocab_size": shape.vocabulary or len(tokenizer),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 4096,
        "rope_parameters": rope,
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
    }
    if FAMILIES[family].recurrent:
        rope["partial_rotary_factor"] = 0.5
        text |= {
            "full_attention_interval": 2,
            "linear_num_key_heads": shape.kv_heads,
            "linear_num_value_heads": 2 * shape.heads,
            "linear_key_head_dim": shape.head_dim,
            "linear_value_head_dim": shape.head_dim,
        }
    kind = transformers.CONFIG_MAPPING[family]
    parts = kind.sub_configs
    if hasattr(parts.get("text_config", kind), "num_experts"):
        text |= {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": shape.mlp // 2,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        }
    text |= {**fields, "rope_parameters": rope | fields.get("rope_parameters", {})}
    rope = text["rope_parameters"]
    if not FAMILIES[family].reads_pictures:
        return kind(**{"head_dim": head, **text})
    rope["mrope_section"] = [half - 2 * side, side, side]
    vision: dict[str, Any]
    if family == "qwen2_vl":
        vision = {"embed_dim": shape.vision, "hidden_size": shape.hidden, "mlp_ratio": 2}
    elif family == "qwen2_5_vl":
        vision = {
            "hidden_size": shape.vision,
            "out_hidden_size": shape.hidden,
            "intermediate_size": 2 * shape.vision,
            "window_size": 56,
            "fullatt_block_indexes": [shape.vision_layers - 1],
        }
    else:
        text["head_dim"] = head
        rope["mrope_interleaved"] = True
        vision = {
            "hidden_size": shape.vision,
            "out_hidden_size": shape.hidden,
            "intermediate_size": 2 * shape.vision,
            "num_position_embeddings": 256,
        }
        if hasattr(parts["vision_config"], "deepstack_visual_indexes"):
            vision["deepstack_visual_indexes"] = [0, shape.vision_layers - 1]
    patch = 14 if family.startswith("qwen2") else 16
    vision |= {"depth": shape.vision_layers, "num_heads": shape.vision_heads, "patch_size": patch}
    return kind(text_config=text, vision_config=vision, **tokens)
