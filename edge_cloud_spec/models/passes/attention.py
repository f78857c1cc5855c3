"""Attention of a session's tokens over its KV cache, and of several sessions' in one call.

With small caches, and on a GPU, launching calls per session and layer costs more than the
computation; copying the caches side by side, padded to one length, costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ...decoding.token_tree import TokenTree
from ..cache import CacheLayout, KeyValueCache
from ..kv_memory import MB

OnLayer = Callable[[int, Tensor], None]  # (layer index, hidden [rows, hidden_size])


@dataclass(frozen=True, eq=False)
class PassItem:
    """One session's n tokens in a pass; their keys and values go to rows ``start`` on of ``cache``.

    Logits are returned from token ``first_logits`` on. ``on_layer`` receives the hidden rows of the
    same tokens.
    """

    cache: KeyValueCache
    start: int
    tokens: Sequence[int]  # [n]
    # Additive [group * n, start + n], see ``aligned``, where group is the number of query heads
    # of a key head; None: causal, for a chain.
    mask: Tensor | None = None
    positions: Sequence[int] = ()  # rotary, [n]; a prompt's positions are passed separately
    first_logits: int = 0
    on_layer: OnLayer | None = None
    # Of these nodes the last ``new`` are the last tokens of the pass.
    nodes: TokenTree = field(default_factory=TokenTree)
    new: int = 0

    @property
    def count(self) -> int:
        """The number n of tokens in the pass."""
        return len(self.tokens)


def attend(index: int, qk: Tensor, values: Tensor, item: PassItem, heads: int) -> Tensor:
    """Attention's output [n, heads * dim] in layer ``index``; writes keys and values into the
    cache.

    qk: [n, heads + kv_heads, dim], values: [n, kv_heads, dim]. The query heads that share a key
    head are folded into the query rows, so that keys are not repeated.
    """
    count, end = item.count, item.start + item.count
    kv_heads, dim = values.shape[1:]
    keys_before = item.cache.keys[index].narrow(1, 0, end)
    values_before = item.cache.values[index].narrow(1, 0, end)
    keys_before.narrow(1, item.start, count).copy_(qk[:, heads:].transpose(0, 1))
    values_before.narrow(1, item.start, count).copy_(values.transpose(0, 1))
    key, value = keys_before.unsqueeze(0), values_before.unsqueeze(0)
    query, group = qk[:, :heads], heads // kv_heads
    if count == 1:
        folded = query.view(1, kv_heads, group, dim)
        out = F.scaled_dot_product_attention(folded, key, value, attn_mask=item.mask)
        return out.reshape(1, -1)
    if item.mask is None:
        whole = query.transpose(0, 1).unsqueeze(0)  # [1, heads, n, dim]
        out = F.scaled_dot_product_attention(
            whole, key, value, is_causal=True, enable_gqa=heads != kv_heads
        )
    else:
        folded = query.transpose(0, 1).reshape(1, kv_heads, group * count, dim)
        out = F.scaled_dot_product_attention(folded, key, value, attn_mask=item.mask)
    return out.reshape(heads, count, dim).transpose(0, 1).reshape(count, -1)


def causal(positions: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [n, keys]: the query at positions[i] attends to keys up to its own position."""
    later = torch.arange(keys, device=positions.device) > positions[:, None]
    mask = torch.zeros(later.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(later, float("-inf"))


ALIGNED_ELEMENTS = 8  # CUDA's kernels copy a mask whose rows begin elsewhere, at each call


def aligned(shape: Sequence[int], fill: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A new mask of this shape, whose rows begin at multiples of ALIGNED_ELEMENTS."""
    *rows, width = shape
    wide = torch.full(
        (*rows, -(-width // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS), fill, dtype=dtype, device=device
    )
    return wide[..., :width]


MAX_COPIED_BYTES = 2 * MB  # of a session's rows; copying more costs a CPU more than the saved calls
GPU_SHARE = 32  # on a GPU the copies of all sessions are at most 1 / GPU_SHARE of its memory
GPU_ROWS = 256
PADDED = 2  # at most this many times the rows without padding


def copied_rows(rows: int, device: torch.device) -> int:
    """The rows of each session's copy: on a GPU a multiple of GPU_ROWS, so that the memory of one
    pass serves the next."""
    return rows if device.type == "cpu" else rows + -rows % GPU_ROWS


class PaddedAttention:
    """Attention of several sessions in one call; one object per pass.

    Each session's part of the copy holds its cached rows, zeros up to the longest session, and the
    rows of this pass.
    """

    def __init__(self, items: Sequence[PassItem], layout: CacheLayout, heads: int) -> None:
        """heads: the number of query heads, a multiple of the layout's KV heads."""
        self._items, self._heads = items, heads
        self._sessions = len(items)
        self._count = count = max(item.count for item in items)
        self._dim, self._kv_heads = layout.size, layout.heads
        device, dtype = layout.device, layout.dtype
        rows = copied_rows(max(item.start for item in items) + count, device)
        self._before = before = rows - count
        shape = (layout.layers, 2, len(items), layout.heads, before + count, layout.size)
        self._copy = torch.empty(shape, dtype=dtype, device=device)
        group = heads // layout.heads
        attention = (len(items), group, count, before + count)
        mask = aligned(attention, float("-inf"), dtype, device)
        places: list[int] = []  # indices of the items' tokens in the padded pass
        for place, item in enumerate(items):
            start, rows = item.start, item.count
            self._copy[:, :, place, :, :start] = item.cache.rows(0, start)
            self._copy[:, :, place, :, start:before] = 0  # masked, but 0 * nan is nan
            attends = item.mask
            if attends is None:
                where = torch.arange(start, start + rows, device=device)
                attends = causal(where, start + rows, dtype)
            attends = attends.reshape(-1, rows, start + rows)  # [group or 1, n, start + n]
            mask[place, :, :rows, :start] = attends[..., :start]
            mask[place, :, :rows, before : before + rows] = attends[..., start:]
            mask[place, :, rows:, before : before + rows] = 0  # padding may attend to all
            places += range(place * count, place * count + rows)
        self._mask = mask.view(len(items), 1, group * count, before + count)
        self._own = self._padded = None
        if len(places) < len(items) * count:
            self._own = torch.tensor(places, device=device)
            # Padding repeats the first token; its output is finite and not used.
            self._padded = torch.zeros(len(items) * count, dtype=torch.long, device=device)
            self._padded[self._own] = torch.arange(len(places), device=device)
        self._layers = [(layer[0], layer[1]) for layer in self._copy]

    @staticmethod
    def pays(items: Sequence[PassItem], layout: CacheLayout) -> bool:
        """Whether it is faster than ``attend``: several sessions of similar length, small ones on a
        CPU."""
        if len(items) < 2:
            return False
        starts, counts = [one.start for one in items], [one.count for one in items]
        padded = max(starts) + max(counts)
        most = MAX_COPIED_BYTES
        if layout.device.type == "cuda":
            memory = torch.cuda.get_device_properties(layout.device).total_memory
            most = memory // GPU_SHARE // len(items)
        return (
            padded * layout.row_bytes <= most
            and padded * len(items) <= PADDED * (sum(starts) + sum(counts))
            and max(counts) * len(items) <= PADDED * sum(counts)
        )

    def attend(self, index: int, qk: Tensor, values: Tensor) -> Tensor:
        """Attention's output [n, heads * dim] in layer ``index``, for the tokens of all sessions.

        qk: [n, heads + kv_heads, dim], values: [n, kv_heads, dim].
        """
        sessions, count, heads, dim = self._sessions, self._count, self._heads, self._dim
        if self._padded is not None:
            qk, values = qk.index_select(0, self._padded), values.index_select(0, self._padded)
        keys, kept_values = self._layers[index]
        qk = qk.view(sessions, count, -1, dim).transpose(1, 2)  # [sessions, heads, n, dim]
        values = values.view(sessions, count, -1, dim).transpose(1, 2)
        keys.narrow(2, self._before, count).copy_(qk[:, heads:])
        kept_values.narrow(2, self._before, count).copy_(values)
        query = qk[:, :heads].reshape(sessions, self._kv_heads, -1, dim)
        out = F.scaled_dot_product_attention(query, keys, kept_values, attn_mask=self._mask)
        out = out.view(sessions, heads, count, dim).transpose(1, 2).reshape(sessions * count, -1)
        return out if self._own is None else out.index_select(0, self._own)

    def keep(self) -> None:
        """Write the keys and values of this pass, for all layers, into the sessions' caches."""
        for place, item in enumerate(self._items):
            start, end = item.start, item.start + item.count
            new = self._copy[:, :, place, :, self._before : self._before + item.count]
            item.cache.rows(start, end).copy_(new)
