"""What is worth showing of a run as it happens."""

from __future__ import annotations

from dataclasses import dataclass

from .decision import Decision, ShownRound


@dataclass(frozen=True)
class RoundSettled:
    """A round's verdict and words are known."""

    decision: Decision
    round: ShownRound


@dataclass(frozen=True)
class ActionStarted:
    """The navigator began an action."""

    decision: Decision


@dataclass(frozen=True)
class DecisionFinished:
    """A decision's answer is complete and its statistics are known."""

    decision: Decision


@dataclass(frozen=True)
class ProblemReported:
    """A node reported a problem."""

    text: str


RunEvent = RoundSettled | ActionStarted | DecisionFinished | ProblemReported
