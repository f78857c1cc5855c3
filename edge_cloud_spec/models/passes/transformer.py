"""The text part of the three families, as a forward pass with little overhead.

transformers' forward spends most of a small model's decode step in Python (masks, hooks, output
records, one rotary embedding per layer and head group); a drafter takes hundreds of such steps a
second. This is the same computation on the same modules, checked against theirs by the tests.
Rows of several sessions may share one pass: matrices see all rows at once; attention is computed
session by session over its own cache, or, where caches are small, in one call over copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import CacheLayout, KeyValueCache
from .attention import PaddedAttention, Segment, attend
from .fixed_pass import FixedPasses
from .layer import Layer, PackedLinear, RmsNorm, RotaryEmbedding, can_pack, is_plain
from .node_tree import NodeTree

PASSES = ("free", "fixed")  # fixed: the same bits for a row whoever else is in its pass

OnLayer = Callable[[int, Tensor], None]  # (layer index, hidden [rows, hidden_size])


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

    def __init__(
        self,
        language_model: Any,
        lm_head: nn.Module,
        quantize: str = "none",
        passes: str = "free",
    ) -> None:
        """passes: one of ``PASSES``. UserError: fixed ones cannot be had of this model here."""
        fixed = passes == "fixed"
        config = language_model.config
        first = language_model.layers[0].self_attn
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = first.head_dim
        self._embedding: Tensor = language_model.embed_tokens.weight
        self.device: torch.device = self._embedding.device
        self.dtype: torch.dtype = self._embedding.dtype
        self.norm = RmsNorm.of(language_model.norm, fixed)
        self.lm_head = lm_head
        self._cropped: tuple[int, nn.Module] | None = None
        self._layers: list[Layer] = []
        for index, layer in enumerate(language_model.layers):
            sizes = self.heads, self.kv_heads, self.head_dim
            self._layers.append(Layer(layer, *sizes, quantize, fixed))
            language_model.layers[index] = nn.Identity()  # frees the parts that were joined
        self._rotary = RotaryEmbedding(language_model.rotary_emb, config, self.dtype)
        self._triangle = torch.full((64, 64), float("-inf"), device=self.device).triu(1)
        self._triangle = self._triangle.to(self.dtype)
        self._fixed: FixedPasses | None = None
        if fixed:
            self._fixed = FixedPasses(
                self._layers[0], self.embed, self._rotary, self.heads, self.kv_heads, self.dtype
            )

    def compile_layers(self, backend: str) -> None:
        """Have torch.compile make what rows compute by themselves, for each number of rows.

        backend: one of torch.compile's, such as inductor, or cudagraphs on a GPU.
        """
        for layer in self._layers:
            for name in ("project", "finish"):
                made = torch.compile(getattr(layer, name), backend=backend, dynamic=False)
                setattr(layer, name, made)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden rows."""
        return self._embedding.shape[1]

    @property
    def layer_count(self) -> int:
        """How many layers there are."""
        return len(self._layers)

    @property
    def cache_layout(self) -> CacheLayout:
        """What a row of its caches is."""
        return CacheLayout(len(self._layers), self.kv_heads, self.head_dim, self.dtype, self.device)

    def embed(self, tokens: Sequence[int] | np.ndarray) -> Tensor:
        """Input rows [n, hidden_size] of token ids [n]."""
        return F.embedding(torch.as_tensor(tokens, device=self.device), self._embedding)

    @property
    def masks_itself(self) -> bool:
        """Whether a segment needs no mask: fixed passes make their own, from the tree's parents."""
        return self._fixed is not None

    def causal_mask(self, start: int, count: int) -> Tensor | None:
        """Additive mask [count, start + count] of a chain after `start` rows; None: not needed."""
        if count == 1 or start == 0 or self.masks_itself:
            return None
        mask = torch.zeros(count, start + count, dtype=self.dtype, device=self.device)
        if count > len(self._triangle):
            self._triangle = mask.new_full((count, count), float("-inf")).triu(1)
        mask[:, start:] = self._triangle[:count, :count]
        return mask

    def segment(
        self, cache: KeyValueCache, start: int, count: int, nodes: NodeTree, new: int
    ) -> Segment:
        """`count` rows after `start`, of which the last `new` are the last of these nodes."""
        tree = None if nodes.is_chain else tuple(nodes.parents)
        if nodes.is_chain or self.masks_itself:
            mask = self.causal_mask(start, count)
        else:
            mask = torch.from_numpy(nodes.mask(count, start, new)).to(self.device, self.dtype)
        return Segment(cache, start, count, mask, tree)

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
        count = hidden.shape[0]
        fixed = None if self._fixed is None else self._fixed.begin(segments)
        padded: PaddedAttention | None = None
        if fixed is not None:
            hidden, cos, sin = fixed.pad(hidden), fixed.pad(cos), fixed.pad(sin)
        elif PaddedAttention.pays(segments, self.cache_layout):
            padded = PaddedAttention(segments, self.cache_layout, self.heads)
        for index, layer in enumerate(self._layers):
            if fixed is None:
                qk, values = layer.project(hidden, cos, sin)
                if padded is not None:
                    attended = padded.attend(index, qk, values)
                else:
                    attended = self._attend(index, qk, values, segments)
                hidden = layer.finish(hidden, attended)
            else:
                hidden = fixed.pass_layer(index, layer, hidden, cos, sin)
            if index < len(features) and deepstack is not None:
                hidden = hidden.index_add(0, deepstack.rows, features[index].to(hidden.dtype))
            if on_layer is not None:
                on_layer(index, hidden[:count])
        if padded is not None:
            padded.keep()
        return hidden[:count]

    def _attend(
        self, index: int, qk: Tensor, values: Tensor, segments: Sequence[Segment]
    ) -> Tensor:
        if len(segments) == 1:
            return attend(index, qk, values, segments[0], self.heads)
        counts = [segment.count for segment in segments]
        parts = zip(torch.split(qk, counts), torch.split(values, counts), segments, strict=True)
        return torch.cat([attend(index, *part, self.heads) for part in parts])

    def logits(self, hidden: Tensor, vocabulary: int) -> Tensor:
        """float32 [n, vocabulary] of hidden rows (of the last layer, or of an exit)."""
        if self._cropped is None or self._cropped[0] != vocabulary:
            self._cropped = (vocabulary, self._crop(vocabulary))
            if self._fixed is not None:
                self._fixed.measure_head(self._cropped[1], self._head)
        if self._fixed is not None:
            return self._fixed.head(self._head, hidden)[:, :vocabulary].float()
        return self._head(hidden)[:, :vocabulary].float()

    def _head(self, hidden: Tensor) -> Tensor:
        assert self._cropped is not None
        rows: Tensor = self._cropped[1](self.norm(hidden))
        return rows

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
