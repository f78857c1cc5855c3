"""Multimodal rotary position embedding of the three families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class RotaryEmbedding:
    """cos and sign-folded sin of positions, for queries and keys of one model.

    A text row has three equal positions (time, height, width), so its angles are a row of a table.
    """

    def __init__(self, rotary: Any, config: Any, dtype: torch.dtype) -> None:
        """rotary, config: of the language model, as transformers has them."""
        self._dtype = dtype
        self._frequency = rotary.inv_freq.detach().float()  # [dim / 2]
        self._scaling = float(getattr(rotary, "attention_scaling", 1.0))
        half = len(self._frequency)
        section = list(config.rope_parameters.get("mrope_section") or [half])
        axis = torch.zeros(half, dtype=torch.long)
        if "qwen3" in config.model_type:  # interleaved: t h w t h w ... then t
            for which, offset in ((1, 1), (2, 2)):
                axis[offset : section[which] * 3 : 3] = which
        else:  # one block of frequencies an axis
            ends = torch.tensor(section).cumsum(0)
            axis = (torch.arange(half)[:, None] >= ends[None, :]).sum(1).clamp(max=2)
        self._axis = axis.to(self._frequency.device)
        self._cos, self._sin = self._tables(torch.arange(2048, device=self._frequency.device))

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sign-folded sin, [n, 1, dim] each, of positions [n] or [n, dim / 2]."""
        if positions.dim() == 1:
            positions = positions[:, None]
        angle = positions.float() * self._frequency  # [n, dim / 2]
        cos, sin = angle.cos() * self._scaling, angle.sin() * self._scaling
        # rotate_half(x) * sin == roll(x, dim / 2) * (-sin, sin)
        return (
            torch.cat([cos, cos], -1)[:, None].to(self._dtype),
            torch.cat([-sin, sin], -1)[:, None].to(self._dtype),
        )

    def __call__(self, positions: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """[n, 1, dim] each, of int64 [3, n] (time, height, width) or one text position per row."""
        if isinstance(positions, Tensor):
            return self._tables(positions.to(self._axis.device)[self._axis].T)
        first, count = positions[0], len(positions)
        top = max(positions)
        if top >= len(self._cos):
            more = torch.arange(2 * top, device=self._axis.device)
            self._cos, self._sin = self._tables(more)
        if top - first + 1 == count and list(positions) == list(range(first, top + 1)):
            return self._cos.narrow(0, first, count), self._sin.narrow(0, first, count)
        index = torch.tensor(positions, device=self._axis.device)
        return self._cos.index_select(0, index), self._sin.index_select(0, index)
