"""One counter-based random generator for robot and cloud.

A draw is a hash of (seed of the request, purpose, position, trial, index), so it can be made again
anywhere, in any order, and no two purposes ever share one. The mixing function is the finalizer of
SplitMix64 (Steele, Lea and Flood 2014), applied once per word of the key.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Purpose(IntEnum):
    """What a draw is for; robot and cloud never share a draw by accident."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    COUPLED = 4
    TAIL = 5  # tokens outside the top K that the cloud sends along
    KEEP = 6  # whether the robot keeps one of them


_NUMBERS = 32  # bits of a decision's number


def decision_seed(seed: int, number: int) -> int:
    """The seed of a robot's decision of this number, from a seed of its own, both below 2**32.

    64 bits that hold both, so no two decisions share one and a recorded one tells where it stood.
    """
    if not (0 <= seed < 1 << 32 and 0 <= number < 1 << _NUMBERS):
        raise ValueError(f"seed and number have 32 bits each, not {seed} and {number}")
    return seed << _NUMBERS | number


def seed_and_number(seed: int) -> tuple[int, int]:
    """What ``decision_seed`` was given."""
    return seed >> _NUMBERS, seed & (1 << _NUMBERS) - 1


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def uniform(
    seed: int, purpose: Purpose, position: int, index: ArrayLike = 0, trial: int = 0
) -> NDArray[np.float64]:
    """Uniform draws in the open interval (0, 1), one for each entry of ``index``; same shape."""
    with np.errstate(over="ignore"):
        key = np.zeros((), np.uint64)
        for word in (seed, int(purpose), position, trial):
            key = _mix((key + np.uint64(word & 0xFFFFFFFFFFFFFFFF)) * _GOLDEN + _GOLDEN)
        hashed = _mix((key + np.asarray(index).astype(np.uint64)) * _GOLDEN + _GOLDEN)
    return ((hashed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(seed: int, position: int, tokens: ArrayLike) -> NDArray[np.float64]:
    """Standard Gumbel noise of the coupled rule for these token ids at this position."""
    draws: NDArray[np.float64] = -np.log(-np.log(uniform(seed, Purpose.COUPLED, position, tokens)))
    return draws
