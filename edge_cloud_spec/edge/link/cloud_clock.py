"""How far the cloud's clock is ahead of the robot's, from the times in messages."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from ...wire.frames import MAX_STAMPED, echo_of, with_sent

STAMP_EVERY_S = 1.0  # least time between two stamped messages
ECHO_DUE_S = 5.0  # after which a stamp without an echo is forgotten, as older clouds send none
KEPT = 32  # samples of the clock offset
MAX_AGE_S = 300.0  # of a sample
DRIFT = 100e-6  # assumed relative drift of two clocks; crystals are within 50e-6


@dataclass(frozen=True)
class Offset:
    """The cloud's clock minus the robot's, s, correct within ``uncertainty_s``."""

    offset_s: float
    uncertainty_s: float

    def agrees(self, other: Offset) -> bool:
        """Whether the two intervals overlap."""
        apart = abs(self.offset_s - other.offset_s)
        return apart <= self.uncertainty_s + other.uncertainty_s


class ClockOffset:
    """Estimates how far the cloud's clock is ahead of the robot's, from times in messages.

    NTP's arithmetic (RFC 5905, section 8): a message leaves at t1 by the robot's clock and arrives
    at t2 by the cloud's; an answer leaves at t3 by the cloud's and arrives at t4 by the robot's.
    The offset is ((t2 - t1) + (t3 - t4)) / 2, with an error of at most half the round trip, however
    asymmetric the link. So the sample with the shortest round trip in the last minutes is the best.
    A sample that contradicts older ones shows that a clock was set: the older ones are forgotten.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Offset]] = deque(maxlen=KEPT)  # monotonic time and sample
        # The stamp without an echo yet, and monotonic time.
        self._stamped: tuple[int, float] | None = None

    def observe(self, t1: int, t2: int, t3: int, t4: int, now: float) -> bool:
        """Add the four times of a message and its answer, ns; ``now`` is monotonic, s.

        False if they are impossible: a clock was set meanwhile, or the cloud lies.
        """
        round_trip_ns = (t4 - t1) - (t3 - t2)
        if round_trip_ns < 0 or t3 < t2 or t4 < t1:
            return False
        sample = Offset(((t2 - t1) + (t3 - t4)) / 2e9, round_trip_ns / 2e9)
        kept = [(when, old) for when, old in self._samples if sample.agrees(_aged(old, now - when))]
        self._samples = deque([*kept, (now, sample)], KEPT)
        return True

    def at(self, now: float) -> Offset | None:
        """The offset and its uncertainty at this monotonic time (s); None if it is unknown."""
        aged = [_aged(old, now - when) for when, old in self._samples if now - when <= MAX_AGE_S]
        return min(aged, key=lambda sample: sample.uncertainty_s, default=None)

    def stamp(self, data: bytes) -> bytes:
        """Add the time to a message; done for one message per second."""
        now = time.monotonic()
        due = STAMP_EVERY_S if self._stamped is None or not self._stamped[0] else ECHO_DUE_S
        if len(data) > MAX_STAMPED or (self._stamped and now - self._stamped[1] < due):
            return data
        sent_ns = time.time_ns()
        self._stamped = (sent_ns, now)
        return with_sent(data, sent_ns)

    def read_echo(self, data: bytes) -> None:
        """Update the offset from the cloud's times, if the message has them."""
        if not self._stamped or not self._stamped[0] or len(data) > MAX_STAMPED:
            return
        received_ns, (sent_ns, sent_at) = time.time_ns(), self._stamped
        echo = echo_of(data)
        if echo is None or echo.sent_ns != sent_ns:
            return
        self._stamped = (0, sent_at)
        now = time.monotonic()
        self.observe(sent_ns, echo.received_ns, echo.answered_ns, received_ns, now)


def _aged(sample: Offset, seconds: float) -> Offset:
    """The sample after ``seconds``: its uncertainty grows, as clocks drift apart."""
    return Offset(sample.offset_s, sample.uncertainty_s + DRIFT * max(0.0, seconds))
