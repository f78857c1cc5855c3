"""Odometry as the navigator uses it: where the base was when, and whether that can be relied on."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from .clock_offset import FARTHEST_CLOCK, SourceClock, clock_problem
from .events import Odometry
from .motion import RATE_S
from .pose import Pose, between, wrap
from .settings import Settings

AWAY = 1.0  # m since a frame: the decision is about another place
FAR = math.radians(90)  # the same for a turn
MOVED_AWAY = "the robot has moved away from where its frame was taken"
LATE = 0.5  # s; no message is taken to be later than that beyond the least latency


class Odometer:
    """The track of poses by this computer's clock, and the offset of the base's clock.

    A pose is dated by its message's arrival, less the delay beyond the quickest messages. So the
    stamps need only tell one message from the next.
    """

    def __init__(self) -> None:
        self.settings = Settings()
        self.track = Track()
        self._clock = SourceClock("odometry's")

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which its clock is ahead, less its least latency; None: not known."""
        return None if self.settings.odometry == "off" else self._clock.offset

    def add(self, event: Odometry, now: float) -> str:
        """Take a message of odometry; returns a sentence for the log, mostly empty."""
        if not (event.pose.sane and abs(event.age) <= FARTHEST_CLOCK):
            return "odometry that is not a number, or no place, was dropped"
        late = min(LATE, max(0.0, event.age + (self._clock.offset or 0.0)))
        at = event.stamp + round((event.age - late) * 1e9)
        if self.track.add(event.pose, event.stamp, now, self.settings.odometry_timeout, at):
            self._clock.hear(-event.age, now)
        return self._clock.news()

    def locates(self, now: float) -> bool:
        """Whether odometry is recent enough to tell where the base is."""
        settings = self.settings
        return settings.odometry != "off" and self.track.silence(now) <= settings.odometry_timeout

    def rests(self, bounds: tuple[float, float]) -> bool:
        """Whether the base is slower than this now, in m/s and rad/s."""
        moved = self.track.made_within(RATE_S)
        return all(real < bound * RATE_S for real, bound in zip(moved, bounds, strict=True))

    def problem(self, now: float) -> str:
        """Why odometry is missing although it is needed; empty if nothing is wrong."""
        needed = {"off": False, "required": True, "auto": self.track.begun}
        is_missed = needed[self.settings.odometry] and not self.locates(now)
        return self.missing(now) if is_missed else ""

    def missing(self, now: float) -> str:
        """The sentence for people while odometry is missing."""
        hung = self.track.hangs(now, self.settings.odometry_timeout)
        return "odometry is missing" + (": its stamps do not go on" if hung else "")

    def lost_since(self, time: int, now: float, turned: float, on_the_move: bool) -> str:
        """Why a step cannot count from where the base was at ``time``; empty if it can.

        ``turned``: rad that it may have turned since. ``on_the_move``: it may have been moving, so
        that a step from anywhere else would be another one.
        """
        if problem := self.problem(now):
            return problem
        located, limit = self.locates(now), self.settings.clock_offset_limit
        if located and (problem := clock_problem("odometry's", self.clock_offset or 0.0, limit)):
            return problem
        if on_the_move and not (located and self.track.at(time)):
            return "its frame was taken on the move, and it is not known where"
        metres, radians = self.track.moved_since(time)
        if metres > AWAY or radians > turned:
            return MOVED_AWAY
        return ""


KEPT = 400  # poses, to find the one of a frame
APART = 25_000_000  # ns between them at least, so that they reach back for ten seconds
SAME_TIME = 200_000_000  # ns between a frame and the odometry that stands for it
SWAY = 500_000_000  # ns in which a base that sways or trots is back
SOONEST = 0.08  # s; no silence shorter than this is one
PERIODS = 1.8  # of odometry, without which it falters
LEARNING = 0.2  # weight of the newest period in their mean


class Track:
    """Poses by time (ns), of a source that is as fresh as its stamps are.

    A driver that hangs sends its last message again and again, so a stamp that stands still is no
    news, however often it comes. One that goes back is late, or that of a driver (a clock, a
    simulator) that began anew: it is dropped, and only when nothing else has come for ``timeout``
    and the stamps go on from there, the track begins anew with them. Times are steady seconds.
    """

    def __init__(self) -> None:
        self._poses: deque[tuple[int, Pose]] = deque(maxlen=KEPT)
        self._stamp = 0  # of the newest
        self._went_on = -math.inf  # when a stamp last was news
        self._came = -math.inf  # when anything last came
        self._behind: int | None = None  # the last stamp that went back
        self._period = 0.0

    @property
    def begun(self) -> bool:
        """Whether odometry was ever received."""
        return bool(self._poses)

    @property
    def newest(self) -> Pose:
        """The newest pose; there must be one."""
        return self._poses[-1][1]

    def add(
        self, pose: Pose, stamp: int, now: float, timeout: float, at: int | None = None
    ) -> bool:
        """Add a pose; returns whether its stamp is new. ``timeout``: s of silence until missing.

        ``at``: when the base was there, if not at ``stamp``.
        """
        silence, self._came = self.silence(now), now
        if self._poses and stamp <= self._stamp:
            if not self._began_anew(stamp, silence > timeout):
                return False
            self._poses.clear()
        self._behind, self._stamp = None, stamp
        if silence <= timeout:  # a gap is no period, but odometry may have become slower
            self._period += LEARNING * (min(silence, self._longest_silence) - self._period)
        if len(self._poses) > 1 and self._poses[-1][0] - self._poses[-2][0] < APART:
            self._poses.pop()
        self._poses.append((stamp if at is None else at, pose))
        self._went_on = now
        return True

    def silence(self, now: float) -> float:
        """Seconds since the last new pose."""
        return now - self._went_on

    def falters(self, now: float) -> bool:
        """Whether a message that was due has not come."""
        return self.silence(now) > self._longest_silence

    def hangs(self, now: float, timeout: float) -> bool:
        """Whether messages come whose stamps do not change."""
        return self.silence(now) > timeout >= now - self._came

    def at(self, time: int) -> Pose | None:
        """Where the base was at ``time``, interpolated; None where that is not known."""
        if not self._poses:
            return None
        at, nearest = min(self._poses, key=lambda entry: abs(entry[0] - time))
        if abs(at - time) > SAME_TIME:
            return None
        others = [e for e in self._poses if (e[0] > time) != (at > time) and e[0] != at]
        if not others:
            return nearest
        other, pose = min(others, key=lambda entry: abs(entry[0] - time))
        if abs(other - at) > SAME_TIME:
            return nearest
        return between(nearest, pose, (time - at) / (other - at))

    def made_within(self, seconds: float) -> tuple[float, float]:
        """Metres and radians between the newest pose and the one ``seconds`` earlier."""
        return self.moved_since(self._poses[-1][0] - round(seconds * 1e9))

    def moved_since(self, time: int) -> tuple[float, float]:
        """Metres and radians between where the base was at ``time`` and where it is."""
        then = self.at(time)
        if then is None:
            return 0.0, 0.0
        here = self.newest
        return math.hypot(here.x - then.x, here.y - then.y), abs(wrap(here.yaw - then.yaw))

    def made_lately(self, seconds: float) -> tuple[float, float]:
        """Metres of path and radians of turning, to either side, in the last ``seconds``.

        Measured in steps of half a second, so that a base that sways on the spot makes no way.
        """
        since = self._poses[-1][0] - round(seconds * 1e9)
        lately = {at // SWAY: pose for at, pose in reversed(self._poses) if at >= since}
        pairs = list(pairwise([self.newest, *lately.values()]))
        path = sum(math.hypot(b.x - a.x, b.y - a.y) for a, b in pairs)
        return path, sum(abs(wrap(b.yaw - a.yaw)) for a, b in pairs)

    @property
    def _longest_silence(self) -> float:
        return max(SOONEST, PERIODS * self._period)

    def _began_anew(self, stamp: int, missing: bool) -> bool:
        """Whether an old stamp comes from a restarted driver, and begins the track anew."""
        if stamp == self._stamp:
            return False
        before, self._behind = self._behind, stamp
        return missing and before is not None and stamp > before
