"""The text model of ``FAMILIES``, as a forward pass with little overhead.

transformers' forward spends most of a small model's decode step in Python (masks, hooks, output
records, a rotary embedding per layer and head group); a drafter takes hundreds of such steps a
second. This is the same computation on the same modules; tests compare the two. Several sessions
may share one pass: matrices see the rows of all; attention runs per session over its own cache or,
if that pays, in one call over copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...decoding.token_tree import TokenTree
from ...errors import UserError
from ..cache import CacheLayout
from .attention import OnLayer, PaddedAttention, PassItem, aligned, attend, causal
from .delta_layer import DeltaLayer, recurrent_layout
from .layer import (
    AttentionLayer,
    PackedLinear,
    RmsNorm,
    RotaryEmbedding,
    can_pack,
    is_gated,
    is_plain,
    linear_of,
)


@dataclass(frozen=True, eq=False)
class Deepstack:
    """Visual features that Qwen3-VL adds after its first layers: one [m, E] per layer, at `rows`
    [m]."""

    rows: Tensor
    features: Sequence[Tensor]


class Transformer:
    """embed -> layers -> logits. Hidden rows are [n, hidden_size] without a batch axis.

    It takes over the layers of the language model that it is made from, whose own forward then no
    longer works: the weights are fused and stored in another layout.
    """

    def __init__(self, language_model: Any, lm_head: nn.Module, quantize: str = "none") -> None:
        config = language_model.config
        rotary, heads = language_model.rotary_emb, config.num_attention_heads
        layers = language_model.layers
        attentions = [layer.self_attn for layer in layers if hasattr(layer, "self_attn")]
        lacking = {*(getattr(config, "layer_types", None) or ())}
        if not lacking and getattr(config, "sliding_window", None):
            lacking = {"sliding_window"}
        lacking -= {"full_attention", "linear_attention"}
        rotated = 2 * len(rotary.inv_freq)
        if any(rotated != each.head_dim and not is_gated(each, heads) for each in attentions):
            lacking.add("rotary positions of a part of each head")
        if not attentions:
            lacking.add("no attention at all")
        mixers = (
            each.linear_attn for each in language_model.layers if hasattr(each, "linear_attn")
        )
        if any(mixer.activation not in ("silu", "swish") for mixer in mixers):
            lacking.add(f"{config.hidden_act} in Gated DeltaNet")
        if lacking := lacking | {"dynamic", "longrope"} & {rotary.rope_type}:
            raise UserError(
                f"the model asks for {', '.join(lacking)}, which is not implemented: set "
                "sliding_window to null in its config.json, or leave out the type of "
                "rope_scaling, if your prompts are shorter than where they begin"
            )
        self.heads: int = heads
        like = next(index for index, each in enumerate(layers) if hasattr(each, "self_attn"))
        kind: Callable[..., Any] = type(layers[like])
        # Makes a layer of transformers such as its layers with attention.
        self.attention_like: Callable[[], Any] = partial(kind, config, like)
        sizes = heads, config.num_key_value_heads, attentions[0].head_dim
        self._embedding: Tensor = language_model.embed_tokens.weight
        self.hidden_size: int = self._embedding.shape[1]
        self.device: torch.device = self._embedding.device
        self.dtype: torch.dtype = self._embedding.dtype
        self.norm = RmsNorm.of(language_model.norm)
        self.lm_head = lm_head
        self._cropped: tuple[int, nn.Module] | None = None
        self.layers: list[AttentionLayer | DeltaLayer] = []
        recurrent = recurrent_layout(layers, self.device)
        place, delta_place = count(), count()  # of the layers of either kind
        for index, layer in enumerate(layers):
            if hasattr(layer, "self_attn"):
                self.layers.append(AttentionLayer(layer, next(place), *sizes, quantize))
            else:
                self.layers.append(DeltaLayer(layer, next(delta_place), quantize))
            layers[index] = nn.Identity()  # frees the weights that were fused
        shape = len(attentions), *sizes[1:], self.dtype, self.device
        self.cache_layout = CacheLayout(*shape, recurrent)
        self.rotary = RotaryEmbedding(rotary, config, self.dtype)

    def embed(self, tokens: Sequence[int] | np.ndarray) -> Tensor:
        """Embeddings [n, hidden_size] of token ids [n]."""
        return F.embedding(torch.as_tensor(tokens, device=self.device), self._embedding)

    def mask(self, start: int, count: int, nodes: TokenTree, new: int) -> Tensor | None:
        """Attention mask [group * count, start + count] of `count` tokens after `start`, for each
        query head of a key head; the last `new` of the tokens are the last of ``nodes``.

        None: plain causal attention.
        """
        if nodes.parents is not None:
            mask = torch.from_numpy(nodes.mask(count, start, new)).to(self.device, self.dtype)
        elif count == 1 or start == 0:
            return None
        else:
            places = torch.arange(start, start + count, device=self.device)
            mask = causal(places, start + count, self.dtype)
        group = self.heads // self.cache_layout.heads
        heads = aligned((group, *mask.shape), 0, self.dtype, self.device)
        return heads.copy_(mask).flatten(0, 1)

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor | Sequence[int],
        items: Sequence[PassItem],
        deepstack: Deepstack | None = None,
        on_layer: OnLayer | None = None,
    ) -> Tensor:
        """Hidden rows [n, E] after the last layer, before the final norm.

        positions: int64 [3, n] (time, height, width), or one text position per token. on_layer:
        called after each layer, while the pass continues.
        """
        cos, sin = self.rotary(positions)  # [n, 1, head_dim] each
        features = deepstack.features if deepstack is not None else ()
        padded: PaddedAttention | None = None
        if PaddedAttention.pays(items, self.cache_layout):
            with suppress(torch.cuda.OutOfMemoryError):  # then each session has calls of its own
                padded = PaddedAttention(items, self.cache_layout, self.heads)
        attention = partial(self._attend, items) if padded is None else padded.attend
        for item in items if self.cache_layout.recurrent is not None else ():
            assert item.cache.recurrent is not None
            item.cache.recurrent.begin(item.start, item.count, item.nodes, item.new)
        for index, layer in enumerate(self.layers):
            if isinstance(layer, DeltaLayer):
                hidden = layer(hidden, items)  # [n, hidden_size]
            else:
                hidden = layer(hidden, cos, sin, attention)
            if index < len(features) and deepstack is not None:
                hidden = hidden.index_add(0, deepstack.rows, features[index].to(hidden.dtype))
            if on_layer is not None:
                on_layer(index, hidden)
        if padded is not None:
            padded.keep()
        if self.cache_layout.hidden:
            for item, rows in zip(
                items, torch.split(hidden, [one.count for one in items]), strict=True
            ):
                item.cache.hidden[item.start : item.start + item.count] = rows
        return hidden

    def _attend(self, items: Sequence[PassItem], index: int, qk: Tensor, values: Tensor) -> Tensor:
        counts = [item.count for item in items]
        parts = zip(torch.split(qk, counts), torch.split(values, counts), items, strict=True)
        each = [attend(index, *part, self.heads) for part in parts]
        return each[0] if len(each) == 1 else torch.cat(each)

    def logits(self, hidden: Tensor, vocabulary: int) -> Tensor:
        """Logits float32 [n, vocabulary] of hidden rows [n, E], after the last layer or at an
        exit."""
        return self.unembed(self.norm(hidden), vocabulary)

    def unembed(self, normed: Tensor, vocabulary: int) -> Tensor:
        """Logits float32 [n, vocabulary] of rows [n, E] after a final norm, this or another."""
        if self._cropped is None or self._cropped[0] != vocabulary:
            self._cropped = (vocabulary, self._crop(vocabulary))
        rows: Tensor = self._cropped[1](normed)
        return rows[:, :vocabulary].float()

    def _crop(self, vocabulary: int) -> nn.Module:
        """The LM head cropped to the common vocabulary."""
        head = self.lm_head
        if not is_plain(head):
            return head
        if can_pack(head):
            return PackedLinear(head, vocabulary)
        return linear_of(head.weight.data[:vocabulary])
