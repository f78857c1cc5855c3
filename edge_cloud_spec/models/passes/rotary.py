"""Multimodal rotary position embedding of the three families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TABLE = 2048  # positions


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
        self._places = torch.arange(half, device=self._frequency.device)
        self._cos = self._sin = torch.empty(0, half, dtype=dtype, device=self._frequency.device)
        self._reach(TABLE - 1)

    def _reach(self, top: int) -> None:
        """Let the tables reach this position; they grow by equal parts, whose numbers are always
        the same (cos of the end of a vector may differ in its last bit)."""
        while top >= len(self._cos):
            first = len(self._cos)
            positions = torch.arange(first, first + TABLE, device=self._axis.device)
            angle = positions[:, None].float() * self._frequency  # [TABLE, dim / 2]
            cos, sin = angle.cos() * self._scaling, angle.sin() * self._scaling
            self._cos = torch.cat([self._cos, cos.to(self._dtype)])
            self._sin = torch.cat([self._sin, sin.to(self._dtype)])
            self._text = _folded(self._cos, self._sin)

    def __call__(self, positions: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """[n, 1, dim] each, of int64 [3, n] (time, height, width) or one text position per row."""
        if isinstance(positions, Tensor):
            self._reach(int(positions.max()))
            rows = positions.to(self._axis.device)[self._axis].T  # [n, dim / 2]
            return _folded(self._cos[rows, self._places], self._sin[rows, self._places])
        first, count, top = positions[0], len(positions), max(positions)
        self._reach(top)
        cos, sin = self._text
        if top - first + 1 == count and list(positions) == list(range(first, top + 1)):
            return cos.narrow(0, first, count), sin.narrow(0, first, count)
        index = torch.tensor(positions, device=self._axis.device)
        return cos.index_select(0, index), sin.index_select(0, index)


def _folded(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 1, dim] each, of [n, dim / 2]: rotate_half(x) * sin == roll(x, dim / 2) * (-sin, sin)."""
    return torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]
