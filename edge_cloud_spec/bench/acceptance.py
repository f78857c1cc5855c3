"""How the drafts of some answers did: shares of what was counted, without a prior."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..edge.measures import Mean, Measures
from ..edge.rounds import Round


@dataclass(frozen=True)
class Share:
    """``part`` of ``whole`` events."""

    part: float = 0.0
    whole: int = 0

    @property
    def value(self) -> float | None:
        """From 0 to 1; None where there was no event."""
        return self.part / self.whole if self.whole else None

    def __add__(self, other: Share) -> Share:
        return Share(self.part + other.part, self.whole + other.whole)

    def __sub__(self, other: Share) -> Share:
        return Share(self.part - other.part, self.whole - other.whole)


@dataclass(frozen=True)
class Choices:
    """What a robot has seen of its draft model so far.

    ``first``: places where the draft's first choice was the target's. ``second``: of those where it
    was not, where the second was; only presets that guess at verdicts know theirs.
    """

    first: Share = Share()
    second: Share = Share()

    @classmethod
    def of(cls, measures: Measures) -> Choices:
        """Since the robot began to measure."""
        return cls(_seen(measures.acceptance), _seen(measures.runner_up))

    def __add__(self, other: Choices) -> Choices:
        return Choices(self.first + other.first, self.second + other.second)

    def __sub__(self, other: Choices) -> Choices:
        return Choices(self.first - other.first, self.second - other.second)


def _seen(mean: Mean) -> Share:
    return Share(mean.total, mean.count)


def cache_hits(rounds: Iterable[Round]) -> Share:
    """Rounds whose draft was ready when the verdict before them came; an answer's first has none"""
    ready = [not r.waited for r in rounds if r.drafted and r.base]
    return Share(sum(ready), len(ready))
