"""How far the base may go ahead, to either side and back, by what its lidars show; in numbers, and
in words for a prompt. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .answer import (
    AROUND_PLACE,
    FARTHEST_SEEN_M,
    NOT_SEEN,
    PATH_PLACE,
    SEEN_PLACE,
    TRIED_PLACE,
    WAYS_PLACE,
    parse_action,
)
from .footprint import Points
from .pose import Pose, Velocity, ahead_of, wrap
from .settings import NavigatorSettings
from .sight import NEAR_M, SIDE_DEGREES, LidarSight, blindness
from .status import WAYS

FREE_FROM_M = 2.0  # m; a way of so much and more is free: one action goes less far
STEP_M = 0.1  # m; words name full steps
FINE_STEPS = 6  # from which on ``words_around`` names every other one
AROUND_DEG = (*range(-120, 121, 15), 180)
"""Bearings, to the left positive, of ``FreeSpace.around``."""
DIRECTIONS_LOOKED = 720  # to which the nearest point counts
MOST_BODY_M = 5.0  # that a body reaches from its middle
RANGES = 180  # directions of ``FreeSpace.ranges``, from ahead to the left
MOST_TRIED = 6  # actions that one prompt tells


@dataclass(frozen=True)
class FreeSpace:
    """How far the base may go before it stops for what its lidars show, m.

    ``ahead`` and ``behind``: straight; ``left`` and ``right``: straight, once it has made a large
    turn to that side. 0: not at all; infinite: nothing is in the way; NaN: it is not seen.
    ``clear``: those of ``WAYS`` into which a small step fits: a move, or a turn to that side.
    ``around``: straight, if it faced each of ``AROUND_DEG``, whether it can turn there or not.
    ``ranges``: to the nearest point in each of RANGES directions from the base's middle; infinite:
    none within ``NEAR_M``; NaN: not seen. ``body``: how far it reaches from there to the front, and
    to a side with its margin. ``front``: where the middle of the body's front is, in the odometry's
    frame; None: unknown.
    ``told``: whether a prompt has told of its mission, too: ``seen``, the bearing (rad) and the
    distance (m) from there of what it looks for, by its last verified answer that told it (None:
    none has); ``tried``, the last actions that it decided about here, the newest last; and
    ``path``, the bearing and length from the base's middle of the first straight leg of the path to
    what it looks for, or to where it has not looked (None: there is none).
    ``at``: when that was, ns of this computer's ROS clock; 0: never. ``base_clock``: how far the
    base's stamps are ahead of that clock, s; None: unknown.
    """

    ahead: float = math.nan
    left: float = math.nan
    right: float = math.nan
    behind: float = math.nan
    clear: tuple[str, ...] = ()
    around: tuple[float, ...] = ()
    ranges: tuple[float, ...] = ()
    body: tuple[float, float] = (0.0, 0.0)
    front: Pose | None = None
    told: bool = False
    seen: tuple[float, float] | None = None
    tried: tuple[str, ...] = ()
    path: tuple[float, float] | None = None
    at: int = 0
    base_clock: float | None = None

    @property
    def base(self) -> Pose | None:
        """Where the base's middle is, in the odometry's frame; None: unknown, as are ``ranges``."""
        return ahead_of(self.front, -self.body[0]) if self.front and self.ranges else None

    def place(self, bearing: float, distance: float) -> tuple[float, float] | None:
        """Where something is in the odometry's frame, m, seen so (rad, m) from the front."""
        if self.front is None:
            return None
        there = ahead_of(replace(self.front, yaw=self.front.yaw + bearing), distance)
        return there.x, there.y

    def telling(
        self,
        place: tuple[float, float] | None,
        tried: Sequence[str] = (),
        path: tuple[float, float] | None = None,
    ) -> FreeSpace:
        """The same, told with where the thing is, if that is known, what was tried here, and the
        path."""
        seen = None
        if self.front is not None and place is not None:
            dx, dy = place[0] - self.front.x, place[1] - self.front.y
            bearing = wrap(math.atan2(dy, dx) - self.front.yaw)
            seen = _place_at(bearing, math.hypot(dx, dy))
        return replace(self, told=True, seen=seen, tried=tuple(tried)[-MOST_TRIED:], path=path)

    def say(self, text: str) -> str:
        """A dialect's ``free_space``, with its places filled."""
        tried = ", ".join(self.tried) or NOTHING_TRIED
        for place, words in (
            (WAYS_PLACE, self.words),
            (AROUND_PLACE, self.words_around),
            (SEEN_PLACE, _in_place_words(self.seen)),
            (PATH_PLACE, _in_place_words(self.path)),
            (TRIED_PLACE, tried),
        ):
            text = text.replace(place, words)
        return text

    @property
    def words(self) -> str:
        """As a prompt says it: ``ahead 0.8 m, left free, right blocked, behind not seen``."""
        return ", ".join(f"{way} {_in_words(getattr(self, way))}" for way in WAYS)

    @property
    def words_around(self) -> str:
        """The decimetres of ``around`` in one row, at most 20, from 6 on the even ones: a token
        each, in most vocabularies; 0 where nothing is seen."""
        known = (0.0 if math.isnan(metres) else metres for metres in self.around)
        steps = (_steps(metres) for metres in known)
        return " ".join(str(n if n < FINE_STEPS else n - n % 2) for n in steps) or NOT_SEEN

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a FreeSpace message, without the header."""
        clock = math.nan if self.base_clock is None else self.base_clock
        front, seen, path = self.front or _NO_POSE, self.seen or _NO_PLACE, self.path or _NO_PLACE
        return {
            **{way: getattr(self, way) for way in WAYS},
            "around": list(self.around),
            "ranges": list(self.ranges),
            "body_front": self.body[0],
            "body_side": self.body[1],
            **{f"front_{name}": getattr(front, name) for name in ("x", "y", "yaw")},
            "told": self.told,
            **dict(zip(("seen_bearing", "seen_distance"), seen, strict=True)),
            "tried": list(self.tried),
            **dict(zip(("path_bearing", "path_distance"), path, strict=True)),
            "base_clock_offset": clock,
        }

    @classmethod
    def read(cls, message: Any) -> FreeSpace:
        """Read a FreeSpace message, also of a bag from before it told more than the ways.

        What is no such value is left out: it would stand in a prompt.
        """
        stamp, clock = message.header.stamp, message.base_clock_offset
        ways = message.ahead, message.left, message.right, message.behind
        at = stamp.sec * 10**9 + stamp.nanosec
        base_clock = clock if math.isfinite(clock) else None
        if not hasattr(message, "told"):
            return cls(*ways, at=at, base_clock=base_clock)
        around = tuple(message.around)
        front = Pose(message.front_x, message.front_y, message.front_yaw)
        tried = tuple(str(action) for text in message.tried if (action := parse_action(text)))
        with_path = hasattr(message, "path_bearing")
        ranges = tuple(m if m >= 0.0 else math.nan for m in message.ranges) if with_path else ()
        body = (message.body_front, message.body_side) if with_path else (0.0, 0.0)
        if len(ranges) != RANGES or not all(0.0 <= m <= MOST_BODY_M for m in body):
            ranges, body = (), (0.0, 0.0)
        return cls(
            *ways,
            around=around if len(around) == len(AROUND_DEG) else (),
            ranges=ranges,
            body=body,
            front=None if front.problem else front,
            told=message.told,
            seen=_place_at(message.seen_bearing, message.seen_distance) if message.told else None,
            tried=tried[-MOST_TRIED:] if message.told else (),
            path=_place_at(message.path_bearing, message.path_distance)
            if with_path and message.told
            else None,
            at=at,
            base_clock=base_clock,
        )


NOTHING_SEEN = FreeSpace()
NOTHING_TRIED = "nothing"


def _place_at(bearing: float, distance: float) -> tuple[float, float] | None:
    """A place that can be told; None: there is none."""
    is_place = abs(bearing) <= math.pi and 0.0 <= distance <= FARTHEST_SEEN_M
    return (bearing, distance) if is_place else None


_NO_POSE, _NO_PLACE = Pose(math.nan, math.nan, math.nan), (math.nan, math.nan)


def _in_place_words(place: tuple[float, float] | None) -> str:
    """As a prompt says it: ``left 62 2.3``, in degrees and m."""
    if place is None:
        return NOT_SEEN
    degrees = round(math.degrees(place[0]))
    side = "left" if degrees > 0 else "right" if degrees else "ahead"
    return f"{side} {abs(degrees)} {place[1]:.1f}"


def _steps(metres: float) -> int:
    return math.floor(max(0.0, min(metres, FREE_FROM_M)) / STEP_M + 1e-6)


def _in_words(metres: float) -> str:
    if math.isnan(metres):
        return NOT_SEEN
    steps = _steps(metres)
    return "free" if metres >= FREE_FROM_M else f"{steps * STEP_M:.1f} m" if steps else "blocked"


def free_space(
    points: Points,
    margin: NDArray[np.float64],
    sights: Sequence[LidarSight],
    settings: NavigatorSettings,
    edges: NDArray[np.bool_] | None = None,
) -> FreeSpace:
    """How far the base may go among these points, which it passes with a margin (m, [n]).

    A way is as far as the navigator would go: with ``obstacles.clearance`` and the overshoot kept.
    What no lidar sees is never free, nor is a side to which the base cannot turn. ``sights``: of
    the same lidars. ``edges`` [n]: the points where the floor ends, which stop no turn.
    """
    body, steps = settings.obstacles, settings.steps
    wide, small = math.radians(steps.turn_large), math.radians(steps.turn_small)

    def straight(ahead: float, degrees: float) -> float:
        return _straight(points, margin, sights, settings, ahead, degrees)[0]

    def side(sign: float) -> tuple[float, float]:
        """How far it may turn there, rad, and go then, m."""
        turning = Velocity(wz=sign)
        if blindness(sights, turning, body.reach):
            return math.nan, math.nan
        rate, keeps, _ = body.stopping(turning, settings.limits, 0.0)
        seconds = body.seconds_to(points, turning, margin)
        if edges is not None:
            seconds[edges] = math.inf
        turns = max(0.0, float(seconds.min(initial=math.inf)) - keeps / rate)
        return turns, straight(1.0, sign * steps.turn_large) if turns >= wide else 0.0

    ahead, behind = straight(1.0, 0.0), straight(-1.0, 0.0)
    (to_left, left), (to_right, right) = side(1.0), side(-1.0)
    step = steps.move_small
    fits = ahead >= step, to_left >= small, to_right >= small, behind >= step
    clear = tuple(name for name, fit in zip(WAYS, fits, strict=True) if fit)
    return FreeSpace(ahead, left, right, behind, clear)


def looking_around(
    space: FreeSpace,
    points: Points,
    margin: NDArray[np.float64],
    sights: Sequence[LidarSight],
    settings: NavigatorSettings,
    base: Pose | None,
) -> FreeSpace:
    """The same with ``around`` and ``ranges`` among these points, and where the base is."""
    body = settings.obstacles
    return replace(
        space,
        around=free_around(points, margin, sights, settings),
        ranges=_ranges(points, sights),
        body=(body.front, body.side + body.margin),
        front=base and ahead_of(base, body.front),
    )


def _ranges(points: Points, sights: Sequence[LidarSight]) -> tuple[float, ...]:
    """``FreeSpace.ranges``: what has no point is free only where a ray of a scan says so."""
    degrees = np.arange(RANGES) * (360 // RANGES)
    told = np.zeros(360, bool)
    for sight in sights:
        if sight.source == "scan":
            told |= sight.telling > 0
    seen = told[degrees] | told[degrees - 1]
    near = points[np.hypot(*points.T) <= NEAR_M]
    ranges = _nearest(near, RANGES)[0]
    return tuple(np.where(np.isfinite(ranges) | seen, ranges, math.nan).tolist())


def free_around(
    points: Points,
    margin: NDArray[np.float64],
    sights: Sequence[LidarSight],
    settings: NavigatorSettings,
) -> tuple[float, ...]:
    """``FreeSpace.around`` among these points. Of those in one direction the nearest is met first,
    so that the rest of a cloud is left out."""
    if len(points) > DIRECTIONS_LOOKED:
        nearest = _nearest(points, DIRECTIONS_LOOKED)[1]
        points, margin = points[nearest], margin[nearest]
    return tuple(_straight(points, margin, sights, settings, 1.0, *AROUND_DEG))


def _nearest(points: Points, count: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Metres to the nearest point in each of so many directions, infinite: none; and which points
    those are."""
    directions = np.rint(np.arctan2(points[:, 1], points[:, 0]) * (count / math.tau)) % count
    away, ranges = np.hypot(*points.T), np.full(count, math.inf)
    order = np.argsort(away)
    found, first = np.unique(directions[order].astype(int), return_index=True)
    ranges[found] = away[order[first]]
    return ranges, order[first]


def _straight(
    points: Points,
    margin: NDArray[np.float64],
    sights: Sequence[LidarSight],
    settings: NavigatorSettings,
    ahead: float,
    *degrees: float,
) -> list[float]:
    """How far it may go straight, or back if ``ahead`` is -1, from where it faces each of these;
    all at once."""
    body, velocity, back = settings.obstacles, Velocity(ahead), 0.0 if ahead > 0.0 else 180.0
    angles = np.radians(degrees)
    cos, sin = np.cos(angles), np.sin(angles)
    turned = np.array([[cos, -sin], [sin, cos]]).transpose(2, 0, 1)
    rate, keeps, _ = body.stopping(velocity, settings.limits, 0.0)
    there = (points @ turned).reshape(-1, 2)
    seconds = body.seconds_to(there, velocity, np.tile(margin, len(degrees)))
    free = seconds.reshape(len(degrees), -1).min(1, initial=math.inf) - keeps / rate
    return [
        max(0.0, float(far)) if _see(sights, round(each + back)) else math.nan
        for far, each in zip(free, degrees, strict=True)
    ]


def _see(sights: Sequence[LidarSight], middle: int) -> bool:
    """Whether lidars see to both sides of this bearing, degrees to the left, and none is blind
    there."""
    for begin in (middle - SIDE_DEGREES, middle):
        side = begin, begin + SIDE_DEGREES
        whys = [sight.blind(*side) for sight in sights]
        clouds = (sight for sight in sights if sight.source == "points")
        if any(whys) or not ("" in whys or any(cloud.sees(*side) for cloud in clouds)):
            return False
    return True
