"""The text part of the three families, as a forward pass with little overhead.

transformers' forward spends most of a small model's decode step in Python (masks, hooks, output
records, one rotary embedding per layer and head group); a drafter takes hundreds of such steps a
second. This is the same computation on the same modules, checked against theirs by the tests.
Rows of several sessions may share one pass: matrices see all rows at once, attention is computed
session by session over its own cache, so nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import KeyValueCache
from .linear import PackedLinear, RmsNorm, can_pack, is_plain, join, pack_linears
from .quantize import quantize_linears
from .rotary import RotaryEmbedding

OnLayer = Callable[[int, Tensor], None]  # (layer index, hidden [rows, hidden_size])


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` rows of one session in a pass; they are written to `cache` from row `start` on.

    mask: additive float [count, start + count], or None: causal from row 0, or a single row.
    """

    cache: KeyValueCache
    start: int
    count: int
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Deepstack:
    """Visual features that Qwen3-VL adds after its first layers: `rows` [m], one [m, E] a layer."""

    rows: Tensor
    features: Sequence[Tensor]


class Transformer:
    """embed -> layers -> logits. Hidden rows are [n, hidden_size] without a batch axis.

    It takes over the layers of the language model it is made from, whose own forward then no longer
    works: the weights are joined, laid out anew and held once.
    """

    def __init__(self, language_model: Any, lm_head: nn.Module, quantize: str = "none") -> None:
        config = language_model.config
        first = language_model.layers[0].self_attn
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = first.head_dim
        self._embedding: Tensor = language_model.embed_tokens.weight
        self.device: torch.device = self._embedding.device
        self.dtype: torch.dtype = self._embedding.dtype
        self.norm = RmsNorm.of(language_model.norm)
        self.lm_head = lm_head
        self._cropped: tuple[int, nn.Module] | None = None
        self._layers: list[_Layer] = []
        for index, layer in enumerate(language_model.layers):
            self._layers.append(_Layer(layer, self, quantize))
            language_model.layers[index] = nn.Identity()  # frees the parts that were joined
        self._rotary = RotaryEmbedding(language_model.rotary_emb, config, self.dtype)
        self._triangle = torch.full((64, 64), float("-inf"), device=self.device).triu(1)
        self._triangle = self._triangle.to(self.dtype)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden rows."""
        return self._embedding.shape[1]

    @property
    def layer_count(self) -> int:
        """How many layers there are."""
        return len(self._layers)

    def new_cache(self, rows: int) -> KeyValueCache:
        """An empty cache with room for ``rows`` rows, which ``reserve`` extends."""
        return KeyValueCache(
            len(self._layers), self.kv_heads, self.head_dim, rows, self.dtype, self.device
        )

    def embed(self, tokens: Sequence[int] | np.ndarray) -> Tensor:
        """Input rows [n, hidden_size] of token ids [n]."""
        return F.embedding(torch.as_tensor(tokens, device=self.device), self._embedding)

    def causal_mask(self, start: int, count: int) -> Tensor | None:
        """Additive mask [count, start + count] of a chain after `start` rows; None: not needed."""
        if count == 1 or start == 0:
            return None
        mask = torch.zeros(count, start + count, dtype=self.dtype, device=self.device)
        if count > len(self._triangle):
            self._triangle = mask.new_full((count, count), float("-inf")).triu(1)
        mask[:, start:] = self._triangle[:count, :count]
        return mask

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor | Sequence[int],
        segments: Sequence[Segment],
        deepstack: Deepstack | None = None,
        on_layer: OnLayer | None = None,
    ) -> Tensor:
        """Hidden rows [n, E] after the last layer, before the final norm.

        positions: int64 [3, n] (time, height, width) or one text position per row.
        on_layer: called after each layer, while the pass is under way.
        """
        cos, sin = self._rotary(positions)
        features = deepstack.features if deepstack is not None else ()
        for index, layer in enumerate(self._layers):
            hidden = layer(index, hidden, cos, sin, segments)
            if index < len(features) and deepstack is not None:
                hidden = hidden.index_add(0, deepstack.rows, features[index].to(hidden.dtype))
            if on_layer is not None:
                on_layer(index, hidden)
        return hidden

    def logits(self, hidden: Tensor, vocabulary: int) -> Tensor:
        """float32 [n, vocabulary] of hidden rows (of the last layer, or of an exit)."""
        if self._cropped is None or self._cropped[0] != vocabulary:
            self._cropped = (vocabulary, self._crop(vocabulary))
        rows: Tensor = self._cropped[1](self.norm(hidden))
        return rows[:, :vocabulary].float()

    def _crop(self, vocabulary: int) -> nn.Module:
        """The head with the rows of the common vocabulary only."""
        head = self.lm_head
        if not isinstance(head, nn.Linear) or not is_plain(head):
            return head
        if can_pack(head):
            return PackedLinear(head, vocabulary)
        cropped = nn.Linear(1, 1, bias=False)
        cropped.weight = nn.Parameter(head.weight.data[:vocabulary], requires_grad=False)
        return cropped


class _Layer:
    """One transformer block; Qwen3's norm of queries and keys where the block has one."""

    def __init__(self, layer: Any, transformer: Transformer, quantize: str) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._heads, self._kv_heads = transformer.heads, transformer.kv_heads
        self._dim = transformer.head_dim
        self._norm_in = RmsNorm.of(layer.input_layernorm)
        self._norm_mid = RmsNorm.of(layer.post_attention_layernorm)
        self._norm_qk: RmsNorm | None = None
        if hasattr(attention, "q_norm"):
            query = attention.q_norm.weight.data.expand(self._heads, -1)
            key = attention.k_norm.weight.data.expand(self._kv_heads, -1)
            self._norm_qk = RmsNorm(torch.cat([query, key]), attention.q_norm.variance_epsilon)
        products = nn.ModuleDict(
            {
                "qkv": join([attention.q_proj, attention.k_proj, attention.v_proj]),
                "out": attention.o_proj,
                "gate_up": join([mlp.gate_proj, mlp.up_proj]),
                "down": mlp.down_proj,
            }
        )
        quantize_linears(products, quantize)
        pack_linears(products)
        self._qkv, self._out = products["qkv"], products["out"]
        self._gate_up, self._down = products["gate_up"], products["down"]
        self._activation = mlp.act_fn

    def __call__(
        self, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, segments: Sequence[Segment]
    ) -> Tensor:
        rows, split = hidden.shape[0], self._heads + self._kv_heads
        qkv = self._qkv(self._norm_in(hidden)).view(rows, -1, self._dim)
        qk = qkv[:, :split]  # [n, heads + kv_heads, dim]
        if self._norm_qk is not None:
            qk = self._norm_qk(qk)
        qk = torch.addcmul(qk * cos, qk.roll(self._dim // 2, -1), sin)
        if len(segments) == 1:
            attended = self._attend(index, qk, qkv, segments[0])
        else:
            counts = [segment.count for segment in segments]
            parts = zip(torch.split(qk, counts), torch.split(qkv, counts), segments, strict=True)
            attended = torch.cat([self._attend(index, *part) for part in parts])
        hidden = torch.add(hidden, self._out(attended))
        gate, up = self._gate_up(self._norm_mid(hidden)).chunk(2, -1)
        return torch.add(hidden, self._down(self._activation(gate) * up))

    def _attend(self, index: int, qk: Tensor, qkv: Tensor, segment: Segment) -> Tensor:
        """[n, heads * dim]. The query heads of one key head are folded into the query rows, so
        that keys are not repeated."""
        count, heads, kv_heads = segment.count, self._heads, self._kv_heads
        end = segment.start + count
        keys = segment.cache.keys[index].narrow(1, 0, end)
        values = segment.cache.values[index].narrow(1, 0, end)
        keys.narrow(1, segment.start, count).copy_(qk[:, heads:].transpose(0, 1))
        values.narrow(1, segment.start, count).copy_(qkv[:, heads + kv_heads :].transpose(0, 1))
        keys, values = keys.unsqueeze(0), values.unsqueeze(0)
        query = qk[:, :heads]
        if count == 1:
            folded = query.view(1, kv_heads, heads // kv_heads, self._dim)
            return F.scaled_dot_product_attention(
                folded, keys, values, attn_mask=segment.mask
            ).view(1, -1)
        whole = query.transpose(0, 1).unsqueeze(0)  # [1, heads, n, dim]
        if segment.mask is None:
            out = F.scaled_dot_product_attention(
                whole, keys, values, is_causal=True, enable_gqa=heads != kv_heads
            )
            return out[0].transpose(0, 1).reshape(count, -1)
        group = heads // kv_heads
        folded = whole.reshape(1, kv_heads, group * count, self._dim)
        mask = segment.mask.expand(group, count, end).reshape(group * count, end)
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        return out.view(heads, count, self._dim).transpose(0, 1).reshape(count, -1)
