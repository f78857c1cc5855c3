"""Passes in which a row's bits depend on its own prefix only (``passes: fixed``).

Neither the other sessions of the pass, nor the number and shape of the drafted nodes, nor how the
prompt was cut into steps changes them; verdicts do not either, then. This holds on one machine and
with one number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .fixed_attention import AttentionPlan, FixedAttention
from .fixed_shapes import (
    SAMPLE,
    RowCounts,
    RowFunction,
    common,
    equal_counts,
    linear_counts,
    pad_rows,
)
from .layer import Layer
from .rotary import RotaryEmbedding
from .segment import Segment


class FixedPasses:
    """The numbers of rows that one model's passes may have; its layers have one shape."""

    def __init__(
        self,
        layer: Layer,
        embed: Callable[[Sequence[int]], Tensor],
        rotary: RotaryEmbedding,
        heads: int,
        kv_heads: int,
        dtype: torch.dtype,
    ) -> None:
        """layer: the first. UserError: its rows influence each other on this machine."""
        hidden = embed([0])
        device, width = hidden.device, hidden.shape[1]
        rows = torch.randn(SAMPLE, width, generator=torch.Generator().manual_seed(3))
        rows = rows.to(device, dtype)
        cos, sin = rotary([1000] * SAMPLE)
        self._heads = heads
        with torch.inference_mode():
            qk, _ = layer.project(rows[:1], cos[:1], sin[:1])
            attended = torch.empty(SAMPLE, heads * qk.shape[2], dtype=dtype)
            attended.uniform_(-1, 1, generator=torch.Generator().manual_seed(4))
            attended = attended.to(device)

            def project(which: Tensor) -> Tensor:
                some = slice(0, len(which))
                return torch.cat(layer.project(rows[which], cos[some], sin[some]), 1)

            def finish(which: Tensor) -> Tensor:
                return layer.finish(rows[which], attended[which])

            every = torch.arange(SAMPLE, device=device)
            measured = [equal_counts(project, every), equal_counts(finish, every)]
            measured += [linear_counts(product) for product in layer.products]
        self._rows = common(measured, "layers")
        self._head_rows = self._rows
        self._attention = FixedAttention(heads, kv_heads, qk.shape[2], dtype, device)
        self._width = width

    def measure_head(self, linear: nn.Module, head: RowFunction) -> None:
        """To be called before ``head`` with another head, which takes hidden rows [n, E]."""
        generator = torch.Generator().manual_seed(5)
        weight = linear.weight
        assert isinstance(weight, Tensor)
        rows = torch.randn(SAMPLE, self._width, generator=generator).to(weight.device, weight.dtype)
        with torch.inference_mode():
            self._head_rows = common([equal_counts(head, rows), linear_counts(linear)], "logits")

    def head(self, head: RowFunction, hidden: Tensor) -> Tensor:
        """``head`` of any number of hidden rows."""
        return self._head_rows.apply(head, hidden)

    def begin(self, segments: Sequence[Segment]) -> FixedPass:
        """A pass over the rows of these segments."""
        plans = [self._attention.plan(segment) for segment in segments]
        return FixedPass(self._rows, self._attention, plans)


class FixedPass:
    """One pass: its rows, padded to blocks, and what attention does in each layer."""

    def __init__(
        self, rows: RowCounts, attention: FixedAttention, plans: Sequence[AttentionPlan]
    ) -> None:
        self._attention, self._plans = attention, plans
        self._counts = [plan.segment.count for plan in plans]
        self._padded = rows.padded(sum(self._counts))
        self._blocks = rows.blocks(self._padded)

    def pad(self, rows: Tensor) -> Tensor:
        """Rows of zeros after the pass's own."""
        return pad_rows(rows, self._padded)

    def pass_layer(
        self, index: int, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Hidden rows after the layer; all rows are padded."""
        if len(self._blocks) == 1:
            qk, values = layer.project(hidden, cos, sin)
            return layer.finish(hidden, self._attend(index, qk, values))
        parts = (torch.split(rows, self._blocks) for rows in (hidden, cos, sin))
        projected = [layer.project(*part) for part in zip(*parts, strict=True)]
        qk, values = (torch.cat(each) for each in zip(*projected, strict=True))
        attended = torch.split(self._attend(index, qk, values), self._blocks)
        blocks = zip(torch.split(hidden, self._blocks), attended, strict=True)
        return torch.cat([layer.finish(*block) for block in blocks])

    def _attend(self, index: int, qk: Tensor, values: Tensor) -> Tensor:
        total = sum(self._counts)
        parts = zip(
            torch.split(qk[:total], self._counts),
            torch.split(values[:total], self._counts),
            self._plans,
            strict=True,
        )
        attended = [self._attention.attend(index, *part) for part in parts]
        return pad_rows(attended[0] if len(attended) == 1 else torch.cat(attended), self._padded)
