"""Bytes and tokens of the rounds of a loopback pair."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from ...harness.loopback import LoopbackPair
from ..command import Row


@dataclass
class RoundBytes:
    """Serialized bytes of each round, and how many of its drafted tokens were accepted.

    A *judged* position is one where the draft had a token and the verdict accepted or rejected it.
    ``down`` is without the dense rows that a robot requests when a sparse residual ran out; their
    bytes are in ``fallbacks``, the requests in ``up``.
    """

    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    fallbacks: list[int] = field(default_factory=list)
    tokens: int = 0
    accepted: int = 0
    rejections: int = 0

    @property
    def judged(self) -> int:
        """Positions that were accepted or rejected."""
        return self.accepted + self.rejections

    def add_round(self, pair: LoopbackPair) -> None:
        """Run one round of the pair and count it."""
        up, down, dense = pair.up_bytes, pair.down_bytes, pair.row_bytes
        tokens = len(pair.emitted)
        pair.round()
        fallback = pair.row_bytes - dense
        self.up.append(pair.up_bytes - up)
        self.down.append(pair.down_bytes - down - fallback)
        if fallback:
            self.fallbacks.append(fallback)
        self.tokens += len(pair.emitted) - tokens
        assert pair.verdict is not None
        self.accepted += len(pair.verdict.path)
        self.rejections += _rejected(pair)

    def row(self) -> Row:
        """Means, maxima and counts."""
        return {
            "rounds": len(self.up),
            "up_bytes_mean": statistics.fmean(self.up),
            "up_bytes_max": max(self.up),
            "down_bytes_mean": statistics.fmean(self.down),
            "down_bytes_max": max(self.down),
            "tokens_per_round": self.tokens / len(self.up),
            "acceptance": self.accepted / self.judged,
            "rejections": self.rejections,
            "fallbacks": len(self.fallbacks),
            "row_bytes_mean": statistics.fmean(self.fallbacks) if self.fallbacks else 0.0,
        }


def _rejected(pair: LoopbackPair) -> bool:
    """Whether the last round's verdict rejected all that the draft had at some position."""
    draft, verdict = pair.draft, pair.verdict
    assert draft is not None and verdict is not None
    judged = verdict.token is not None or verdict.residual is not None
    offered = list(draft.children(verdict.path[-1] if verdict.path else -1))
    return judged and bool(offered)
