"""Attention of one session's rows over its own cache, in as few operations as it takes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .segment import Segment


def attend(index: int, qk: Tensor, values: Tensor, segment: Segment, heads: int) -> Tensor:
    """[n, heads * dim] of the layer ``index``; writes keys and values into the cache.

    qk: [n, heads + kv_heads, dim], values: [n, kv_heads, dim]. The query heads of one key head are
    folded into the query rows, so that keys are not repeated.
    """
    count, end = segment.count, segment.start + segment.count
    kv_heads, dim = values.shape[1:]
    keys_before = segment.cache.keys[index].narrow(1, 0, end)
    values_before = segment.cache.values[index].narrow(1, 0, end)
    keys_before.narrow(1, segment.start, count).copy_(qk[:, heads:].transpose(0, 1))
    values_before.narrow(1, segment.start, count).copy_(values.transpose(0, 1))
    key, value = keys_before.unsqueeze(0), values_before.unsqueeze(0)
    query = qk[:, :heads]
    if count == 1:
        folded = query.view(1, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(folded, key, value, attn_mask=segment.mask).view(
            1, -1
        )
    if segment.mask is None:
        whole = query.transpose(0, 1).unsqueeze(0)  # [1, heads, n, dim]
        out = F.scaled_dot_product_attention(
            whole, key, value, is_causal=True, enable_gqa=heads != kv_heads
        )
        return out[0].transpose(0, 1).reshape(count, -1)
    return folded_attention(query, key, value, fold_mask(segment.mask, heads // kv_heads))


def fold_mask(mask: Tensor, group: int) -> Tensor:
    """An additive mask [n, keys] for the folded rows [group * n, keys]."""
    return mask.expand(group, *mask.shape).reshape(group * mask.shape[0], -1)


def folded_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """[n, heads * dim] of query [n, heads, dim] over key, value [1, kv_heads, keys, dim].

    mask: [group * n, keys], see ``fold_mask``.
    """
    count, heads, dim = query.shape
    kv_heads = key.shape[1]
    folded = query.transpose(0, 1).reshape(1, kv_heads, heads // kv_heads * count, dim)
    out: Tensor = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask)
    return out.view(heads, count, dim).transpose(0, 1).reshape(count, -1)


def causal(positions: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [n, keys]: the query at positions[i] attends to the keys up to its own."""
    later = torch.arange(keys, device=positions.device) > positions[:, None]
    mask = torch.zeros(later.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(later, float("-inf"))
