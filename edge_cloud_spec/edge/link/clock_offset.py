"""How far the cloud's clock is ahead of the robot's, from the times on messages.

NTP's arithmetic (RFC 5905, section 8): a message leaves at t1 by the robot's clock and arrives at
t2 by the cloud's; an answer leaves at t3 by the cloud's and arrives at t4 by the robot's. The
offset is ((t2 - t1) + (t3 - t4)) / 2, and wrong by half of the round trip at most, however unequal
the two ways are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT = 32  # samples
MAX_AGE_S = 300.0  # of a sample
DRIFT = 100e-6  # by which two clocks may part, of the time that passed; crystals are within 50e-6


@dataclass(frozen=True)
class Offset:
    """The cloud's clock less the robot's, s; the truth is within ``uncertainty_s`` of it."""

    offset_s: float
    uncertainty_s: float

    def agrees(self, other: Offset) -> bool:
        """Whether both can be true."""
        apart = abs(self.offset_s - other.offset_s)
        return apart <= self.uncertainty_s + other.uncertainty_s


class ClockOffset:
    """The best of the samples of the last minutes: the one with the shortest round trip.

    A sample that contradicts older ones shows that a clock was set: those are forgotten.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Offset]] = deque(maxlen=KEPT)  # when, and what
        self.steps = 0  # times that a clock was set

    def observe(self, t1: int, t2: int, t3: int, t4: int, now: float) -> bool:
        """A message and its answer, ns (see above); ``now`` is steady time, s.

        False where these times cannot be: a clock was set meanwhile, or the cloud lies.
        """
        round_trip_ns = (t4 - t1) - (t3 - t2)
        if round_trip_ns < 0 or t3 < t2 or t4 < t1:
            return False
        sample = Offset(((t2 - t1) + (t3 - t4)) / 2e9, round_trip_ns / 2e9)
        kept = [(when, old) for when, old in self._samples if sample.agrees(_aged(old, now - when))]
        self.steps += bool(self._samples and not kept)
        self._samples = deque([*kept, (now, sample)], KEPT)
        return True

    def at(self, now: float) -> Offset | None:
        """The offset and its uncertainty at this steady time (s); None where it is not known."""
        aged = [_aged(old, now - when) for when, old in self._samples if now - when <= MAX_AGE_S]
        return min(aged, key=lambda sample: sample.uncertainty_s, default=None)


def _aged(sample: Offset, seconds: float) -> Offset:
    """A sample after this time: the clocks drift apart."""
    return Offset(sample.offset_s, sample.uncertainty_s + DRIFT * max(0.0, seconds))
