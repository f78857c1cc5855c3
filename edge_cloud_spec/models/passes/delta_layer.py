"""A block with Gated DeltaNet in place of attention, as Qwen3.5 has three of four."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..delta_rule import DeltaSizes
from ..recurrent import RecurrentLayout
from .attention import PassItem
from .layer import Block, RmsNorm


def recurrent_layout(layers: Sequence[Any], device: torch.device) -> RecurrentLayout | None:
    """What these layers of transformers remember besides keys and values; None: nothing."""
    mixers = [layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")]
    return RecurrentLayout(len(mixers), _sizes(mixers[0]), device) if mixers else None


def _sizes(mixer: Any) -> DeltaSizes:
    return DeltaSizes(
        mixer.num_k_heads,
        mixer.num_v_heads,
        mixer.head_k_dim,
        mixer.head_v_dim,
        mixer.conv_kernel_size,
    )


class DeltaLayer(Block):
    """Its projections see the rows of all sessions; the delta rule runs for each session over its
    own state."""

    def __init__(self, layer: Any, place: int, quantize: str) -> None:
        """place: its index among these layers."""
        mixer = layer.linear_attn
        parts = [mixer.in_proj_qkv, mixer.in_proj_z, mixer.in_proj_b, mixer.in_proj_a]
        super().__init__(layer, parts, mixer.out_proj, quantize)
        self._place, self._sizes = place, _sizes(mixer)
        self._kernel = mixer.conv1d.weight.data[:, 0].float().T.contiguous()  # [kernel, columns]
        self._rate = -mixer.A_log.data.float().exp()  # [value_heads]
        self._bias = mixer.dt_bias.data
        self._norm = RmsNorm.of(mixer.norm)

    def __call__(self, hidden: Tensor, items: Sequence[PassItem]) -> Tensor:
        """Hidden rows [n, E] after the block, of the tokens of all items."""
        sizes, counts = self._sizes, [item.count for item in items]
        columns, gate, b, a = self._in(self._norm_in(hidden)).split(
            [sizes.columns, sizes.values, sizes.value_heads, sizes.value_heads], -1
        )
        decays = self._rate * F.softplus(a.float() + self._bias)
        each = (torch.split(part, counts) for part in (columns, decays, b.sigmoid().float()))
        read = []
        for item, column, decay, strength in zip(items, *each, strict=True):
            assert item.cache.recurrent is not None
            gates = decay, strength
            read.append(item.cache.recurrent.mix(self._place, column, gates, self._kernel))
        mixed = (read[0] if len(read) == 1 else torch.cat(read)).type_as(hidden)
        mixed = self._norm(mixed.unflatten(-1, (sizes.value_heads, sizes.value_size))).flatten(1)
        return self.finish(hidden, mixed * F.silu(gate))
