"""The source of random choices, an interface so that a test can enumerate every outcome."""

from __future__ import annotations

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

        The sums of blocks come first: of long weights, one cumulative sum is 5 times as slow.
        """
        starts = np.arange(0, len(weights), BLOCK)
        ends = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
        point = float(uniform(self._seed, purpose, position, trial=trial)) * ends[-1]
        block = _place(ends, point)
        inside = np.cumsum(weights[starts[block] : starts[block] + BLOCK], dtype=np.float64)
        return block * BLOCK + _place(inside + (ends[block - 1] if block else 0.0), point)


def _place(cumulative: NDArray[np.float64], point: float) -> int:
    """The first index with a cumulative sum above ``point``; if rounding leaves none, the last."""
    place = int(np.searchsorted(cumulative, point, side="right"))
    if place < len(cumulative):
        return place
    # The last index with a weight.
    return int(np.searchsorted(cumulative, cumulative[-1], side="left"))
