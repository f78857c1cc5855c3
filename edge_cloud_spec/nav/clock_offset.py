"""Estimates the clock offset of a stamped source from the arrival of its messages alone.

One message gives ``stamp - receive time``: the offset minus the message's latency. A clock that is
behind cannot be told from a slow driver, so the estimate is the offset minus the *least* latency.
Stamps in the future are certain: no latency causes them.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low

BIN = 1.0  # s
BINS = 10  # the window; half of it is needed to follow a changed clock, and outlasts a burst
SURE = 3  # bins; with so many the median excludes one outlier
FARTHEST_CLOCK = 1e11  # s; over a thousand years
ANOTHER_TIME = 1e8  # s, three years; no clock that was set is so far off
SAME_CLOCK = 0.1  # s; sources closer than this count as having the same clock


class SourceClock:
    """The offset of one source, s (positive: ahead), minus its least latency.

    It is the median of the largest ``stamp - receive time`` of each of the last seconds: jitter
    does not affect the largest, and neither a burst of late messages nor a few false stamps the
    median.
    """

    def __init__(self, source: str) -> None:
        self._source, self._reported = source, 0.0
        self._bins: deque[tuple[int, float]] = deque(maxlen=BINS)

    def receive(self, ahead: float, now: float) -> None:
        """Add a message that arrived at ``now`` (monotonic s) with a stamp ``ahead`` s of our
        clock.

        Call it for new stamps only, as a repeated one says nothing about the clock, and at most
        ``FARTHEST_CLOCK`` ahead.
        """
        number = math.floor(now / BIN)
        if self._bins and self._bins[-1][0] == number:
            ahead = max(ahead, self._bins.pop()[1])
        self._bins.append((number, ahead))

    @property
    def offset(self) -> float | None:
        """How far the clock is ahead, s; None before the first message."""
        return median_low(ahead for _, ahead in self._bins) if self._bins else None

    def news(self) -> str:
        """A sentence for the log when a notable offset is certain or has changed; else empty."""
        offset = self.offset
        if offset is None or len(self._bins) < SURE:
            return ""
        if abs(offset - self._reported) <= SAME_CLOCK + 0.1 * abs(self._reported):
            return ""
        self._reported = offset
        if abs(offset) <= SAME_CLOCK:
            return f"{self._source} stamps agree with this computer's clock again"
        return f"{clock_sentence(self._source, offset)}; synchronize the clocks (chrony)"


def camera_clock(measured: float, base: float | None) -> float:
    """The offset of the clock that stamps the camera's frames, s; positive: ahead of ours.

    ``measured``: stamp minus arrival of the frames, s, so offset minus latency. ``base``: the
    offset of odometry's stamps; None if unknown. A camera is assumed to use this computer's clock
    (0) or the base's: the smaller offset that does not make the latency negative. If neither fits,
    the camera has a third clock, and its offset is ``measured``.
    """
    known = [0.0] if base is None else [0.0, base]
    return min((clock for clock in known if clock >= measured - SAME_CLOCK), default=measured)


def clock_sentence(source: str, offset: float) -> str:
    """A sentence for the user about an ``offset`` (s) of the stamps of ``source``."""
    if abs(offset) > ANOTHER_TIME:
        return (
            f"{source} stamps are of another time, as of a simulator (then give every node "
            "use_sim_time) or of a driver that counts from its start (have it stamp on arrival)"
        )
    if offset > 0.0:
        return f"{source} stamps are {offset:.2f} s ahead of this computer's clock"
    return f"{source} stamps are {-offset:.2f} s behind this computer's clock, or come so late"


def clock_problem(source: str, offset: float, limit: float) -> str:
    """Why an ``offset`` beyond ``limit`` (s) forbids motion; empty within the limit."""
    if abs(offset) <= limit:
        return ""
    return (
        f"{clock_sentence(source, offset)}, more than the parameter clock_offset_limit "
        f"({limit:g} s); synchronize the clocks (chrony)"
    )
