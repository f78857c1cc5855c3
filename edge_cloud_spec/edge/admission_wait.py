"""When to come again to a verifier that has no room: as long as it said, and a little longer.

The little differs from robot to robot: those that were refused together do not come back together.
"""

from __future__ import annotations

from random import Random

JITTER = 0.25  # of the wait, at most


def spread(wait_s: float, random: Random) -> float:
    """This wait (s) or up to ``JITTER`` of it longer."""
    return wait_s * (1.0 + JITTER * random.random())


class AdmissionWait:
    """``until`` (s) is when the decode is to be opened again; None: it is not refused."""

    def __init__(self, nonce: int) -> None:
        """nonce: of the decode, drawn at random."""
        self._random = Random(nonce)
        self.until: float | None = None

    def refused(self, retry_after_s: float, now: float) -> float:
        """The verifier has no room for so long; returns ``until``."""
        self.until = now + spread(retry_after_s, self._random)
        return self.until

    def is_over(self, now: float) -> bool:
        """Whether it is time to open again."""
        return self.until is not None and now >= self.until
