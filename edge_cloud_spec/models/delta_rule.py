"""The gated delta rule over a chain or a tree of tokens, and the state after any of them.

A head of Gated DeltaNet (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", arXiv 2412.06464) has
a state S [key_size, value_size] where attention has the keys and values of all tokens. A token t
after p lets S decay, corrects what S has for its key, and reads (their equation 10)::

    S_t = e^g_t S_p + k_t u_t^T     u_t = b_t (v_t - e^g_t S_p^T k_t)     o_t = S_t^T q_t

From a state S before several tokens, with c_t the sum of g up to t (their section 3.3)::

    u_t = b_t (v_t - e^c_t S^T k_t - sum over a before t of e^(c_t - c_a) (k_a . k_t) u_a)
    o_t = e^c_t S^T q_t + sum over a up to t of e^(c_t - c_a) (k_a . q_t) u_a

All u are one triangular system. Nothing in it needs a chain: in a tree, "before t" are t's
ancestors, and c_t sums over them. So a tree is scored by one solve. What a token writes (k, u, g)
depends on its ancestors alone and stays true whatever is dropped beside it, so that the state after
any path comes from a state before it and the *writes* on the path::

    S_t = e^c_t S + sum over a up to t of e^(c_t - c_a) k_a u_a^T

The convolution before the rule reads the last few columns of its input on the same path; a write
has its token's column, too. Everything is float32, as in transformers, and sums of g are float64:
their differences matter where a head forgets fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..decoding.token_tree import TokenTree

NORM_EPSILON = 1e-6  # of queries and keys, as in transformers and flash-linear-attention


@dataclass(frozen=True)
class DeltaSizes:
    """The sizes of a Gated DeltaNet layer; ``kernel``: columns that its convolution reads."""

    key_heads: int
    value_heads: int  # a multiple of key_heads
    key_size: int
    value_size: int
    kernel: int

    @property
    def keys(self) -> int:
        """Numbers in a token's keys, or its queries."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Numbers in a token's values, or in what it writes for them."""
        return self.value_heads * self.value_size

    @property
    def columns(self) -> int:
        """Numbers in a column, the input of the convolution."""
        return 2 * self.keys + self.values

    @property
    def write(self) -> int:
        """Numbers in a write."""
        return self.keys + self.values + self.value_heads + self.columns

    @property
    def group(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    def parts(self, writes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Views of writes [..., n, write]: k [..., n, key_heads, key_size], u [..., n, value_heads,
        value_size], g [..., n, value_heads], columns [..., n, columns]."""
        k, u, g, columns = torch.split(
            writes, [self.keys, self.values, self.value_heads, self.columns], -1
        )
        rows = writes.shape[:-1]
        k = k.view(*rows, self.key_heads, self.key_size)
        return k, u.view(*rows, self.value_heads, self.value_size), g, columns


@dataclass(frozen=True, eq=False)
class Lineage:
    """Which of m rows come before which: the last ``count`` are computed, the others written.

    ancestors: bool [m, m], row i sees row j. window: int64 [count, kernel], what the convolution
    reads for each row, of the kernel - 1 columns before the m rows and theirs.
    """

    ancestors: Tensor
    window: Tensor

    @classmethod
    def of(
        cls, nodes: TokenTree, rows: int, count: int, kernel: int, device: torch.device
    ) -> Lineage:
        """The last of ``rows`` rows are the nodes; those before are a chain."""
        if nodes.parents is None:
            ancestors = torch.ones(rows, rows, dtype=torch.bool, device=device).tril_()
        else:
            ancestors = torch.from_numpy(nodes.mask(rows, 0, len(nodes)) == 0).to(device)
        # Each row's last ancestors in ascending order; the columns before all rows are everybody's.
        read = F.pad(ancestors[rows - count :], (kernel - 1, 0), value=True)
        places = torch.arange(kernel - 1 + rows, device=device).where(read, -1)
        return cls(ancestors, places.topk(kernel).values.flip(-1))


def delta_rule(
    sizes: DeltaSizes,
    columns: Tensor,
    gates: tuple[Tensor, Tensor],
    kernel: Tensor,
    state: Tensor,
    window: Tensor,
    writes: Tensor,
    lineage: Lineage,
) -> Tensor:
    """What each of n rows reads, float32 [n, values]; the last n of ``writes`` [m, write] become
    theirs.

    columns [n, columns], gates g and b [n, value_heads]: of the rows. kernel [kernel, columns]: of
    the convolution. state [value_heads, key_size, value_size], window [kernel - 1, columns]: before
    the m rows.
    """
    count, before = len(columns), len(writes) - len(columns)
    grouped = sizes.key_heads, sizes.group

    def by_head(x: Tensor) -> Tensor:
        """[n, values] or [n, value_heads] to [key_heads, group, n, value_size] or [..., 1]."""
        heads: Tensor = x.view(len(x), *grouped, -1)
        return heads.permute(1, 2, 0, 3)

    keys, updates, decays, kept = sizes.parts(writes)
    kept[before:], decays[before:] = columns, gates[0]
    mixed = F.silu((torch.cat([window, kept])[lineage.window] * kernel).sum(1))  # [n, columns]
    query, key, value = torch.split(mixed, [sizes.keys, sizes.keys, sizes.values], -1)
    unit = torch.stack([query, key]).view(2, count, sizes.key_heads, sizes.key_size)
    unit = unit * torch.rsqrt((unit * unit).sum(-1, keepdim=True) + NORM_EPSILON)
    keys[before:] = unit[1]
    heads = unit.permute(2, 0, 1, 3).flatten(1, 2)  # queries, then keys: [key_heads, 2 n, key_size]
    dots = (heads @ keys.permute(1, 2, 0)).unsqueeze(1)  # [key_heads, 1, 2 n, m]
    stored = heads.unsqueeze(1) @ state.view(*grouped, *state.shape[1:])  # [.., .., 2 n, size]

    ancestors = lineage.ancestors
    total = ancestors.double() @ decays.double()  # c, [m, value_heads]
    apart = (total[before:, None] - total).masked_fill_(~ancestors[before:, :, None], -torch.inf)
    decay = apart.exp_().float().view(count, -1, *grouped).permute(2, 3, 0, 1)  # [.., .., n, m]
    since, strength = by_head(total[before:].exp().float()), by_head(gates[1])  # [.., .., n, 1]
    written = by_head(updates.flatten(1))  # [.., .., m, value_size]

    known = dots[:, :, count:] * decay  # of keys among keys
    right = by_head(value) - since * stored[:, :, count:]
    due = strength * (right - known[..., :before] @ written[:, :, :before])
    if count > 1:
        system = strength * known[..., before:]
        due = torch.linalg.solve_triangular(system, due, upper=False, unitriangular=True)
    written[:, :, before:] = due
    read: Tensor = since * stored[:, :, :count] + (dots[:, :, :count] * decay) @ written
    return read.permute(2, 0, 1, 3).flatten(1) * float(sizes.key_size**-0.5)


def after(
    sizes: DeltaSizes, state: Tensor, window: Tensor, writes: Tensor
) -> tuple[Tensor, Tensor]:
    """State and window after a chain of writes [..., n, write], of those before it; all may have
    leading dimensions."""
    keys, updates, decays, columns = sizes.parts(writes)
    decays = decays.double()  # [..., n, value_heads]
    end = decays.sum(-2, keepdim=True)
    left = (
        (end - decays.cumsum(-2)).exp().float().transpose(-1, -2).unsqueeze(-1)
    )  # [..., value_heads, n, 1]
    k = keys.transpose(-2, -3).repeat_interleave(sizes.group, -3) * left
    kept = state * end.exp().float().transpose(-1, -2).unsqueeze(-1)
    window = torch.cat([window, columns], -2)[..., columns.shape[-2] :, :]
    return kept + k.transpose(-1, -2) @ updates.transpose(-2, -3), window


CHUNK_ROWS = 64  # rows of a long prompt that are one system


def scan(
    sizes: DeltaSizes,
    columns: Tensor,
    gates: tuple[Tensor, Tensor],
    kernel: Tensor,
    state: Tensor,
    window: Tensor,
    writes: Tensor,
    lineages: Sequence[Lineage],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As ``delta_rule``, chunk by chunk, where only the last chunk's writes are kept.

    writes: of rows before, [m, write]. Returns what is read, then state, window and writes.
    """
    read: list[Tensor] = []
    for place, lineage in enumerate(lineages):
        if place:
            state, window = after(sizes, state, window, writes)
            writes = writes[:0]
        count = len(lineage.window)
        start = sum(map(len, read))
        writes = torch.cat([writes, writes.new_empty(count, sizes.write)])
        rows = slice(start, start + count)
        each = gates[0][rows], gates[1][rows]
        read.append(delta_rule(sizes, columns[rows], each, kernel, state, window, writes, lineage))
    return torch.cat(read), state, window, writes
