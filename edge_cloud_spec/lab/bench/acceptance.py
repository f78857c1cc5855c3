"""How often drafts were ready and right: shares of counted events, without a prior."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...decoding.mean import Mean
from ...edge.measures import Measures, Round


@dataclass(frozen=True)
class Share:
    """``part`` of ``whole`` events."""

    part: float = 0.0
    whole: int = 0

    @property
    def value(self) -> float | None:
        """The share, from 0 to 1; None without events."""
        return self.part / self.whole if self.whole else None

    def __add__(self, other: Share) -> Share:
        return Share(self.part + other.part, self.whole + other.whole)

    def __sub__(self, other: Share) -> Share:
        return Share(self.part - other.part, self.whole - other.whole)


@dataclass(frozen=True)
class ChoiceShares:
    """How often the draft model's choices were the target's.

    ``first``: share of positions where its first choice was. ``second``: share of the others where
    its second was; counted only by presets that predict verdicts.
    """

    first: Share = Share()
    second: Share = Share()

    @classmethod
    def of(cls, measures: Measures) -> ChoiceShares:
        """All that the robot has measured."""
        return cls(_share_of(measures.acceptance), _share_of(measures.runner_up))

    def __add__(self, other: ChoiceShares) -> ChoiceShares:
        return ChoiceShares(self.first + other.first, self.second + other.second)

    def __sub__(self, other: ChoiceShares) -> ChoiceShares:
        return ChoiceShares(self.first - other.first, self.second - other.second)


def _share_of(mean: Mean) -> Share:
    return Share(mean.total, mean.count)


def cache_hits(rounds: Iterable[Round]) -> Share:
    """Rounds whose draft was ready at the verdict before them; an answer's first round has none."""
    ready = [not r.waited for r in rounds if r.drafted and r.base]
    return Share(sum(ready), len(ready))
