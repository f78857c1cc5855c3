"""Running means, in which what was observed lately weighs more, and what passes yield by them."""

from __future__ import annotations

DECAY = 0.995  # weight of an observation, one observation later


class Mean:
    """A mean with a prior, which counts for ``weight`` observations.

    ``total`` and ``count`` are of the observations alone, without decay.
    """

    def __init__(self, prior: float, weight: float = 0.0, decay: float = DECAY) -> None:
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
        """The mean; the prior where there is no weight."""
        return self._sum / self._weight if self._weight else self._prior

    @property
    def known(self) -> bool:
        """Whether it has an observation, or a prior with a weight."""
        return self._weight > 0


PASS_DECAY = 0.99  # weight of a pass, one pass later
MIN_PASS_S = 1e-4  # of the target


class PassYield:
    """The yield of the target's passes: tokens, and the seconds that they take."""

    def __init__(self) -> None:
        self._tokens, self._seconds = Mean(0.0, decay=PASS_DECAY), Mean(0.0, decay=PASS_DECAY)

    def observe(self, tokens: int, seconds: float) -> None:
        """Add a pass."""
        self._tokens.observe(tokens)
        self._seconds.observe(seconds)

    @property
    def count(self) -> int:
        """The passes so far."""
        return self._seconds.count

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self._tokens.value / max(self._seconds.value, MIN_PASS_S)
