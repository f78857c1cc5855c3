"""Odometry as the navigator uses it: where the base was when, and whether that can be relied on."""

from __future__ import annotations

import math

from .clock_offset import FARTHEST_CLOCK, OffsetReport, StampOffset, clock_problem
from .events import Odometry
from .pose import Pose
from .settings import Settings
from .track import Track

AWAY = 1.0  # m since a frame: the decision is about another place
FAR = math.radians(90)  # the same for a turn
MOVED_AWAY = "the robot has moved away from where its frame was taken"
LATE = 0.5  # s; no message is taken to be later than that beyond the least latency


class Odometer:
    """A track by this computer's clock, and how far the base's clock is from that.

    Each pose counts for when its message came, less what the message was later than others: for
    that the stamps must only tell one message from the next.
    """

    def __init__(self) -> None:
        self.settings = Settings()
        self._track = Track()
        self._clock = StampOffset()
        self._report = OffsetReport("odometry's")

    @property
    def newest(self) -> Pose:
        """The last pose that was news; there must be one."""
        return self._track.newest

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which its clock is ahead, less its least latency; None: not known."""
        return None if self.settings.odometry == "off" else self._clock.value

    def add(self, event: Odometry, now: float) -> str:
        """Odometry came; a sentence for people where there is something to say."""
        if not (event.pose.sane and abs(event.age) <= FARTHEST_CLOCK):
            return "odometry that is not a number, or no place, was dropped"
        late = min(LATE, max(0.0, event.age + (self._clock.value or 0.0)))
        at = event.stamp + round((event.age - late) * 1e9)
        if self._track.add(event.pose, event.stamp, now, self.settings.odometry_timeout, at):
            self._clock.add(-event.age, now)
        return self._report.sentence(self._clock.value) if self._clock.known else ""

    def locates(self, now: float) -> bool:
        """Whether it tells where the base is."""
        settings = self.settings
        return settings.odometry != "off" and self._track.silence(now) <= settings.odometry_timeout

    def falters(self, now: float) -> bool:
        """Whether a message that was due has not come."""
        return self._track.falters(now)

    def missed(self, now: float) -> bool:
        """Whether it is needed and does not tell."""
        needed = {"off": False, "required": True, "auto": self._track.begun}
        return needed[self.settings.odometry] and not self.locates(now)

    def missing(self, now: float) -> str:
        """What to tell people while it does not tell."""
        hung = self._track.hangs(now, self.settings.odometry_timeout)
        return "odometry is missing" + (": its stamps do not go on" if hung else "")

    def at(self, time: int) -> Pose | None:
        """Where the base was at ``time`` (ns, this computer's ROS clock); None: not known."""
        return self._track.at(time)

    def lost_since(self, time: int, now: float, turned: float, on_the_move: bool) -> str:
        """Why a step cannot count from where the base was at ``time``; empty if it can.

        ``turned``: rad that it may have turned since. ``on_the_move``: it may have been moving, so
        that a step from anywhere else would be another one.
        """
        if self.missed(now):
            return self.missing(now)
        located, limit = self.locates(now), self.settings.clock_offset_limit
        if located and (problem := clock_problem("odometry's", self.clock_offset or 0.0, limit)):
            return problem
        if on_the_move and not (located and self.at(time)):
            return "its frame was taken on the move, and it is not known where"
        metres, radians = self._track.moved_since(time)
        if metres > AWAY or radians > turned:
            return MOVED_AWAY
        return ""
