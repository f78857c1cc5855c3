"""How far the clock of a stamped source is from this computer's, from its messages alone.

One message tells ``stamp - receive time``: the clock's offset less the message's latency. A clock
that is behind cannot be told from a driver that is slow, so what is measured here is the offset
less the *least* latency. Stamps that lie ahead are certain: no latency makes them.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

BIN = 1.0  # s
BINS = 10  # the window; half of it takes to follow a clock that was set, and outlasts a burst
SURE = 3  # bins, of which the median passes one by
FARTHEST_CLOCK = 1e11  # s; a thousand years and more
SAME_CLOCK = 0.1  # s; sources nearer than that are taken to have one clock


class SourceClock:
    """The offset of one source: seconds by which its clock is ahead, less its least latency.

    The median of the largest ``stamp - receive time`` of each of the last seconds: jitter does not
    reach the largest, and neither a burst of late messages nor a few false stamps the median.
    """

    def __init__(self, source: str) -> None:
        self._source, self._said = source, 0.0
        self._bins: deque[tuple[int, float]] = deque(maxlen=BINS)

    def hear(self, ahead: float, now: float) -> None:
        """Take the stamp of a message that came at ``now`` (steady s), ``ahead`` s of our clock.

        Only new stamps count: one that is repeated tells nothing about the clock.
        """
        if not abs(ahead) <= FARTHEST_CLOCK:
            return
        number = math.floor(now / BIN)
        if self._bins and self._bins[-1][0] == number:
            ahead = max(ahead, self._bins.pop()[1])
        self._bins.append((number, ahead))

    @property
    def offset(self) -> float | None:
        """Seconds by which the clock is ahead; None before the first message."""
        return median(ahead for _, ahead in self._bins) if self._bins else None

    def news(self) -> str:
        """A sentence for people when a notable offset is sure, or has changed; else empty."""
        offset = self.offset
        if offset is None or len(self._bins) < SURE:
            return ""
        if abs(offset - self._said) <= SAME_CLOCK + 0.1 * abs(self._said):
            return ""
        self._said = offset
        if abs(offset) <= SAME_CLOCK:
            return f"{self._source} stamps agree with this computer's clock again"
        return f"{clock_sentence(self._source, offset)}; synchronize the clocks (chrony)"


def camera_clock(measured: float, base: float | None) -> float:
    """The offset of the clock that stamps the camera's frames, s; positive: ahead of ours.

    ``measured``: stamp minus arrival of the frames, s, so offset minus latency. ``base``: the
    offset of odometry's stamps; None if unknown. A camera is taken to use this computer's clock
    (0) or the base's: the smaller offset that leaves no negative latency. If neither does, the
    camera has a third clock, and its offset is ``measured``.
    """
    known = [0.0] if base is None else [0.0, base]
    return min((clock for clock in known if clock >= measured - SAME_CLOCK), default=measured)


def clock_sentence(source: str, offset: float) -> str:
    """A sentence for people about an ``offset`` (s) of the stamps of ``source``."""
    if offset > 0.0:
        return f"{source} stamps are {offset:.2f} s ahead of this computer's clock"
    return f"{source} stamps are {-offset:.2f} s behind this computer's clock, or come so late"


def clock_problem(source: str, offset: float, limit: float) -> str:
    """Why nothing may move with an ``offset`` beyond ``limit`` (s); empty within the limit."""
    if abs(offset) <= limit:
        return ""
    return (
        f"{clock_sentence(source, offset)}, more than the parameter clock_offset_limit "
        f"({limit:g} s); synchronize the clocks (chrony)"
    )
