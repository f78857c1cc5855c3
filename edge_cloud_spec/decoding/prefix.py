"""Prefixes of token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
