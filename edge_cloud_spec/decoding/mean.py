"""Running means that weigh recent observations more, and the yield of passes."""

from __future__ import annotations

import math

OBSERVATION_DECAY = 0.995  # weight of an observation relative to the next one


class Mean:
    """An exponentially decayed mean with a prior, which counts as ``weight`` observations.

    ``total`` and ``count`` are over the observations only, without decay.
    """

    def __init__(self, prior: float, weight: float = 0.0, decay: float = OBSERVATION_DECAY) -> None:
        self._sum, self._weight = prior * weight, weight
        self._prior, self._decay = prior, decay
        self.total, self.count = 0.0, 0

    def observe(self, value: float) -> None:
        """Add an observation."""
        self.total += value
        self.count += 1
        self._sum = self._sum * self._decay + value
        self._weight = self._weight * self._decay + 1

    @property
    def value(self) -> float:
        """The mean; the prior before any observation."""
        return self._sum / self._weight if self._weight else self._prior

    @property
    def known(self) -> bool:
        """Whether there is an observation, or a prior with a weight."""
        return self._weight > 0


PASS_DECAY = 0.99  # weight of a pass relative to the next one
MIN_PASS_S = 1e-4  # of the target, to avoid a division by 0


class PassYield:
    """The mean yield of the target's passes: tokens per second."""

    def __init__(self) -> None:
        self._tokens, self._seconds = Mean(0.0, decay=PASS_DECAY), Mean(0.0, decay=PASS_DECAY)
        self._squares = Mean(0.0, decay=PASS_DECAY)  # of the tokens of a pass

    def observe(self, tokens: int, seconds: float) -> None:
        """Record a pass that added ``tokens`` tokens in ``seconds``."""
        self._tokens.observe(tokens)
        self._squares.observe(tokens * tokens)
        self._seconds.observe(seconds)

    @property
    def count(self) -> int:
        """The number of passes recorded."""
        return self._seconds.count

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self._tokens.value / max(self._seconds.value, MIN_PASS_S)

    @property
    def upper_rate(self) -> float:
        """Tokens per second if the mean of all passes were a standard error above those
        recorded."""
        tokens = self._tokens.value
        variance = max(0.0, self._squares.value - tokens**2) / max(1, self.count)
        return (tokens + math.sqrt(variance)) / max(self._seconds.value, MIN_PASS_S)
