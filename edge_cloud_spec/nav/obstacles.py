"""Obstacles: the newest scan of each lidar, and how fast the base may move towards them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .budget import CommandedMotion
from .clock_offset import FARTHEST_CLOCK, SourceClock, camera_clock
from .events import Scan
from .floor import ACROSS, BEARINGS, DIRECTIONS, Floor, marks, sector_of
from .footprint import SOURCES, Points
from .free_space import NOTHING_SEEN, FreeSpace, free_space, looking_around
from .motion import IN_THE_WAY, JUMP_EXTRA, JUMP_RATIO, ROUNDING
from .odometer import Odometer
from .people import moves_near, reach_of, seen_free
from .pose import STILL, Pose, Velocity, apart
from .sight import NEAR_M, LidarSight, Rays, blindness, sides_seen

LEAST_SCAN_AGE_S = 0.15  # that a scan counts as, so that the speed does not jump with each scan
SCAN_FUTURE_S = 0.2  # s; a stamp farther in the future is invalid
UNSEEN_KEPT_S = 2.0  # s for which a point counts of which newer scans tell nothing
UNSEEN_KEPT = (0.5, 300)  # m from the body within which points are kept, and how many, the nearest
# m, rad that a base moves at most while a scan repeats itself.
REPEATED_SCAN_MOTION = (0.3, math.radians(20))
BESIDE_SINE = 0.5  # of the bearings to a side, 30 to 150 degrees
FLOOR_USUAL = 20  # scans in a row that show the floor, after which it is missed
EDGES_TOLD_S = 5.0  # s after the first scan, in which the floor may show
NOWHERE = np.full(DIRECTIONS, np.inf)
PEOPLE_SCANS_S = (0.15, 0.35)  # s between two scans that are compared
EARLIER_KEPT = 16  # scans, at 40 a second
PEOPLE_KEPT_S = 0.3  # s for which who moved counts
BESIDE_PEOPLE_SHARE = 0.5  # of the top speed, beside who moves
FLOOR_ENDS = "the floor ends at"
NO_EDGES = "no lidar has shown the floor ahead: the robot does not see edges, such as stairs down"
WAY_NOT_SEEN = "what is in the way is not seen"


@dataclass(frozen=True, eq=False)
class _Seen:
    """A scan, and when it was taken, in monotonic s and in ns of our ROS clock.

    ``points`` [n, 2] from where it was taken are those that it shows, and earlier ones of which it
    tells nothing; ``when`` [n]: when each was seen, monotonic s. Those from ``things`` on are where
    the floor ends; ``told`` [DIRECTIONS]: how far from the base it does, by this scan alone, m.
    ``rays`` have been the same since the base was at ``since``; None: unknown.
    """

    sight: LidarSight
    points: Points
    when: NDArray[np.float64]
    stamp: int
    taken: float
    at: int
    rays: Rays
    since: Pose | None
    things: int
    told: NDArray[np.float64]


class Obstacles:
    """The newest scan of each lidar, and the speed that they allow.

    The base may go only so fast that it can still stop before each point, along the arc of its
    velocity. The allowed speed falls continuously with the distance, so it does not oscillate.
    ``why`` is a sentence while the last command was slowed down; else it is empty.
    """

    def __init__(self, odometer: Odometer, commanded: CommandedMotion) -> None:
        self.settings = odometer.settings
        self.why = ""
        self._odometer, self._commanded = odometer, commanded
        self._seen: dict[str, _Seen] = {}
        self._problems: dict[str, str] = {}  # of each source's newest message
        self._behind: dict[str, int] = {}  # each source's last stamp that went back
        self._floor_shown = np.zeros(DIRECTIONS)  # scans in a row that showed it in each direction
        self._looks_since, self._told_of_edges = math.inf, False
        self._earlier: deque[_Seen] = deque(maxlen=EARLIER_KEPT)  # scans, for what moves
        self._moves_beside = -math.inf  # until when somebody does
        self._clocks = {source: SourceClock(f"the {source}'s") for source in SOURCES}

    def receive(self, scan: Scan, now: float) -> str:
        """Take a scan; returns a sentence for the log, usually empty."""
        before, source = self._problems.get(scan.source, ""), scan.source
        problem = scan.problem
        if not abs(scan.age) <= FARTHEST_CLOCK:
            problem = f"the stamp of {source} is no time"
        elif not problem and self._is_news(scan, now):
            self._clocks[source].receive(-scan.age, now)
            ahead = camera_clock(self._clocks[source].offset or 0.0, self._odometer.clock_offset)
            late, at = max(0.0, scan.age + ahead), scan.stamp - round(ahead * 1e9)
            if scan.age + ahead < -SCAN_FUTURE_S:
                problem = f"the stamp of {source} is ahead of its clock"
            elif self._is_repeated(seen := self._see(scan, now - late, at, now), now):
                problem = f"{source} repeats itself though the base moves; restart its driver"
            else:
                self._seen[source] = seen
                self._watch(seen, now)
        self._problems[source] = problem
        return self._news_of_edges(now) if problem == before else problem

    def _watch(self, seen: _Seen, now: float) -> None:
        """Look for who moves by itself, as against the scan of a moment ago; only scans tell where
        nothing was."""
        if seen.sight.source != "scan":
            return
        self._earlier.append(seen)
        for last in self._earlier:
            if PEOPLE_SCANS_S[0] <= seen.taken - last.taken <= PEOPLE_SCANS_S[1]:
                break
        else:
            return
        then, here = (self._odometer.track.at(each.at) for each in (last, seen))
        if then is None or here is None:
            return
        if (there := self._seen_from(seen, then, now)) is None:
            return
        mount, turned = seen.sight.mount, apart(then, here)[1]
        came = seen.points[seen_free(there, reach_of(last.rays), mount, turned)]
        if moves_near(came, self.settings.obstacles):
            self._moves_beside = now + PEOPLE_KEPT_S

    @property
    def sees_edges(self) -> bool:
        """Whether a lidar shows the floor ahead, so that the robot stops where that ends."""
        return bool((self._floor_shown[[0, -1]] >= FLOOR_USUAL).all())

    def _news_of_edges(self, now: float) -> str:
        """A sentence, once, if no lidar has shown the floor ahead."""
        self._looks_since = min(self._looks_since, now)
        if self._told_of_edges or now - self._looks_since < EDGES_TOLD_S or self.sees_edges:
            return ""
        self._told_of_edges = True
        return NO_EDGES

    def _edges(
        self, floor: Floor | None, taken: float, last: _Seen | None, kept: Points | None
    ) -> tuple[NDArray[np.float64], ...]:
        """How far [DIRECTIONS] from the base the floor ends, m; when that was seen; and what this
        scan alone tells.

        Two scans must tell it, so that a moment without returns stops nothing. It counts until
        floor is seen beyond it (``kept``: the last scan's points from here), or for some time.
        Nothing seen where a row of scans showed floor is its end.
        """
        if floor is None:
            return NOWHERE, NOWHERE, NOWHERE
        usual = self._floor_shown >= FLOOR_USUAL
        self._floor_shown = np.where(usual | floor.reaches, self._floor_shown + 1, 0)
        told = floor.edges(usual)
        before = np.zeros(DIRECTIONS) if last is None else last.told
        ends, when = np.where(np.isfinite(before), told, np.inf), np.full(DIRECTIONS, taken)
        if last is not None and kept is not None:
            marked = kept[last.things :]
            for far, at, seen in zip(
                np.hypot(*marked.T), sector_of(marked), last.when[last.things :], strict=True
            ):
                if floor.seen[at] < far and far < ends[at] and seen > taken - UNSEEN_KEPT_S:
                    ends[at], when[at] = far, seen
        return ends, when, told

    def _is_news(self, scan: Scan, now: float) -> bool:
        """Whether the scan's stamp is new; a restarted driver's counts once the last scan is
        old."""
        last = self._seen.get(scan.source)
        if last is None or scan.stamp > last.stamp:
            return True
        before, self._behind[scan.source] = self._behind.get(scan.source), scan.stamp
        is_old = now - last.taken > self.settings.obstacles.timeout
        return is_old and before is not None and before < scan.stamp < last.stamp

    def _is_repeated(self, seen: _Seen, now: float) -> bool:
        """Whether a driver repeats a scan, which shows something, though the base has moved."""
        here = self._odometer.newest(now)
        if seen.since is None or here is None or not len(seen.sight.points):
            return False
        return any(
            made > most
            for made, most in zip(apart(seen.since, here), REPEATED_SCAN_MOTION, strict=True)
        )

    def _see(self, scan: Scan, taken: float, at: int, now: float) -> _Seen:
        """What the scan shows, and the points near the body that were seen lately, of which it
        tells nothing: what is too near for the lidar, say."""
        footprint, last = self.settings.obstacles, self._seen.get(scan.source)
        sight, since = LidarSight.of(scan.source, scan.rays, footprint), self._odometer.newest(now)
        points = sight.points[np.hypot(*sight.points.T) <= NEAR_M]
        when = np.full(len(points), taken)
        if last is not None and np.array_equal(scan.rays, last.rays):
            since = last.since
        then = self._odometer.track.at(at)
        kept = self._seen_from(last, then, now) if last else None
        ends, seen_at, told = self._edges(scan.floor, taken, last, kept)
        if last and kept is not None:
            beyond, before = footprint.beyond(kept[: last.things]), last.when[: last.things]
            counts = (beyond > 0.0) & (beyond < UNSEEN_KEPT[0]) & (before > taken - UNSEEN_KEPT_S)
            nearest = np.flatnonzero(counts)[beyond[counts].argsort()[: UNSEEN_KEPT[1]]]
            nearest = nearest[sight.misses(kept[nearest])]
            points = np.concatenate([points, kept[nearest]])
            when = np.concatenate([when, before[nearest]])
        marked, things = marks(ends), len(points)
        points = np.concatenate([points, marked])
        when = np.concatenate([when, np.repeat(seen_at[np.isfinite(ends)], len(ACROSS))])
        return _Seen(sight, points, when, scan.stamp, taken, at, scan.rays, since, things, told)

    def missing(self, now: float) -> str:
        """Why a configured lidar cannot be used; empty if all can."""
        for source in self.settings.obstacles.promised:
            seen = self._seen.get(source)
            if seen is None or not now - seen.taken <= self.settings.obstacles.timeout:
                old = "" if seen is None else f" for {now - seen.taken:.1f} s"
                why = self._problems.get(source) or f"nothing came on {source}{old}"
                return f"{WAY_NOT_SEEN}: {why}"
        return ""

    @property
    def keeps(self) -> float:
        """Metres ahead that must be free where the base moves at its slowest speed."""
        footprint, limits = self.settings.obstacles, self.settings.limits
        slowest = Velocity(limits.move.slowest)
        rate, keeps, lasts = footprint.stopping(slowest, limits, LEAST_SCAN_AGE_S)
        return keeps + rate * lasts

    def around(self, now: float) -> tuple[Points, Sequence[int]] | None:
        """What the lidars see, relative to the base, and which of LEFT and RIGHT they see; None:
        one cannot be used, or where its scan was taken is not known."""
        if self.missing(now):
            return None
        seen = [self._seen[source] for source in self.settings.obstacles.promised]
        here = self._odometer.newest(now)
        points = [self._seen_from(each, here, now) for each in seen]
        known = [each for each in points if each is not None]
        if len(known) < len(seen):
            return None
        sides = sides_seen([each.sight for each in seen])
        if self.sees_edges:  # beside it, too
            shown, beside = self._floor_shown >= FLOOR_USUAL, np.sin(BEARINGS)
            sides = [side for side in sides if shown[side * beside > BESIDE_SINE].all()]
        return np.concatenate(known), sides

    def slowed(self, wanted: Velocity, now: float) -> Velocity:
        """``wanted``, slowed down until the base can stop before every point."""
        footprint, limits, self.why = self.settings.obstacles, self.settings.limits, ""
        if wanted == STILL or not footprint.promised:
            return wanted
        self.why = self.missing(now) or blindness(
            [self._seen[source].sight for source in footprint.promised], wanted, footprint.reach
        )
        if self.why:
            return STILL
        share = self._share_beside(wanted, now)
        for source in footprint.promised:
            seen = self._seen[source]
            points, margin = self._here(seen, now)
            rate, keeps, lasts = footprint.stopping(
                wanted, limits, max(LEAST_SCAN_AGE_S, now - seen.taken)
            )
            seconds = footprint.seconds_to(points, wanted, margin)
            if not wanted.speed:
                seconds[seen.things :] = math.inf  # who turns in place needs no floor ahead
            allowed = (float(seconds.min(initial=math.inf)) * rate - keeps) / (rate * lasts)
            if allowed < share:
                first = int(seconds.argmin())
                share, self.why = allowed, self._sentence(points[first], first >= seen.things)
        slower = Velocity(wanted.vx * share, wanted.vy * share, wanted.wz * share)
        moves = slower.speed >= limits.move.slowest or abs(slower.wz) >= limits.turn.slowest
        return wanted if share >= 1.0 else slower if share > 0.0 and moves else STILL

    def _share_beside(self, wanted: Velocity, now: float) -> float:
        """The share of ``wanted`` that is allowed beside who moves: some of the top speed, or the
        slowest that moves the base."""
        if now >= self._moves_beside:
            return 1.0
        limits = self.settings.limits
        most = max(BESIDE_PEOPLE_SHARE * limits.top_speed, limits.move.slowest, ROUNDING)
        turn = max(BESIDE_PEOPLE_SHARE * limits.turn_speed, limits.turn.slowest)
        return 1.0 / max(1.0, wanted.speed / most, abs(wanted.wz) / turn)

    def free_space(self, now: float, around: bool = False) -> FreeSpace:
        """How far the base may go, by the newest scans, and ``around``, too, which takes longer;
        nothing is seen without a lidar."""
        promised = self.settings.obstacles.promised
        if not promised or self.missing(now):
            return NOTHING_SEEN
        seen = [self._seen[source] for source in promised]
        here = [self._here(each, now) for each in seen]
        margins = [np.broadcast_to(margin, len(points)) for points, margin in here]
        points = np.concatenate([points for points, _ in here])
        sights = [each.sight for each in seen]
        edges = np.concatenate([np.arange(len(each.points)) >= each.things for each in seen])
        margin = np.concatenate(margins)
        space = free_space(points, margin, sights, self.settings, edges)
        if not around:
            return space
        base = self._odometer.newest(now) if self._odometer.locates(now) else None
        space = looking_around(space, points, margin, sights, self.settings, base)
        located = base and all(self._seen_from(each, base, now) is not None for each in seen)
        return space if located else replace(space, ranges=())

    def _here(self, seen: _Seen, now: float) -> tuple[Points, NDArray[np.float64] | float]:
        """A scan's points relative to the base's current pose, and the margin to keep; without
        odometry the margin grows by as much as the base can have moved."""
        margin = self.settings.obstacles.margin
        points = self._seen_from(seen, self._odometer.newest(now), now)
        if points is not None:
            return points, margin
        path, _, turn = self._commanded.since(seen.taken, now, self.settings.limits)
        return seen.points, margin + path + turn * np.hypot(*seen.points.T)

    def _seen_from(self, seen: _Seen, here: Pose | None, now: float) -> Points | None:
        """A scan's points relative to this pose; None: one of both poses is unknown, or odometry
        has jumped in between."""
        then = self._odometer.track.at(seen.at) if self._odometer.locates(now) else None
        if then is None or here is None:
            return None
        path, _, turn = self._commanded.since(seen.taken, now, self.settings.limits)
        moved, turned = apart(then, here)
        if moved > JUMP_RATIO * path + JUMP_EXTRA[0] or turned > JUMP_RATIO * turn + JUMP_EXTRA[1]:
            return None
        (ca, sa), (cb, sb) = ((math.cos(pose.yaw), math.sin(pose.yaw)) for pose in (then, here))
        there = seen.points @ np.array([[ca, sa], [-sa, ca]]) + (then.x - here.x, then.y - here.y)
        return np.asarray(there @ np.array([[cb, -sb], [sb, cb]]))

    def _sentence(self, point: Points, is_edge: bool) -> str:
        """A sentence on the obstacle, or the floor's end, and its direction from the body."""
        footprint, (x, y) = self.settings.obstacles, point
        ahead = max(x - footprint.front, -footprint.rear - x, 0.0)
        far = math.hypot(ahead, max(0.0, abs(y) - footprint.side))
        where = "beside" if not ahead else "ahead" if x > 0.0 else "behind"
        side = {"beside": "side", "ahead": "front", "behind": "rear"}[where]
        own = f"; if that is the robot itself, raise obstacles.{side}"
        own = own if far < footprint.margin and not is_edge else ""
        return f"{FLOOR_ENDS if is_edge else IN_THE_WAY} {far:.2f} m {where}{own}"
