"""One transformer block: what each row computes by itself, before and after attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .linear import RmsNorm, join, pack_linears
from .quantize import quantize_linears


class Layer:
    """The weights of a block, joined; Qwen3's norm of queries and keys where the block has one."""

    def __init__(
        self, layer: Any, heads: int, kv_heads: int, dim: int, quantize: str, fixed: bool
    ) -> None:
        """fixed: compute with operations that round each number alike wherever it stands."""
        attention, mlp = layer.self_attn, layer.mlp
        self._heads, self._kv_heads, self._dim, self._fixed = heads, kv_heads, dim, fixed
        self._norm_in = RmsNorm.of(layer.input_layernorm, fixed)
        self._norm_mid = RmsNorm.of(layer.post_attention_layernorm, fixed)
        self._norm_qk: RmsNorm | None = None
        if hasattr(attention, "q_norm"):
            query = attention.q_norm.weight.data.expand(heads, -1)
            key = attention.k_norm.weight.data.expand(kv_heads, -1)
            epsilon = attention.q_norm.variance_epsilon
            self._norm_qk = RmsNorm(torch.cat([query, key]), epsilon, fixed)
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

    @property
    def products(self) -> tuple[nn.Module, ...]:
        """Its linear layers."""
        return self._qkv, self._out, self._gate_up, self._down

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Of hidden rows [n, E]: rotated queries and keys [n, heads + kv_heads, dim], and values
        [n, kv_heads, dim].

        cos, sin: [n, 1, dim], see ``RotaryEmbedding``.
        """
        split = self._heads + self._kv_heads
        qkv = self._qkv(self._norm_in(hidden)).view(hidden.shape[0], -1, self._dim)
        qk, values = qkv[:, :split], qkv[:, split:]
        if self._norm_qk is not None:
            qk = self._norm_qk(qk)
        half = qk.roll(self._dim // 2, -1)
        if self._fixed:  # a rounding an operation: a fused one may differ at the end of a vector
            return torch.add(qk * cos, half * sin), values
        return torch.addcmul(qk * cos, half, sin), values

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Hidden rows [n, E] after the block, from those before it and attention's output."""
        hidden = torch.add(hidden, self._out(attended))
        gate, up = self._gate_up(self._norm_mid(hidden)).chunk(2, -1)
        return torch.add(hidden, self._down(self._activation(gate) * up))
