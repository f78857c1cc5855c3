"""How far the base may go ahead, to either side and back, by what its lidars show; in numbers, and
in words for a prompt. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .answer import NOT_SEEN
from .footprint import Points
from .pose import Velocity
from .settings import NavigatorSettings
from .sight import SIDE_DEGREES, LidarSight, blindness
from .status import WAYS

FREE_FROM_M = 2.0  # m; a way of so much and more is free: one action goes less far
STEP_M = 0.1  # m; words name full steps


@dataclass(frozen=True)
class FreeSpace:
    """How far the base may go before it stops for what its lidars show, m.

    ``ahead`` and ``behind``: straight; ``left`` and ``right``: straight, once it has made a large
    turn to that side. 0: not at all; infinite: nothing is in the way; NaN: it is not seen.
    ``clear``: those of ``WAYS`` into which a small step fits: a move, or a turn to that side.
    ``at``: when that was, ns of this computer's ROS clock; 0: never. ``base_clock``: how far the
    base's stamps are ahead of that clock, s; None: unknown.
    """

    ahead: float = math.nan
    left: float = math.nan
    right: float = math.nan
    behind: float = math.nan
    clear: tuple[str, ...] = ()
    at: int = 0
    base_clock: float | None = None

    @property
    def words(self) -> str:
        """As a prompt says it: ``ahead 0.8 m, left free, right blocked, behind not seen``."""
        return ", ".join(f"{way} {_in_words(getattr(self, way))}" for way in WAYS)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a FreeSpace message, without the header."""
        clock = math.nan if self.base_clock is None else self.base_clock
        return {**{way: getattr(self, way) for way in WAYS}, "base_clock_offset": clock}

    @classmethod
    def read(cls, message: Any) -> FreeSpace:
        """Read a FreeSpace message."""
        stamp, clock = message.header.stamp, message.base_clock_offset
        return cls(
            message.ahead,
            message.left,
            message.right,
            message.behind,
            at=stamp.sec * 10**9 + stamp.nanosec,
            base_clock=clock if math.isfinite(clock) else None,
        )


NOTHING_SEEN = FreeSpace()


def _in_words(metres: float) -> str:
    if math.isnan(metres):
        return NOT_SEEN
    steps = math.floor(max(0.0, min(metres, FREE_FROM_M)) / STEP_M + 1e-6)
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

    def way(velocity: Velocity, yaw: float = 0.0) -> float:
        """m, or rad, at a velocity of 1 from a pose that is turned by ``yaw``."""
        cos, sin = math.cos(yaw), math.sin(yaw)
        there = points @ np.array([[cos, -sin], [sin, cos]])
        rate, keeps, _ = body.stopping(velocity, settings.limits, 0.0)
        seconds = body.seconds_to(there, velocity, margin)
        if edges is not None and not velocity.speed:
            seconds[edges] = math.inf
        return max(0.0, float(seconds.min(initial=math.inf)) - keeps / rate)

    def straight(ahead: float, degrees: float) -> float:
        seen = _see(sights, round(degrees + (0.0 if ahead > 0.0 else 180.0)))
        return way(Velocity(ahead), math.radians(degrees)) if seen else math.nan

    def side(sign: float) -> tuple[float, float]:
        """How far it may turn there, rad, and go then, m."""
        turning = Velocity(wz=sign)
        if blindness(sights, turning, body.reach):
            return math.nan, math.nan
        turns = way(turning)
        return turns, straight(1.0, sign * steps.turn_large) if turns >= wide else 0.0

    ahead, behind = straight(1.0, 0.0), straight(-1.0, 0.0)
    (to_left, left), (to_right, right) = side(1.0), side(-1.0)
    step = steps.move_small
    fits = ahead >= step, to_left >= small, to_right >= small, behind >= step
    clear = tuple(name for name, fit in zip(WAYS, fits, strict=True) if fit)
    return FreeSpace(ahead, left, right, behind, clear)


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
