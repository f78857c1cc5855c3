"""Where random choices come from, so that a test can enumerate every outcome."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .noise import Purpose, uniform


class Chooser(Protocol):
    """Makes the two kinds of random choice of speculative sampling."""

    def accept(self, probability: float, position: int) -> bool:
        """True with this probability."""

    def draw(self, weights: NDArray[np.float64], purpose: Purpose, position: int) -> int:
        """An index with probability proportional to ``weights`` [V] (not all zero)."""


class SeededChooser:
    """The chooser of real runs: every choice is a function of (seed, purpose, position)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def accept(self, probability: float, position: int) -> bool:
        return bool(uniform(self._seed, Purpose.ACCEPT, position) < probability)

    def draw(self, weights: NDArray[np.float64], purpose: Purpose, position: int) -> int:
        cumulative = np.cumsum(weights, dtype=np.float64)
        point = uniform(self._seed, purpose, position) * cumulative[-1]
        return int(np.searchsorted(cumulative, point, side="right"))
