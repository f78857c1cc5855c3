"""The load that a fleet's robots make, and a record of each robot's rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from edge_cloud_spec.edge.runner import Outcome

from ..cost_profiles import CostProfile
from ..emulated_link import LinkProfile


@dataclass(frozen=True)
class RoundTime:
    """One round: when its verdict came, its duration and tokens; times in s.

    ``first``: the answer's first round, which includes the prompt. ``draft_s``: time until the
    draft of ``drafted`` tokens was sent; ``verify_s``: as reported by the verifier.
    """

    settled: float
    seconds: float
    tokens: int
    first: bool = False
    draft_s: float = 0.0
    drafted: int = 0
    verify_s: float = 0.0


@dataclass
class RobotActivity:
    """One robot's rounds. ``wrong``: answers that differ from the target's; ``lost``: unfinished
    ones.

    ``spans``: seconds and tokens after the first round, for each complete answer.
    """

    rounds: list[RoundTime] = field(default_factory=list)
    spans: list[tuple[float, int]] = field(default_factory=list)
    answers: int = 0
    wrong: int = 0
    lost: int = 0

    def add(self, outcome: Outcome, own: tuple[int, ...], offset: float = 0.0) -> None:
        """Add an answer; ``own``: the target's tokens; ``offset`` (s) is added to its times."""
        rounds = [
            RoundTime(
                one.settled + offset,
                one.settled - one.start,
                one.emitted,
                not place,
                max(0.0, one.sent - one.start),
                one.drafted,
                one.verify_s,
            )
            for place, one in enumerate(outcome.stats.rounds)
        ]
        self.rounds += rounds
        self.lost += not outcome.completed
        self.wrong += outcome.completed and outcome.tokens != own
        self.finish(rounds if outcome.completed else ())

    def finish(self, rounds: Sequence[RoundTime]) -> None:
        """Count an answer that has ended; ``rounds``: its rounds, if it is complete."""
        self.answers += 1
        if len(rounds) > 1:
            seconds = rounds[-1].settled - rounds[0].settled
            self.spans.append((seconds, sum(one.tokens for one in rounds[1:])))


LINK_SPREAD = 0.5  # a robot's delay is the cost profile's, this share shorter to this share longer


@dataclass(frozen=True)
class FleetLoad:
    """Each robot decodes answers of ``tokens`` tokens, with pauses of mean ``think_s`` seconds.

    After ``seconds`` no answer is begun. ``jitter_ms``: of each way of the link.
    """

    tokens: int = 256
    think_s: float = 0.0
    seconds: float = 20.0
    jitter_ms: float = 0.0
    seed: int = 0

    def random(self, robot: int) -> Random:
        """A robot's own random generator."""
        return Random(f"{self.seed} robot {robot}")

    def pause(self, random: Random) -> float:
        """The pause before a robot's next answer, s."""
        return random.expovariate(1 / self.think_s) if self.think_s else 0.0

    def link(self, cost_profile: CostProfile, robot: int) -> LinkProfile:
        """A robot's link; the mean delay over all robots is the cost profile's."""
        share = Random(f"{self.seed} link {robot}").uniform(1 - LINK_SPREAD, 1 + LINK_SPREAD)
        return LinkProfile(cost_profile.one_way_ms * share, self.jitter_ms)

    def answer_seed(self, robot: int, number: int) -> int:
        """The seed of a robot's ``number``-th answer."""
        return (self.seed * 10_007 + robot) * 100_003 + number
