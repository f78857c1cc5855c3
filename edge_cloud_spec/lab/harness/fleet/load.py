"""What the robots of a fleet do, and over which links."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ..emulated_link import LinkProfile
from ..regimes import Regime

LINK_SPREAD = 0.5  # a robot's delay is the regime's, this share shorter to this share longer


@dataclass(frozen=True)
class FleetLoad:
    """What robots do: answers of ``tokens`` tokens after pauses of mean ``think_s``, for a time.

    ``seconds`` after which no new answer is begun. ``jitter_ms`` of each way of the link.
    """

    tokens: int = 256
    think_s: float = 0.0
    seconds: float = 20.0
    jitter_ms: float = 0.0
    seed: int = 0

    def random(self, robot: int) -> Random:
        """One robot's own."""
        return Random(f"{self.seed} robot {robot}")

    def link(self, regime: Regime, robot: int) -> LinkProfile:
        """One robot's link; the mean delay of all is the regime's."""
        share = Random(f"{self.seed} link {robot}").uniform(1 - LINK_SPREAD, 1 + LINK_SPREAD)
        return LinkProfile(regime.one_way_ms * share, self.jitter_ms)

    def answer_seed(self, robot: int, number: int) -> int:
        """The seed of a robot's answer of this number."""
        return (self.seed * 10_007 + robot) * 100_003 + number
