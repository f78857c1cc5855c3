"""Where random choices come from, so that a test can enumerate every outcome."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .noise import Purpose, uniform


class RandomSource(Protocol):
    """Makes the two kinds of random choice; equal keys give equal choices."""

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        """True with this probability."""

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """An index with probability proportional to ``weights`` [V] (not all zero)."""


class SeededRandomSource:
    """Of real runs: every choice is a function of (seed, purpose, position, trial)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        return bool(uniform(self._seed, purpose, position, trial=trial) < probability)

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        cumulative = np.cumsum(weights, dtype=np.float64)
        point = uniform(self._seed, purpose, position, trial=trial) * cumulative[-1]
        return int(np.searchsorted(cumulative, point, side="right"))
