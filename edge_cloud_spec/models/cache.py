"""Keys and values of one session: preallocated rows, rolled back by lowering a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STEP = 128  # rows; capacity is a multiple


class KeyValueCache:
    """One buffer [layers, 2, kv_heads, capacity, head_dim]; its owner knows which rows are valid.

    transformers' DynamicCache concatenates (copies) all rows at each step and layer; here a step
    writes its own rows only, and rolling back writes nothing.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        size: int,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._buffer = torch.empty(
            layers, 2, heads, _rounded(rows), size, dtype=dtype, device=device
        )
        self._split()

    def _split(self) -> None:
        # Views made once: indexing the buffer per layer and step would cost more than the copy.
        self.keys: list[Tensor] = [layer[0] for layer in self._buffer]  # [kv_heads, capacity, dim]
        self.values: list[Tensor] = [layer[1] for layer in self._buffer]

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return self._buffer.shape[3]

    def reserve(self, rows: int, valid: int) -> None:
        """Make room for `rows` rows in all, keeping the first `valid`."""
        if rows <= self.capacity:
            return
        old = self._buffer
        shape = list(old.shape)
        shape[3] = _rounded(max(rows, 2 * self.capacity))
        self._buffer = old.new_empty(shape)
        self._buffer[:, :, :, :valid] = old[:, :, :, :valid]
        self._split()

    def gather(self, start: int, rows: Sequence[int]) -> None:
        """Move `rows` (absolute, in order) to start, start + 1, ...: commit of a path."""
        if list(rows) != list(range(start, start + len(rows))):
            index = torch.tensor(rows, device=self._buffer.device)
            kept = self._buffer.index_select(3, index)
            self._buffer[:, :, :, start : start + len(rows)] = kept

    def copy_rows(self, count: int) -> Tensor:
        """A copy of the first `count` rows, for `paste`."""
        return self._buffer[:, :, :, :count].clone()

    def paste(self, rows: Tensor, count: int) -> None:
        """Overwrite the first `count` rows with those that `copy_rows` gave."""
        self._buffer[:, :, :, :count] = rows[:, :, :, :count]


def _rounded(rows: int) -> int:
    return (rows + STEP - 1) // STEP * STEP
