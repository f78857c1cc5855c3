"""What ``bench pipelines`` measures of the answers of one preset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....edge.measures import Round
from ....edge.runner import Outcome
from ..acceptance import cache_hits
from ..command import Row


@dataclass(frozen=True)
class MeasuredAnswers:
    """Answers of one preset; ``equal`` of them are token by token the target's.

    Idle is the share of the time in which that side's model computed nothing.
    """

    outcomes: Sequence[Outcome]
    equal: int
    robot_idle: float | None
    cloud_idle: float | None

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def tokens(self) -> int:
        return sum(len(outcome.tokens) for outcome in self.outcomes)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def rounds(self) -> list[Round]:
        return [r for outcome in self.outcomes for r in outcome.stats.rounds]

    def row(self) -> Row:
        """The fields of a row that need no other preset's answers."""
        rounds, stats = len(self.rounds), [outcome.stats for outcome in self.outcomes]
        tested = sum(one.tested for one in stats)
        hit = cache_hits(self.rounds).value
        return {
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_round": self.tokens / rounds,
            "acceptance": sum(one.accepted for one in stats) / tested if tested else None,
            "cache_miss": None if hit is None else 1 - hit,
            "robot_idle": self.robot_idle,
            "cloud_idle": self.cloud_idle,
            "up_bytes_mean": sum(one.up_bytes for one in stats) / rounds,
            "down_bytes_mean": sum(one.down_bytes for one in stats) / rounds,
            "resumed": sum(one.resumed for one in stats),
            "equal": self.equal,
        }
