"""What passes of the target give for the time that they take."""

from __future__ import annotations

from .mean import Mean

DECAY = 0.99  # weight of a pass, one pass later
MIN_PASS_S = 1e-4  # of the target


class PassYield:
    """What passes of the target give: tokens, and the seconds that they take."""

    def __init__(self) -> None:
        self._tokens, self._seconds = Mean(0.0, decay=DECAY), Mean(0.0, decay=DECAY)

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
