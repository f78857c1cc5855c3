"""The source of random choices, an interface so that a test can enumerate every outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .noise import Purpose, uniform

BLOCK = 512  # weights per block


class RandomSource(Protocol):
    """Makes two kinds of random choice; equal keys give equal choices."""

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        """True with this probability."""

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """An index with probability proportional to ``weights`` [V] (not all zero)."""

    def draw_from_blocks(
        self,
        sums: NDArray[np.float64],
        block_of: Callable[[int], NDArray[np.floating]],
        purpose: Purpose,
        position: int,
        trial: int = 0,
    ) -> int:
        """``draw`` from weights [V], given the ``sums`` of their blocks of ``BLOCK``.

        ``block_of(index)`` returns the weights of one block; the last block may be shorter.
        """


class SeededRandomSource:
    """The source in production: each choice is a function of (seed, purpose, position, trial)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        return bool(uniform(self._seed, purpose, position, trial=trial) < probability)

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """The index at which a uniform draw falls into the cumulative sum.

        For long weights the sums of blocks come first: one cumulative sum is 5 times as slow.
        """
        if len(weights) < 2 * BLOCK:
            cumulative = np.cumsum(weights, dtype=np.float64)
            return _place(cumulative, self._share(purpose, position, trial) * cumulative[-1])
        return self.draw_from_blocks(
            block_sums(weights),
            lambda block: weights[block * BLOCK : (block + 1) * BLOCK],
            purpose,
            position,
            trial,
        )

    def draw_from_blocks(
        self,
        sums: NDArray[np.float64],
        block_of: Callable[[int], NDArray[np.floating]],
        purpose: Purpose,
        position: int,
        trial: int = 0,
    ) -> int:
        """``draw`` from sums of blocks of weights; ``block_of`` returns one block's weights."""
        ends = np.cumsum(sums)
        point = self._share(purpose, position, trial) * ends[-1]
        block = _place(ends, point)
        inside = np.cumsum(block_of(block), dtype=np.float64)
        return block * BLOCK + _place(inside + (ends[block - 1] if block else 0.0), point)

    def _share(self, purpose: Purpose, position: int, trial: int) -> float:
        return float(uniform(self._seed, purpose, position, trial=trial))


def block_sums(weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """The float64 sums of each ``BLOCK`` consecutive weights [V]; the last block may be shorter."""
    whole = len(weights) // BLOCK * BLOCK
    sums: NDArray[np.float64] = weights[:whole].reshape(-1, BLOCK).sum(1, dtype=np.float64)
    if whole == len(weights):
        return sums
    return np.append(sums, weights[whole:].sum(dtype=np.float64))


def _place(cumulative: NDArray[np.float64], point: float) -> int:
    """The first index with a cumulative sum above ``point``; if rounding leaves none, the last."""
    place = int(np.searchsorted(cumulative, point, side="right"))
    if place < len(cumulative):
        return place
    # The last index with a weight.
    return int(np.searchsorted(cumulative, cumulative[-1], side="left"))
