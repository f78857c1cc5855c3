"""Passes in which a row's bits depend on its own prefix only (``passes: fixed``).

Neither the other sessions of the pass, nor the number and shape of the drafted nodes, nor how the
prompt was cut into steps changes them; verdicts do not either, then. This holds on one machine and
with one number of threads.

Which numbers of rows give a row the same bits is measured, not assumed: the kernels that a library
chooses, and so the order in which they add, depend on the shape of what they are given. Thinking
Machines' "Defeating nondeterminism in LLM inference" (2025) and LLM-42 (2601.17768) fix the shapes;
here a few are compared, so that few rows cost little.

A query at row p of its cache attends over the first W(p) rows, p + 1 rounded up to whole windows,
masked after p: so the number of keys depends on its own place only. A node of a tree sees its path
as a chain: the path's keys and values stand in order after the prefix while it attends. The number
of queries of a call is one of those that were measured to give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from ..cache import STEP
from .attention import Attend, Segment, causal, fold_mask, folded_attention
from .layer import Layer, PackedLinear, RotaryEmbedding, is_plain, linear_of

REFERENCE = 16  # rows; other numbers are compared with it
ROW_COUNTS = (*range(1, 9), *range(10, 17, 2), *range(20, 65, 4), 80, 96, 128)
SAMPLE = 2 * max(ROW_COUNTS)  # rows that are compared

RowFunction = Callable[..., Any]  # of tensors [n, ...] one or several, each row of its own rows


@dataclass(frozen=True)
class RowCounts:
    """Numbers of rows that give the same bits, in ascending order."""

    allowed: tuple[int, ...]

    def blocks(self, count: int) -> list[int]:
        """The sizes of the blocks that ``count`` rows take; none for none."""
        whole, rest = divmod(count, self.allowed[-1])
        last = [next(size for size in self.allowed if size >= rest)] if rest else []
        return [self.allowed[-1]] * whole + last

    def padded(self, count: int) -> int:
        """The rows of these blocks."""
        return sum(self.blocks(count))

    def apply(self, run: RowFunction, *rows: Tensor) -> Any:
        """``run`` over any number of rows, in blocks of allowed sizes; as many rows as these have,
        or padded ones after them."""
        sizes = self.blocks(len(rows[0]))
        padded = [pad_rows(each, sum(sizes)) for each in rows]
        if len(sizes) == 1:
            return run(*padded)
        blocks = zip(*(torch.split(each, sizes) for each in padded), strict=True)
        results = [run(*block) for block in blocks]
        if isinstance(results[0], Tensor):
            return torch.cat(results)
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))


def pad_rows(rows: Tensor, count: int) -> Tensor:
    """Rows of zeros added, until there are ``count``."""
    missing = count - rows.shape[0]
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def equal_counts(
    run: RowFunction, rows: Tensor, candidates: Iterable[int] = ROW_COUNTS
) -> frozenset[int]:
    """The candidates in whose blocks each of these rows has the bits of blocks of ``REFERENCE``.

    Empty where its place in a block, or its company, changes a row.
    """
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).to(rows.device)

    def in_blocks(size: int, of: Tensor) -> Tensor:
        return torch.cat([run(part) for part in torch.split(of, size) if len(part) == size])

    expected = in_blocks(REFERENCE, rows)
    if not torch.equal(in_blocks(REFERENCE, rows[order]), expected[order[: len(expected)]]):
        return frozenset()

    def is_equal(size: int) -> bool:
        some = order[: max(2 * size, 3 * REFERENCE)]
        ours = in_blocks(size, rows[some])
        return torch.equal(ours, expected[some[: len(ours)]])

    return frozenset(size for size in candidates if is_equal(size))


def common(measured: Sequence[frozenset[int]], what: str) -> RowCounts:
    """The numbers that are in all of these; UserError: there are none."""
    allowed = frozenset.intersection(*measured)
    if not allowed:
        raise UserError(
            f"passes fixed: on this machine the {what} of this model give a row other bits beside "
            "other rows: choose another dtype, weights that are not quantized, or --threads 1"
        )
    return RowCounts(tuple(sorted(allowed)))


def linear_counts(linear: nn.Module) -> frozenset[int]:
    """``equal_counts`` of a product of this layer's kind and shape.

    Weights and rows are such that the terms of each sum cancel: what is left is the rounding of the
    additions, so that another order shows in bfloat16 too. UserError: the layer is quantized.
    """
    if not isinstance(linear, PackedLinear) and not is_plain(linear):
        raise UserError("passes fixed needs weights that are not quantized: choose quantize none")
    weight = linear.weight
    assert isinstance(weight, Tensor)
    outputs, inputs = linear.shape if isinstance(linear, PackedLinear) else weight.shape
    generator = torch.Generator().manual_seed(2)
    places = torch.randperm(2 * (inputs // 2), generator=generator)
    rows = torch.zeros(SAMPLE, inputs)
    columns = torch.zeros(outputs, inputs)
    half = torch.randn(SAMPLE, inputs // 2, generator=generator)
    rows[:, places] = torch.cat([half, -half], 1)
    columns[:, places] = torch.randn(outputs, inputs // 2, generator=generator).repeat(1, 2)
    plain = linear_of(columns.to(weight.device, weight.dtype))
    product = PackedLinear(plain) if isinstance(linear, PackedLinear) else plain
    return equal_counts(product, rows.to(weight.device, weight.dtype))


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
            segment.cache.rows(end, window).zero_()
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
        """Attention over the cache (``attention.attend``), with fixed shapes."""
        segment, base, heads = plan.segment, plan.base, self._heads
        end = segment.start + segment.count
        there = segment.cache.keys[index], segment.cache.values[index]
        for rows, new in zip(there, (qk[:, heads:], values), strict=True):
            rows.narrow(1, segment.start, segment.count).copy_(new.transpose(0, 1))
        out = qk.new_empty(segment.count, heads * self._dim)
        is_chain = plan.paths[0].nodes is None
        nodes = () if is_chain else tuple(rows[:, base:end].clone() for rows in there)
        for path in plan.paths:
            for rows, own in zip(there, nodes, strict=False):
                assert path.nodes is not None
                ordered = own.index_select(1, path.nodes)
                rows[:, base : base + ordered.shape[1]] = ordered
            for call in path.calls:
                query = qk[call.rows, :heads]
                out[call.rows] = self._run(call, query, *there)[: query.shape[0]]
        for rows, own in zip(there, nodes, strict=False):
            rows[:, base:end] = own
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


class FixedPasses:
    """The numbers of rows that one model's passes may have; its layers have one shape."""

    def __init__(
        self,
        layer: Layer,
        embed: Callable[[Sequence[int]], Tensor],
        rotary: RotaryEmbedding,
        heads: int,
        kv_heads: int,
        dim: int,
    ) -> None:
        """layer: the first. UserError: its rows influence each other on this machine."""
        hidden = embed([0])
        device, dtype, width = hidden.device, hidden.dtype, hidden.shape[1]
        rows = torch.randn(SAMPLE, width, generator=torch.Generator().manual_seed(3))
        rows = rows.to(device, dtype)
        cos, sin = rotary([1000] * SAMPLE)
        attended = torch.empty(SAMPLE, heads * dim, dtype=dtype)
        attended.uniform_(-1, 1, generator=torch.Generator().manual_seed(4))
        attended = attended.to(device)

        def project(which: Tensor) -> Tensor:
            some = slice(0, len(which))
            return torch.cat(layer.project(rows[which], cos[some], sin[some]), 1)

        def finish(which: Tensor) -> Tensor:
            return layer.finish(rows[which], attended[which])

        with torch.inference_mode():
            every = torch.arange(SAMPLE, device=device)
            measured = [equal_counts(project, every), equal_counts(finish, every)]
            measured += [linear_counts(product) for product in layer.products]
        self.rows = self.head_rows = common(measured, "layers")
        self._attention = FixedAttention(heads, kv_heads, dim, dtype, device)
        self._width = width

    def measure_head(self, linear: nn.Module, head: RowFunction) -> None:
        """To be called before another head is used, which takes hidden rows [n, E]."""
        generator = torch.Generator().manual_seed(5)
        weight = linear.weight
        assert isinstance(weight, Tensor)
        rows = torch.randn(SAMPLE, self._width, generator=generator).to(weight.device, weight.dtype)
        with torch.inference_mode():
            self.head_rows = common([equal_counts(head, rows), linear_counts(linear)], "logits")

    def attention(self, segments: Sequence[Segment]) -> Attend:
        """What attention does in each layer of one pass over the rows of these segments."""
        plans = [self._attention.plan(segment) for segment in segments]
        counts = [segment.count for segment in segments]

        def attend(index: int, qk: Tensor, values: Tensor) -> Tensor:
            own = (torch.split(rows[: sum(counts)], counts) for rows in (qk, values))
            parts = zip(*own, plans, strict=True)
            attended = [self._attention.attend(index, *part) for part in parts]
            return attended[0] if len(attended) == 1 else torch.cat(attended)

        return attend
