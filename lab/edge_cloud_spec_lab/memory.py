"""``edge-cloud-spec memory``: the memory that a checkpoint needs, from its config.json alone."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_cloud_spec.errors import UserError, check_writable, library_errors, write_json
from edge_cloud_spec.models.checkpoint import quiet_libraries, read_json
from edge_cloud_spec.models.families import family_of
from edge_cloud_spec.share import path_of

BITS = (16, 8, 4)
SCALE_BITS = 0.25  # per weight at 8 or 4 bits: 128 or fewer weights share a scale and a zero


@dataclass(frozen=True)
class Footprint:
    """How many weights a checkpoint has, and the bytes of keys and values per token, and of what
    Gated DeltaNet layers remember; ``head``: of one that drafts, 0 without."""

    family: str
    text: int  # weights of the text layers, which can be quantized
    active: int  # of these, the weights that one token uses: all but those of experts not chosen
    embeddings: int  # weights, including an untied LM head
    vision: int
    kv_bytes: int  # per token, at 16 bits
    state_bytes: int  # per session, at 32 bits
    head: int = 0  # weights, which are not quantized
    head_kv_bytes: int = 0  # per token, at 16 bits, with the target's rows that it reads

    def weight_bytes(self, bits: int) -> float:
        """Bytes of all weights: text layers at ``bits`` bits each, the others at 16."""
        each = bits if bits == 16 else bits + SCALE_BITS
        return self.text * each / 8 + 2 * (self.embeddings + self.vision)


def footprint(config: Path) -> Footprint:
    """The footprint of a config.json, or of the one in a directory; raises UserError."""
    if not config.is_dir() and config.suffix != ".json":  # such as a GGUF file or a hub name
        raise UserError(f"{config} is neither a model directory nor a config.json: give one")
    directory, name = (config, "config.json") if config.is_dir() else (config.parent, config.name)
    read = read_json(directory, name)
    family = family_of(config, read)
    whole = f"{config} describes no model that can be made"
    with library_errors(whole, "fetch it again"), quiet_libraries():
        import torch
        import transformers

        from edge_cloud_spec.models.passes.delta_layer import recurrent_layout
        from edge_cloud_spec.models.recurrent import WRITES

        parsed = transformers.AutoConfig.from_pretrained(directory / name)
        with torch.device("meta"):  # allocates no weights
            model = getattr(transformers, family.model_class)._from_config(parsed)
        text = parsed.get_text_config()
        sizes = {id(weight): weight.numel() for weight in model.parameters()}
        visual = model.model.visual.parameters() if family.reads_pictures else ()
        vision = sum(weight.numel() for weight in visual)
        blocks = family.text_model(model).layers
        layers = sum(weight.numel() for weight in blocks.parameters())
        experts = [block.mlp.experts for block in blocks if hasattr(block.mlp, "experts")]
        routed = sum(weight.numel() for each in experts for weight in each.parameters())
        chosen = text.num_experts_per_tok / text.num_experts if experts else 1
        active = layers - round(routed * (1 - chosen))
        recurrent = recurrent_layout(blocks, torch.device("meta"))
        attentions = sum(hasattr(block, "self_attn") for block in blocks)
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        rows = 2 * attentions * text.num_key_value_heads
    embeddings = sum(sizes.values()) - vision - layers
    state = 0  # bytes that a session begins with, of a recurrent model
    if recurrent is not None:
        state = recurrent.state_bytes + WRITES * recurrent.write_bytes
    sizes_of = layers, active, embeddings, vision
    of_head = (0, 0)
    if _has_head(config, read):
        like = next(block for block in blocks if hasattr(block, "self_attn"))
        width = text.hidden_size  # its norms, and a projection of twice as much
        weights = sum(weight.numel() for weight in like.parameters()) + (3 + 2 * width) * width
        of_head = weights, 2 * (2 * text.num_key_value_heads * head + width)
    return Footprint(read["model_type"], *sizes_of, 2 * rows * head, state, *of_head)


def _has_head(config: Path, read: dict[str, Any]) -> bool:
    """Whether a head drafts for this model: by its weights, or by its config.json alone."""
    if config.is_dir() and any(config.glob("model.safetensors*")):
        from edge_cloud_spec.models.draft_head import has_head  # imports torch

        return has_head(config)
    return bool(read.get("text_config", read).get("mtp_num_hidden_layers"))


def add_memory_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``memory``."""
    parser.add_argument("config", type=path_of, help="a model directory, or its config.json")
    parser.add_argument("--json", type=path_of, help="write the figures there")


def run_memory(args: argparse.Namespace) -> int:
    """Print weights and memory; returns 0. Raises UserError."""
    if args.json:
        check_writable(args.json)
    found = footprint(args.config)
    row = {
        "family": found.family,
        "text_weights_m": found.text / 1e6,
        "active_text_weights_m": found.active / 1e6,
        "embedding_weights_m": found.embeddings / 1e6,
        "vision_weights_m": found.vision / 1e6,
        **{f"mb_at_{bits}_bits": found.weight_bytes(bits) / 1e6 for bits in BITS},
        "kv_mb_per_1000_tokens": found.kv_bytes / 1e3,
        "state_mb_per_session": found.state_bytes / 1e6,
        "head_mb": 2 * found.head / 1e6,
        "head_kv_mb_per_1000_tokens": found.head_kv_bytes / 1e3,
    }
    for name, value in row.items():
        print(f"{name:26}", f"{value:12,.1f}" if isinstance(value, float) else f"{value:>12}")
    if args.json:
        write_json(args.json, row)
    return 0
