"""A batched forward over a Qwen3-VL's weights, with several questions per image.

transformers runs the vision blocks image by image and one question per row. For training, images of
one size run as one batch, and the questions about an image share its prefix: each attends to the
prefix and to itself, with the positions that it would have alone. The results are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration

from .architecture import IMAGE_PX, MERGE, PATCH, PATCH_GRID, VISUAL

PREFIX_TOKENS = VISUAL + 2  # <|vision_start|>, the image, <|vision_end|>
AFTER_IMAGE = 1 + PATCH_GRID // MERGE  # the position of <|vision_end|>


def patches(pixels: Tensor) -> Tensor:
    """Images [B, 3, 128, 128] as patches [B, 256, 3 * 8 * 8] in the image processor's order."""
    half = IMAGE_PX // (PATCH * MERGE)
    cut = pixels.view(-1, 3, half, MERGE, PATCH, half, MERGE, PATCH)
    return cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(
        -1, PATCH_GRID * PATCH_GRID, 3 * PATCH * PATCH
    )


def block_order(grid: Tensor) -> Tensor:
    """A grid [B, 16, 16] in the order of ``patches``: [B, 256]."""
    half = PATCH_GRID // MERGE
    cut = grid.reshape(-1, half, MERGE, half, MERGE)
    return cut.permute(0, 1, 3, 2, 4).reshape(-1, PATCH_GRID * PATCH_GRID)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention in plain operations: compiled for a CPU it is twice as fast as torch's fused
    one."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores.float(), dim=-1).to(v.dtype) @ v


class PackedForward(nn.Module):
    """Runs ``model`` on ``questions`` packed questions per image, each of ``slot`` tokens."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, questions: int, slot: int) -> None:
        super().__init__()
        self.model = model
        self.questions, self.slot = questions, slot
        raster = block_order(torch.arange(PATCH_GRID * PATCH_GRID).view(1, PATCH_GRID, PATCH_GRID))[
            0
        ]
        rotary = model.model.visual.rotary_pos_emb
        vision = rotary(torch.zeros(1), torch.stack((raster // PATCH_GRID, raster % PATCH_GRID)).T)
        text = model.model.language_model.rotary_emb(torch.zeros(1), self.positions()[:, None])
        # the patches' places in reading order [256], and cos and sin [256, dim], [1, 1, L, dim]
        self.raster = nn.Buffer(raster, persistent=False)
        self.vision_cos, self.vision_sin = (nn.Buffer(each, persistent=False) for each in vision)
        self.cos, self.sin = (nn.Buffer(each[:, None], persistent=False) for each in text)
        owner = torch.cat(
            (torch.zeros(PREFIX_TOKENS), 1 + torch.arange(questions).repeat_interleave(slot))
        )
        seen = (owner[None] == 0) | (owner[None] == owner[:, None])
        seen &= torch.ones_like(seen).tril()
        mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        self.mask = nn.Buffer(mask[None, None], persistent=False)  # additive [1, 1, L, L]

    def positions(self) -> Tensor:
        """M-RoPE positions [3, L] of the prefix and the questions."""
        side = PATCH_GRID // MERGE
        rows = torch.arange(VISUAL) // side
        columns = torch.arange(VISUAL) % side
        image = torch.stack((torch.zeros_like(rows), rows, columns)) + 1
        ends = torch.tensor([[0], [AFTER_IMAGE]]).expand(2, 3)
        question = AFTER_IMAGE + 1 + torch.arange(self.slot).repeat(self.questions)
        return torch.cat((ends[0, :, None], image, ends[1, :, None], question.expand(3, -1)), 1)

    def encode_images(self, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Visual tokens [B, 64, H] and deepstack features of normalised images [B, 3, 128, 128]."""
        visual = self.model.model.visual
        weight = visual.patch_embed.proj.weight.sum(2).flatten(1)
        x = F.linear(patches(pixels), weight, visual.patch_embed.proj.bias)
        x = x + visual.pos_embed.weight[self.raster]
        features: list[Tensor] = []
        for index, block in enumerate(visual.blocks):
            attention = block.attn
            q, k, v = (
                attention.qkv(block.norm1(x))
                .view(x.shape[0], x.shape[1], 3, attention.num_heads, -1)
                .permute(2, 0, 3, 1, 4)
                .unbind(0)
            )
            q = _rotate(q, self.vision_cos, self.vision_sin).to(v.dtype)
            k = _rotate(k, self.vision_cos, self.vision_sin).to(v.dtype)
            mixed = _attention(q, k, v, None)
            x = x + attention.proj(mixed.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
            if index in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[len(features)]
                features.append(merger(x).view(len(x), VISUAL, -1))
        return visual.merger(x).view(len(x), VISUAL, -1), features

    def hidden(self, merged: Tensor, features: list[Tensor], ids: Tensor) -> Tensor:
        """Last hidden states [B, L, H] for ids [B, L] (image places filled from ``merged``)."""
        embedded = self.model.model.language_model.embed_tokens(ids)
        x = torch.cat((embedded[:, :1], merged.to(embedded.dtype), embedded[:, 1 + VISUAL :]), 1)
        rest = x.shape[1] - 1 - VISUAL
        added = [F.pad(feature.to(x.dtype), (0, 0, 1, rest)) for feature in features]
        return self.text_layers(x, added, self.cos, self.sin, self.mask)

    def text_layers(
        self, x: Tensor, added: list[Tensor], cos: Tensor, sin: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Last hidden states [B, L, H] of embeddings of that shape; ``added`` after each layer.

        cos, sin: [B, 1, L, dim]; mask: additive [1, 1, L, L]; None: each sees what is before it.
        """
        text = self.model.model.language_model
        for index, layer in enumerate(text.layers):
            attention = layer.self_attn
            h = layer.input_layernorm(x)
            shape = (*h.shape[:2], -1, attention.head_dim)
            q = attention.q_norm(attention.q_proj(h).view(shape)).transpose(1, 2)
            k = attention.k_norm(attention.k_proj(h).view(shape)).transpose(1, 2)
            v = attention.v_proj(h).view(shape).transpose(1, 2)
            groups = attention.num_key_value_groups
            q = _rotate(q, cos, sin).to(v.dtype)
            k = _rotate(k, cos, sin).to(v.dtype).repeat_interleave(groups, dim=1)
            shared = v.repeat_interleave(groups, dim=1)
            if mask is None:
                mixed = F.scaled_dot_product_attention(q, k, shared, is_causal=True)
            else:
                mixed = _attention(q, k, shared, mask.to(q.dtype))
            x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if index < len(added):
                x = x + added[index]
        normed: Tensor = text.norm(x)
        return normed

    def forward(self, pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Visual tokens [B, 64, H] and the questions' logits [B, Q * slot, V]."""
        merged, features = self.encode_images(pixels)
        hidden = self.hidden(merged, features, ids)[:, PREFIX_TOKENS:]
        return merged, F.linear(hidden, self.model.lm_head.weight)


class ConversationForward(PackedForward):
    """Runs ``model`` on conversations of several images, each row with its own places of them."""

    def __init__(self, model: Qwen3VLForConditionalGeneration) -> None:
        super().__init__(model, 1, 1)

    def converse(
        self, rows: Tensor, ids: Tensor, visual: Tensor, positions: Tensor, last: Tensor
    ) -> Tensor:
        """Logits [N, V] after the tokens at ``last`` [N], places in the flat [B * L].

        rows [B, T * 64, K, H]: of T images' visual tokens in each conversation, and their K - 1
        deepstack features; ids [B, L]; visual [B, L]: which of them stands there, -1 for text;
        positions [3, B, L].
        """
        text = self.model.model.language_model
        is_text = (visual < 0)[..., None]
        index = visual.clamp(min=0)[..., None, None].expand(-1, -1, *rows.shape[2:])
        placed = rows.gather(1, index).unbind(2)
        x = torch.where(is_text, text.embed_tokens(ids), placed[0])
        added = [row.masked_fill(is_text, 0.0) for row in placed[1:]]
        cos, sin = text.rotary_emb(x, positions)
        hidden = self.text_layers(x, added, cos[:, None], sin[:, None], None)
        return F.linear(hidden.flatten(0, 1)[last], self.model.lm_head.weight)
