"""Counts of many answers' messages on both sides, and whether the two agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....cloud.session.counters import Counters
from ...harness.robot import DecodedAnswer


@dataclass
class MessageCounts:
    """The robot's sums over a preset's answers; the answers themselves are not kept."""

    answers: int = 0
    equal: int = 0
    tokens: int = 0
    emitted: int = 0  # tokens, summed over rounds
    rounds: int = 0
    on_drafts: int = 0  # rounds on a draft, whoever drafted
    sent: int = 0  # drafts
    stale: int = 0
    resumed: int = 0
    seconds: float = 0.0

    def add(self, answer: DecodedAnswer) -> None:
        """Count one more answer."""
        outcome, stats = answer.outcome, answer.outcome.stats
        self.answers += 1
        self.equal += answer.equal
        self.tokens += len(outcome.tokens)
        self.emitted += sum(r.emitted for r in stats.rounds)
        self.rounds += len(stats.rounds)
        self.on_drafts += sum(r.drafted > 0 for r in stats.rounds)
        self.sent += answer.drafts_sent
        self.stale += stats.stale
        self.resumed += stats.resumed
        self.seconds += outcome.seconds


def total(counts: Iterable[MessageCounts]) -> MessageCounts:
    """The sum of all counts."""
    total = MessageCounts()
    for each in counts:
        for name, value in vars(each).items():
            setattr(total, name, getattr(total, name) + value)
    return total


def discrepancies(robot: MessageCounts, cloud: Counters, lossless: bool) -> list[str]:
    """Where robot and cloud do not agree once all decodes have ended; ``lossless``: no outages."""
    lost = robot.sent - cloud.drafts
    checks = {
        f"{robot.answers - robot.equal} answers are not the target's own": (
            robot.equal == robot.answers
        ),
        f"rounds emitted {robot.emitted} tokens of {robot.tokens}": robot.emitted == robot.tokens,
        f"{robot.rounds} rounds and {cloud.verdicts} verdicts": robot.rounds == cloud.verdicts,
        f"{robot.on_drafts} rounds on drafts, {cloud.answers.drafts} judged": (
            robot.on_drafts == cloud.answers.drafts
        ),
        f"of {cloud.drafts} drafts that came, {cloud.accounted} are accounted for": (
            cloud.drafts == cloud.accounted
        ),
        f"{lost} drafts of {robot.sent} did not come": lost == 0 or (lost > 0 and not lossless),
        f"{cloud.refused} drafts were refused": cloud.refused == 0,
    }
    return [text for text, holds in checks.items() if not holds]
