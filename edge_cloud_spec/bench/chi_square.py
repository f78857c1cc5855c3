"""Two samples of answers, and whether one distribution can have given both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

RARE = 10  # answers that came less often than this in both samples together count as one


@dataclass(frozen=True)
class ChiSquare:
    """Pearson's chi-square of two samples, its degrees of freedom, and how probable so much is."""

    chi_square: float
    freedom: int
    p_value: float


def compare(ours: Sequence[object], theirs: Sequence[object]) -> ChiSquare:
    """The test of homogeneity of two samples of answers, the rare answers taken together."""
    counts = Counter(ours), Counter(theirs)
    together = counts[0] + counts[1]
    cells = [(counts[0][a], counts[1][a]) for a in together if together[a] >= RARE]
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
