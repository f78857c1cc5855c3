"""A counter-based random generator shared by robot and cloud.

A draw is a hash of (seed of the request, purpose, position, trial, index), so it can be repeated
anywhere, in any order, and no two purposes share one. The mixing function is the finalizer of
SplitMix64 (Steele, Lea and Flood 2014), applied once per word of the key.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Purpose(IntEnum):
    """What a random draw is for; part of its key, so two purposes never share noise."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    COUPLED = 4
    TAIL = 5  # tail tokens outside the top K that the cloud sends
    KEEP = 6  # whether the robot keeps a tail token


_NUMBERS = 32  # bits of a decision's number


def decision_seed(seed: int, number: int) -> int:
    """The seed of a robot's ``number``-th decision, from the robot's ``seed``; both below 2**32.

    It has 64 bits and contains both, so no two decisions share a seed. Raises ValueError.
    """
    if not (0 <= seed < 1 << 32 and 0 <= number < 1 << _NUMBERS):
        raise ValueError(f"seed and number have 32 bits each, not {seed} and {number}")
    return seed << _NUMBERS | number


def seed_and_number(seed: int) -> tuple[int, int]:
    """The inverse of ``decision_seed``."""
    return divmod(seed, 1 << _NUMBERS)


GOLDEN = 0x9E3779B97F4A7C15
MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shifts and factors
_GOLDEN = np.uint64(GOLDEN)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in MIXERS:
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


_WORD = (1 << 64) - 1


def _key(*words: int) -> int:
    """The same mixing, of Python's integers: numpy takes ten times as long for a single word."""
    key = 0
    for word in words:
        key = ((key + word) * GOLDEN + GOLDEN) & _WORD
        for shift, factor in MIXERS:
            key = (key ^ (key >> shift)) * factor & _WORD
        key ^= key >> 31
    return key


def uniform(
    seed: int, purpose: Purpose, position: int, index: ArrayLike = 0, trial: int = 0
) -> NDArray[np.float64]:
    """Uniform draws in the open interval (0, 1), one for each entry of ``index``; same shape."""
    key = np.uint64(_key(seed, int(purpose), position, trial))
    with np.errstate(over="ignore"):
        hashed = _mix((key + np.asarray(index).astype(np.uint64)) * _GOLDEN + _GOLDEN)
    return ((hashed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(seed: int, position: int, tokens: ArrayLike) -> NDArray[np.float64]:
    """Standard Gumbel noise [n] of the coupled rule for token ids [n] at this position."""
    draws: NDArray[np.float64] = -np.log(-np.log(uniform(seed, Purpose.COUPLED, position, tokens)))
    return draws


LOG_2_31 = 31 * math.log(2)
GUMBEL_MAX = 36.75  # above all noise, since u is at most 1 - 2**-53


def coupled_key(seed: int, position: int) -> int:
    """The 64-bit key to which a token id is added before hashing, under the coupled rule."""
    return _key(seed, int(Purpose.COUPLED), position, 0)


class GumbelBounds:
    """Cheap upper bounds of the coupled rule's noise at one position, for chunks of tokens.

    u has 52 bits of the hash; the last mixing step leaves its upper 31 unchanged. With c the
    complement of these 31, 1 - u > c / 2**31, and G = -log(-log u) <= -log(1 - u), so G < LOG_2_31
    - log c: infinite for c = 0. In float32 that is right up to 1e-5: c has an error of 2**-24 of
    its size, and the logarithm, at most 21.5, one of 4 units in its last place.
    """

    def __init__(self, seed: int, position: int, chunk: int) -> None:
        """chunk: the most tokens per call."""
        self._key = np.uint64(coupled_key(seed, position))
        self._words, self._shifted = np.empty((2, chunk), np.uint64)
        self._complement = np.empty(chunk, np.int32)
        self._logs = np.empty(chunk, np.float32)
        with np.errstate(over="ignore"):
            self._steps = np.arange(chunk, dtype=np.uint64) * _GOLDEN

    def logs(self, start: int, count: int) -> NDArray[np.float32]:
        """log c, float32 [count], of tokens from ``start`` on; valid until the next call.

        Call it with numpy's overflow and division warnings disabled.
        """
        x, y = self._words[:count], self._shifted[:count]
        np.add(self._steps[:count], (self._key + np.uint64(start)) * _GOLDEN + _GOLDEN, out=x)
        for shift, factor in MIXERS:
            np.bitwise_xor(x, np.right_shift(x, np.uint64(shift), out=y), out=x)
            np.multiply(x, np.uint64(factor), out=x)
        np.right_shift(x, np.uint64(33), out=x)
        complement, logs = self._complement[:count], self._logs[:count]
        np.copyto(complement, x, casting="unsafe")
        np.subtract(np.int32(2**31 - 1), complement, out=complement)
        np.copyto(logs, complement, casting="unsafe")
        return np.log(logs, out=logs)
