"""What an acceptance rule asks of the target's rows: a token, or P as the rule needs it.

The rows themselves may stay on another device; numpy's are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .grammar import AllowedAfter, masked
from .noise import Purpose
from .policy import SamplingPolicy
from .propose import coupled_token
from .random_source import RandomSource
from .screen import screened_distribution, screened_token
from .token_distribution import TokenDistribution, distribution_of

SMALL = 4096  # tokens of a vocabulary for which it is quicker to compute all in float64


class TargetRow(Protocol):
    """P after one node, or what is left of it; the same numbers are tested, drawn and told."""

    def at(self, token: int) -> float:
        """The probability of one token."""

    def residual(self, draft: TokenDistribution) -> TargetRow:
        """norm(max(0, P - Q)); see ``TokenDistribution.residual``."""

    def draw(
        self, random_source: RandomSource, purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """A token x with its probability."""

    def told(self) -> TokenDistribution:
        """All its numbers, for the robot that resamples."""


class TargetRows(Protocol):
    """The target's rows after the prefix (node -1) and after each node of a draft.

    What is asked of a row that holds NaN or an infinite maximum raises ValueError.
    """

    def token(self, node: int, policy: SamplingPolicy, position: int) -> int:
        """The target's own token after this node, which stands at this position of the answer."""

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        """P after this node."""


@dataclass(frozen=True, eq=False)
class LogitRows:
    """Rows of logits float32 [1 + n, V] (row 0: after the prefix), in numpy.

    Greedy and coupled tokens are those of ``coupled_token``; the rows of P, ``distribution_of`` up
    to float32's rounding. Only what a rule asks for is computed, of ``allowed`` tokens, too.
    """

    logits: NDArray[np.float32]
    allowed: AllowedAfter | None = None

    def token(self, node: int, policy: SamplingPolicy, position: int) -> int:
        logits = self._logits(node)
        if len(logits) < SMALL:
            return coupled_token(logits, policy, position)
        return screened_token(logits, policy, position)

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        logits = self._logits(node)
        if len(logits) < SMALL:
            return distribution_of(logits, policy)
        return screened_distribution(logits, policy)

    def _logits(self, node: int) -> NDArray[np.float32]:
        logits = self.logits[node + 1]
        return logits if self.allowed is None else masked(logits, self.allowed(node))
