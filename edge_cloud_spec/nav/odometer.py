"""Odometry for the navigator: the base's pose over time, and whether it can be relied on."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from .clock_offset import FARTHEST_CLOCK, SourceClock, clock_problem
from .events import Odometry
from .motion import RATE_S
from .pose import Pose, apart, between
from .settings import NavigatorSettings

FRAME_AWAY_M = 1.0  # m from the frame's pose: the decision is about another place
FRAME_AWAY_RAD = math.radians(90)  # the same for turning
MOVED_AWAY = "the robot has moved away from where its frame was taken"
ODOMETRY_RATE_HZ = 10.0  # messages a second
LONGEST_PERIOD_S = 5.0  # s between two messages that are still a rate
LONGEST_DELAY_S = 0.5  # s; the largest delay assumed beyond the least latency


class Odometer:
    """The track of poses by this computer's clock, and the offset of the base's clock.

    A pose is dated by its message's arrival, minus its delay compared with the quickest messages.
    So stamps are needed only to tell messages apart.
    """

    def __init__(self, settings: NavigatorSettings) -> None:
        self.settings = settings
        self.track = Track()
        self._dropped = ""  # why the newest message was dropped, as the end of a sentence
        self._clock = SourceClock("odometry's")

    @property
    def clock_offset(self) -> float | None:
        """How far the base's clock is ahead, s, minus the least latency; None: unknown."""
        return None if self.settings.odometry == "off" else self._clock.offset

    def receive(self, event: Odometry, now: float) -> str:
        """Take an odometry message; returns a sentence for the log, usually empty."""
        no_time = "" if abs(event.age) <= FARTHEST_CLOCK else "has a stamp that is no time"
        self._dropped = event.pose.problem or no_time
        if self._dropped:
            return f"odometry that {self._dropped} was dropped: look at its source"
        late = min(LONGEST_DELAY_S, max(0.0, event.age + (self._clock.offset or 0.0)))
        at = event.stamp + round((event.age - late) * 1e9)
        if self.track.add(event.pose, event.stamp, now, self.settings.odometry_timeout, at):
            self._clock.receive(-event.age, now)
        return self._clock.news()

    def locates(self, now: float) -> bool:
        """Whether odometry is recent enough to locate the base."""
        settings = self.settings
        return settings.odometry != "off" and self.track.silence(now) <= settings.odometry_timeout

    def newest(self, now: float) -> Pose | None:
        """The base's newest pose; None: odometry does not locate it."""
        return self.track.newest if self.locates(now) else None

    def rests(self, bounds: tuple[float, float]) -> bool:
        """Whether the base is slower than ``bounds`` (m/s, rad/s) now."""
        moved = self.track.made_within(RATE_S)
        return all(real < bound * RATE_S for real, bound in zip(moved, bounds, strict=True))

    def problem(self, now: float) -> str:
        """Why odometry is missing although it is required; empty if nothing is wrong."""
        seen = self.track.silence(now) < math.inf or bool(self._dropped)
        needed = {"off": False, "required": True, "auto": seen}
        is_missed = needed[self.settings.odometry] and not self.locates(now)
        return self.missing(now) if is_missed else ""

    def missing(self, now: float) -> str:
        """The sentence for the user while odometry is missing."""
        timeout, why = self.settings.odometry_timeout, ""
        if self.track.hangs(now, timeout):
            why = ": its stamps are 0" if not self.track.last_stamp else ": its stamps do not go on"
        elif self._dropped:
            why = f": it {self._dropped}"
        elif self.track.period > timeout:
            why = f": it comes each {self.track.period:.1f} s (odometry_timeout is {timeout:g})"
        return f"odometry is missing{why}"

    def slow(self, now: float) -> str:
        """Why motions are measured too seldom; empty if they are not."""
        period = self.track.period
        if not self.locates(now) or period * ODOMETRY_RATE_HZ <= 1.0:
            return ""
        return f"odometry comes {1.0 / period:.1f} times a second; {ODOMETRY_RATE_HZ:g} are needed"

    def lost_since(self, time: int, now: float, on_the_move: bool) -> str:
        """Why it is not known where the base was at ``time`` (ns); empty if it is.

        ``on_the_move``: it may have been moving, so that the same step from another pose would lead
        elsewhere.
        """
        if problem := self.problem(now):
            return problem
        located, limit = self.locates(now), self.settings.clock_offset_limit
        if located and (problem := clock_problem("odometry's", self.clock_offset or 0.0, limit)):
            return problem
        if on_the_move and not (located and self.track.at(time)):
            return "its frame was taken on the move, and it is not known where"
        return ""

    def moved_away(self, time: int, turned: float) -> bool:
        """Whether a step of the frame of ``time`` (ns) is out of reach from here; ``turned``: rad
        that the base may have turned since."""
        metres, radians = self.track.moved_since(time)
        return metres > FRAME_AWAY_M or radians > turned


POSES_KEPT = 400  # poses, for locating frames
POSE_SPACING_NS = 25_000_000  # ns between stored poses, so that they cover ten seconds
SAME_TIME_NS = 200_000_000  # ns between a frame and the odometry that locates it
SWAY_NS = 500_000_000  # ns in which a swaying or trotting base returns
OVERDUE_SOONEST_S = 0.08  # s; a shorter silence is never overdue
OVERDUE_PERIODS = 1.8  # periods without a message, after which odometry is overdue
PERIOD_WEIGHT = 0.2  # weight of the newest period in the mean


class Track:
    """Poses by time (ns), from a source whose stamps must advance.

    A driver that hangs repeats its last message, so a repeated stamp is no news. A message with an
    earlier stamp is late, or comes from a driver (or clock, or simulator) that restarted: it is
    dropped. Only if nothing else has come for ``timeout`` and such stamps advance, the track starts
    anew with them. Times are monotonic s.
    """

    def __init__(self) -> None:
        self._poses: deque[tuple[int, Pose]] = deque(maxlen=POSES_KEPT)
        self._stamp = self.last_stamp = 0  # the newest; that of the last message
        self._went_on = -math.inf  # when a new stamp last came
        self._came = -math.inf  # when any message last came
        self._behind: int | None = None  # the last stamp that went back
        self.period = 0.0  # s between two messages, in the mean

    @property
    def newest(self) -> Pose:
        """The newest pose; there must be one."""
        return self._poses[-1][1]

    @property
    def latest(self) -> tuple[int, Pose]:
        """The newest pose and its time (ns); there must be one."""
        return self._poses[-1]

    def add(
        self, pose: Pose, stamp: int, now: float, timeout: float, at: int | None = None
    ) -> bool:
        """Add a pose; returns whether its stamp is new. ``timeout``: s of silence until missing.

        ``at``: when the base was at this pose, if not at ``stamp``; ns.
        """
        silence, self._came, self.last_stamp = self.silence(now), now, stamp
        if self._poses and stamp <= self._stamp:
            if not self._began_anew(stamp, silence > timeout):
                return False
            self._poses.clear()
        self._behind, self._stamp = None, stamp
        if silence < LONGEST_PERIOD_S:  # more is a gap; and odometry may have become slower
            self.period += PERIOD_WEIGHT * (min(silence, self._longest_silence) - self.period)
        if len(self._poses) > 1 and self._poses[-1][0] - self._poses[-2][0] < POSE_SPACING_NS:
            self._poses.pop()
        self._poses.append((stamp if at is None else at, pose))
        self._went_on = now
        return True

    def silence(self, now: float) -> float:
        """Seconds since the last new stamp; infinite before the first."""
        return now - self._went_on

    def falters(self, now: float) -> bool:
        """Whether the next message is overdue."""
        return self.silence(now) > self._longest_silence

    def hangs(self, now: float, timeout: float) -> bool:
        """Whether messages arrive but their stamps do not advance."""
        return self.silence(now) > timeout >= now - self._came

    def at(self, time: int) -> Pose | None:
        """The pose at ``time`` (ns), interpolated; None if unknown."""
        low, high = time - SAME_TIME_NS, time + SAME_TIME_NS
        near = [entry for entry in self._poses if low <= entry[0] <= high]
        if not near:
            return None
        at, nearest = min(near, key=lambda entry: abs(entry[0] - time))
        others = [e for e in near if (e[0] > time) != (at > time) and e[0] != at]
        if not others:
            return nearest
        other, pose = min(others, key=lambda entry: abs(entry[0] - time))
        if abs(other - at) > SAME_TIME_NS:
            return nearest
        return between(nearest, pose, (time - at) / (other - at))

    def made_within(self, seconds: float) -> tuple[float, float]:
        """Metres and radians moved between the newest pose and the one ``seconds`` earlier."""
        return self.moved_since(self._poses[-1][0] - round(seconds * 1e9))

    def moved_since(self, time: int) -> tuple[float, float]:
        """Metres and radians between the pose at ``time`` (ns) and the newest one."""
        then = self.at(time)
        return (0.0, 0.0) if then is None else apart(then, self.newest)

    def made_lately(self, seconds: float) -> tuple[float, float]:
        """Metres of path and radians of turning, in either direction, in the last ``seconds``.

        Measured in steps of half a second, so that a base that sways on the spot makes no way.
        """
        since = self._poses[-1][0] - round(seconds * 1e9)
        lately = {at // SWAY_NS: pose for at, pose in reversed(self._poses) if at >= since}
        made = [apart(*pair) for pair in pairwise([self.newest, *lately.values()])]
        return sum(metres for metres, _ in made), sum(radians for _, radians in made)

    @property
    def _longest_silence(self) -> float:
        return max(OVERDUE_SOONEST_S, OVERDUE_PERIODS * self.period)

    def _began_anew(self, stamp: int, missing: bool) -> bool:
        """Whether an old stamp comes from a restarted driver, so that the track starts anew."""
        if stamp == self._stamp:
            return False
        before, self._behind = self._behind, stamp
        return missing and before is not None and stamp > before
