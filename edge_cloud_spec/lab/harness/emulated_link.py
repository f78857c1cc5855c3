"""The emulated radio link of both harnesses: a delay, jitter and a rate each way, and outages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from ...errors import UserError

BYTES_PER_MBIT = 1e6 / 8


@dataclass(frozen=True)
class LinkProfile:
    """Delay, jitter, rate and outages of a link.

    Each way takes ``delay_ms`` plus a uniform jitter of up to ``jitter_ms``, and carries
    ``rate_mbit`` Mbit/s (0: unlimited). An outage of ``outage_s`` seconds begins every
    ``outage_every_s`` seconds (0: never). Raises UserError.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mbit: float = 0.0
    outage_every_s: float = 0.0
    outage_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.delay_ms, self.jitter_ms, self.rate_mbit) < 0:
            raise UserError("a link's delay, jitter and rate are 0 or more")
        if not (
            self.outage_every_s == self.outage_s == 0 or 0 < self.outage_s < self.outage_every_s
        ):
            raise UserError("an outage is EVERY,FOR in seconds, and over before the next: 60,2")

    def outages(self) -> Iterator[tuple[float, float]]:
        """Begin and end of each, in seconds from the start; without an end if there are any."""
        if self.outage_s:
            for number in itertools.count(1):
                begin = number * self.outage_every_s
                yield begin, begin + self.outage_s


class Direction:
    """One direction of the link; messages arrive in the order in which they are sent."""

    def __init__(self, profile: LinkProfile, seed: int) -> None:
        self.profile = profile
        self._random = Random(seed)
        self._free = 0.0  # when the last byte so far is sent
        self._last = 0.0  # and when it arrives

    def arrival(self, now: float, size: int) -> float:
        """When ``size`` bytes that are sent at ``now`` arrive; all times in seconds."""
        profile = self.profile
        rate = profile.rate_mbit * BYTES_PER_MBIT
        self._free = max(self._free, now) + (size / rate if rate else 0.0)
        jitter = profile.jitter_ms * self._random.random() if profile.jitter_ms else 0.0
        self._last = max(self._last, self._free + (profile.delay_ms + jitter) / 1e3)
        return self._last

    def clear(self) -> None:
        """An outage: what was in flight is lost, and delays nothing after it."""
        self._free = self._last = 0.0
