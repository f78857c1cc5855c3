"""Which numbers of rows give a row the same bits: measured on this machine, not assumed.

The kernels that a library chooses, and so the order in which they add, depend on the shape of what
they are given. Thinking Machines' "Defeating nondeterminism in LLM inference" (2025) and LLM-42
(2601.17768) fix the shapes; here a few are compared, so that few rows cost little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from .linear import PackedLinear, is_plain

REFERENCE = 16  # rows; other numbers are compared with it
ROW_COUNTS = (*range(1, 9), *range(10, 17, 2), *range(20, 65, 4), 80, 96, 128)
SAMPLE = 2 * max(ROW_COUNTS)  # rows that are compared

RowFunction = Callable[[Tensor], Tensor]  # [n, ...] -> [n, ...], each row of its own row


@dataclass(frozen=True)
class RowCounts:
    """Numbers of rows that give the same bits, in ascending order."""

    allowed: tuple[int, ...]

    def padded(self, count: int) -> int:
        """The rows of the blocks that ``count`` rows take; 0 for none."""
        whole, rest = divmod(count, self.allowed[-1])
        return whole * self.allowed[-1] + self._above(rest)

    def blocks(self, padded: int) -> list[int]:
        """The sizes of these blocks."""
        whole, rest = divmod(padded, self.allowed[-1])
        return [self.allowed[-1]] * whole + [rest] * (rest > 0)

    def apply(self, run: RowFunction, rows: Tensor) -> Tensor:
        """``run`` over any number of rows, in blocks of allowed sizes."""
        count = rows.shape[0]
        sizes = self.blocks(self.padded(count))
        rows = pad_rows(rows, sum(sizes))
        if len(sizes) == 1:
            return run(rows)[:count]
        return torch.cat([run(part) for part in torch.split(rows, sizes)])[:count]

    def _above(self, count: int) -> int:
        return next(size for size in (0, *self.allowed) if size >= count)


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
    plain = nn.Linear(1, 1, bias=False)
    plain.weight = nn.Parameter(columns.to(weight.device, weight.dtype), requires_grad=False)
    product = PackedLinear(plain) if isinstance(linear, PackedLinear) else plain
    return equal_counts(product, rows.to(weight.device, weight.dtype))
