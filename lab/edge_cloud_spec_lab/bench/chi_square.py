"""Pearson's chi-square test: whether two samples of answers have the same distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MIN_COUNT = 10  # answers with fewer occurrences in both samples together share one cell


@dataclass(frozen=True)
class ChiSquare:
    """The statistic, its degrees of freedom, and the probability of one at least as large."""

    chi_square: float
    freedom: int
    p_value: float


def compare(ours: Sequence[object], theirs: Sequence[object]) -> ChiSquare:
    """The test of homogeneity of two samples; rare answers share one cell."""
    counts = Counter(ours), Counter(theirs)
    pooled = counts[0] + counts[1]
    cells = [(counts[0][a], counts[1][a]) for a in pooled if pooled[a] >= MIN_COUNT]
    rest = (len(ours) - sum(a for a, _ in cells), len(theirs) - sum(b for _, b in cells))
    if sum(rest):
        cells.append(rest)
    share = len(ours) / (len(ours) + len(theirs))
    statistic = 0.0
    for a, b in cells:
        expected = (a + b) * share
        statistic += (a - expected) ** 2 / expected
        statistic += (a - expected) ** 2 / (a + b - expected)
    freedom = len(cells) - 1
    return ChiSquare(statistic, freedom, tail(statistic, freedom))


def tail(statistic: float, freedom: int) -> float:
    """The probability of a chi-square above ``statistic`` (Wilson and Hilferty 1931)."""
    if freedom == 0:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))
