"""Attention that gives a query the same bits whoever shares its pass, its call and its tree.

A query at row p of its cache attends over the first W(p) rows, p + 1 rounded up to whole windows,
masked after p: so the number of keys depends on its own place only. A node of a tree sees its path
as a chain: the path's keys and values stand in order after the prefix while it attends. The number
of queries of a call is one of those that were measured to give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.cache import STEP
from .attention import causal, fold_mask, folded_attention
from .fixed_shapes import RowCounts, common, equal_counts, pad_rows
from .segment import Segment

WINDOW = STEP  # rows; the capacity of a cache is a multiple of it
QUERY_COUNTS = (*range(1, 9), *range(10, 17, 2), 20, 24, 32, 48, 64)


@dataclass(frozen=True, eq=False)
class _Queries:
    """Queries of one call: rows of the segment, then as many padding rows as make ``padded``."""

    rows: slice | Tensor
    padded: int
    window: int
    mask: Tensor  # folded, [group * padded, window]


@dataclass(frozen=True, eq=False)
class _Path:
    """Nodes [m], in order, that stand after the prefix while these queries attend; None: a chain,
    all rows are in their places."""

    nodes: Tensor | None
    calls: list[_Queries]


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """What a segment's attention does, the same in each layer."""

    segment: Segment
    base: int  # the row of the first node
    paths: list[_Path]


class FixedAttention:
    """Attention with ``heads`` query heads over ``kv_heads`` key heads of ``dim`` numbers."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._heads, self._kv_heads, self._dim = heads, kv_heads, dim
        self._dtype, self._device = dtype, device
        self._counts: dict[int, RowCounts] = {}  # by window
        self._masks: dict[int, Tensor] = {}  # by window

    def plan(self, segment: Segment) -> AttentionPlan:
        """To be made before a pass and used in all its layers."""
        start, end = segment.start, segment.start + segment.count
        window = _window(end - 1)
        if end < window:  # masked there, but 0 * nan is nan
            segment.cache.clear(end, window)
        if segment.parents is None:
            calls = self._calls(range(segment.count), start)
            return AttentionPlan(segment, start, [_Path(None, calls)])
        base = end - len(segment.parents)
        tail, before = max(base - start, 0), max(start - base, 0)
        paths: list[_Path] = []
        for path, new in paths_of(segment.parents, before):
            rows = [tail + node - before for node in path[-new:]]
            first = base + len(path) - new
            if not paths and tail:  # the prefix's last tokens attend together with the first path
                rows, first = [*range(tail), *rows], start
            nodes = torch.tensor(path, device=self._device)
            paths.append(_Path(nodes, self._calls(rows, first)))
        return AttentionPlan(segment, base, paths)

    def attend(self, index: int, qk: Tensor, values: Tensor, plan: AttentionPlan) -> Tensor:
        """As ``attention.attend``."""
        segment, base, heads = plan.segment, plan.base, self._heads
        start, count = segment.start, segment.count
        end = start + count
        keys_there, values_there = segment.cache.keys[index], segment.cache.values[index]
        keys_there.narrow(1, start, count).copy_(qk[:, heads:].transpose(0, 1))
        values_there.narrow(1, start, count).copy_(values.transpose(0, 1))
        if plan.paths[0].nodes is None and len(plan.paths[0].calls) == 1:  # most passes
            call = plan.paths[0].calls[0]
            return self._run(call, qk[:, :heads], keys_there, values_there)[:count]
        out = qk.new_empty(count, heads * self._dim)
        nodes = None
        for path in plan.paths:
            if path.nodes is not None:
                if nodes is None:
                    nodes = keys_there[:, base:end].clone(), values_there[:, base:end].clone()
                above = base + len(path.nodes)
                keys_there[:, base:above] = nodes[0].index_select(1, path.nodes)
                values_there[:, base:above] = nodes[1].index_select(1, path.nodes)
            for call in path.calls:
                query = qk[call.rows, :heads]
                attended = self._run(call, query, keys_there, values_there)
                out[call.rows] = attended[: query.shape[0]]
        if nodes is not None:
            keys_there[:, base:end], values_there[:, base:end] = nodes
        return out

    def _run(self, call: _Queries, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[padded, heads * dim] of query [n, heads, dim]."""
        return folded_attention(
            pad_rows(query, call.padded),
            keys.narrow(1, 0, call.window).unsqueeze(0),
            values.narrow(1, 0, call.window).unsqueeze(0),
            call.mask,
        )

    def _calls(self, rows: Sequence[int], first: int) -> list[_Queries]:
        """Calls for queries at the positions ``first``, first + 1, ..."""
        calls, done = [], 0
        while done < len(rows):
            window = _window(first + done)
            counts = self.counts(window)
            count = min(len(rows) - done, window - first - done, counts.allowed[-1])
            padded = counts.padded(count)
            mask = self._mask(window).narrow(0, first + done - (window - WINDOW), padded)
            some = rows[done : done + count]
            where: slice | Tensor = slice(some[0], some[-1] + 1)
            if some[-1] - some[0] != count - 1:
                where = torch.tensor(some, device=self._device)
            folded = fold_mask(mask, self._heads // self._kv_heads)
            calls.append(_Queries(where, padded, window, folded))
            done += count
        return calls

    def _mask(self, window: int) -> Tensor:
        """Additive [WINDOW + most queries, window]: of the positions of which it is the window, and
        of rows that are padding."""
        if window not in self._masks:
            positions = torch.arange(WINDOW + max(QUERY_COUNTS)) + window - WINDOW
            self._masks[window] = causal(positions.to(self._device), window, self._dtype)
        return self._masks[window]

    def counts(self, window: int) -> RowCounts:
        """The numbers of queries that give the same bits over so many keys; UserError: none do."""
        if window not in self._counts:
            measured = [self._measure(window, cancelling) for cancelling in (False, True)]
            self._counts[window] = common(measured, "attention")
        return self._counts[window]

    def _measure(self, window: int, cancelling: bool) -> frozenset[int]:
        """``cancelling``: scores and sums are what rounding leaves of them, as ``linear_counts``
        has it."""
        generator = torch.Generator().manual_seed(window)

        def draw(count: int, heads: int, sign: int) -> Tensor:
            half = torch.randn(heads, count, self._dim // 2, generator=generator)
            whole = torch.cat([half, sign * half], -1) if cancelling else half.repeat(1, 1, 2)
            return (whole * (1000 if cancelling else 1)).to(self._device, self._dtype)

        query = draw(4 * max(QUERY_COUNTS), self._heads, -1).transpose(0, 1)
        key, value = draw(window, self._kv_heads, 1), draw(window, self._kv_heads, 1)
        if cancelling:
            order = torch.randperm(window, generator=generator).to(self._device)
            value = torch.cat([value[:, ::2], -value[:, ::2]], 1)[:, order].contiguous()
        places = torch.randint(window // 2, window, (len(query),), generator=generator)
        places = places.to(self._device)

        def run(which: Tensor) -> Tensor:
            mask = causal(places[which], window, self._dtype)
            folded = fold_mask(mask, self._heads // self._kv_heads)
            return folded_attention(query[which], key[None], value[None], folded)

        return equal_counts(run, torch.arange(len(query), device=self._device), QUERY_COUNTS)


def _window(position: int) -> int:
    return (position // WINDOW + 1) * WINDOW


def paths_of(parents: Sequence[int], before: int) -> list[tuple[list[int], int]]:
    """Paths of a tree that together hold its nodes from ``before`` on, and of how many nodes at
    its end each is the first such path."""
    leaves = sorted(set(range(len(parents))) - set(parents))
    done = set(range(before))
    paths: list[tuple[list[int], int]] = []
    for leaf in leaves:
        node = leaf
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        new = len(set(path) - done)
        if new:
            paths.append((path, new))
        done.update(path)
    return paths
