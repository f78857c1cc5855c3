"""When, before a motion's end, the next decision may begin (parameter ``lead_time``)."""

from __future__ import annotations

import math
from collections import deque

from .motion import Motion

BY_ITSELF = -1.0  # the setting: from what decisions took lately
MOST = 2.0  # s; whatever decisions take, none begins earlier
REMEMBERED = 8  # decisions
SHARE = 0.75  # of them, whose actions are to be there as the motion ends
WORTH = 0.25  # of a decision's time, at least, that must fall into the motion


class LeadTime:
    """The time from a decision's frame to its verified action: a high quantile of the last ones.

    An action that is there too early waits and has an older frame; for one that is late the robot
    stands. So the quantile is a high one. 0 before the first decision: it is made standing.
    """

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def took(self, seconds: float) -> None:
        """A decision's action is known, ``seconds`` after its frame was taken."""
        if math.isfinite(seconds):
            self._took.append(max(0.0, seconds))

    @property
    def seconds(self) -> float:
        """What a decision takes, s."""
        if not self._took:
            return 0.0
        ordered = sorted(self._took)
        return ordered[math.ceil(SHARE * len(ordered)) - 1]

    def before_end(self, motion: Motion, lead_time: float) -> float:
        """How long before this motion's planned end the next decision may begin, s; 0: not before.

        Not earlier than ``Motion.leads``. By itself, only where it is worth it: a decision on the
        move that comes to nothing (the base moved on, out of its reach) delays the one after it
        by what of it does not fall into the motion.
        """
        if lead_time != BY_ITSELF:
            return motion.leads(lead_time)
        seconds = motion.leads(min(MOST, self.seconds))
        return seconds if seconds >= WORTH * self.seconds else 0.0
