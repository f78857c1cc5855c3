"""Sweeps the base's footprint along the arc of a velocity: when it meets a point, and how it can
stop before. Pure functions of points in the base's frame."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..options import Bounded, bounded, described
from .limits import REACTION_S, Limits
from .pose import Velocity

Points = NDArray[np.float64]
"""[n, 2]: metres ahead of the base, and to its left."""

SOURCES = ("scan", "points")
STRAIGHT_RATE = 1e-4  # rad/s; a slower turn counts as straight
TOUCH = 1e-9  # m, m/s; rounding error
PASSING_SINE = 0.1  # sine of the angle below which a point counts as passing along the base
LEAVING_M = 1e-4  # m between the base and a point that it may move away from


@dataclass(frozen=True)
class Mount(Bounded):
    """A lidar's pose on the base, like a URDF ``origin``: m, and rad of roll, pitch and yaw.

    Raises ValueError naming a field that is out of its range.
    """

    frame: str = described("", "frame_id of its messages; empty: the base's (base_frame)", True)
    x: float = bounded(0.0, -2.0, 2.0, "m ahead of the base's middle", True)
    y: float = bounded(0.0, -2.0, 2.0, "m to its left", True)
    z: float = bounded(0.0, -2.0, 2.0, "m above it", True)
    roll: float = bounded(0.0, -3.15, 3.15, "about its x axis, rad (3.14159: it hangs)", True)
    pitch: float = bounded(0.0, -3.15, 3.15, "then about y, rad, down positive", True)
    yaw: float = bounded(0.0, -3.15, 3.15, "then about z, rad, left positive", True)

    def to_base(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Transform points [n, 3] from the lidar's frame to the base's."""
        (a, b, c), (d, e, f) = (
            [function(angle) for angle in (self.roll, self.pitch, self.yaw)]
            for function in (math.cos, math.sin)
        )
        turned = np.array(
            [
                [b * c, d * e * c - a * f, a * e * c + d * f],
                [b * f, d * e * f + a * c, a * e * f - d * c],
                [-e, d * b, a * b],
            ]
        )
        return np.asarray(points @ turned.T + (self.x, self.y, self.z))


@dataclass(frozen=True)
class ObstacleSettings(Bounded):
    """Which lidars must work, and the distances to keep from what they see.

    Raises ValueError naming a field that is out of its range.
    """

    scan: str = described("", "topic of a LaserScan that it stops before; empty: none", True)
    points: str = described("", "topic of a PointCloud2 that it stops before; empty: none", True)
    front: float = bounded(0.42, 0.05, 2.0, "m from the base's middle to its front, head and all")
    rear: float = bounded(0.35, 0.05, 2.0, "m to its rear")
    side: float = bounded(0.155, 0.05, 1.0, "m to either side; points within are its own legs")
    margin: float = bounded(0.08, 0.02, 0.5, "m that it keeps to all sides")
    clearance: float = bounded(0.15, 0.0, 1.0, "m more that it keeps ahead of a move")
    timeout: float = bounded(0.5, 0.1, 2.0, "a scan that is older counts as an obstacle, s")
    lowest: float = bounded(-0.2, -2.0, 2.0, "m from the base's middle, from which points count")
    highest: float = bounded(0.4, -2.0, 2.0, "m from it, up to which they do")
    scan_at: Mount = field(default_factory=Mount)
    points_at: Mount = field(default_factory=Mount)

    @property
    def promised(self) -> dict[str, str]:
        """The topics of the configured lidars, by their sources; nothing moves without them."""
        return {source: topic for source in SOURCES if (topic := getattr(self, source))}

    @property
    def reach(self) -> float:
        """The distance from the base's middle to its farthest corner, with margin, m."""
        return math.hypot(max(self.front, self.rear) + self.margin, self.side + self.margin)

    @property
    def strip(self) -> float:
        """The width of the strip that a move sweeps, with margin, m."""
        return 2.0 * (self.side + self.margin)

    def beyond(self, points: Points) -> NDArray[np.float64]:
        """The distance [n] of points from the body's edge, m; negative inside the body."""
        return np.asarray(self._sides(points).max(0))

    def _sides(self, points: Points) -> NDArray[np.float64]:
        """Distances [3, n] of points outward from the lines of front, rear and nearer flank, m."""
        x, y = points.T
        return np.stack([x - self.front, -self.rear - x, np.abs(y) - self.side])

    def seconds_to(
        self, points: Points, velocity: Velocity, margin: NDArray[np.float64] | float
    ) -> NDArray[np.float64]:
        """Seconds [n] at ``velocity`` until the body, wider by ``margin`` (m, [n]), meets each
        point.

        Infinite: never. A point already within ``margin`` must not come closer: for it the margin
        is reduced to its present distance. A point within ``self.margin`` must get farther away: a
        walking base sways too much to pass along it.
        """
        beyond = self.beyond(points)
        wide = np.minimum(margin, beyond - LEAVING_M)
        low = np.stack([-self.rear - wide, -self.side - wide])  # [2, n]
        high = np.stack([self.front + wide, self.side + wide])
        along = _along_line if abs(velocity.wz) < STRAIGHT_RATE else _along_arc
        seconds = along(points.T, low, high, velocity)
        stays = (beyond < self.margin) & ~self._leaves(points, velocity)
        return np.where(stays, 0.0, seconds)

    def _leaves(self, points: Points, velocity: Velocity) -> NDArray[np.bool_]:
        """Whether each point's distance [n] grows at this velocity, and not just slowly."""
        x, y = points.T
        ahead, across = velocity.wz * y - velocity.vx, -velocity.wz * x - velocity.vy
        away = np.choose(self._sides(points).argmax(0), [ahead, -ahead, np.sign(y) * across])
        return np.asarray(away > PASSING_SINE * np.hypot(ahead, across))

    def stopping(
        self, velocity: Velocity, limits: Limits, age: float
    ) -> tuple[float, float, float]:
        """How to stop before a point: (top speed of a corner, m/s; distance to keep, m; time, s).

        ``age``: of the scan, s; it adds to the reaction time. For a mixture of a move and a turn,
        the limits of both are weighted by their parts of the corner's speed; a move as far as it
        goes sideways has the worse ones of both axes.
        """
        corner = abs(velocity.wz) * self.reach
        rate = velocity.speed + corner
        turning = corner / rate if rate else 0.0
        move, turn, strafe = limits.move, limits.turn, limits.strafe
        sideways = abs(velocity.vy) / velocity.speed if velocity.speed else 0.0
        overshoot = move.overshoot + sideways * max(0.0, strafe.overshoot - move.overshoot)
        braking = move.braking + sideways * max(0.0, strafe.braking - move.braking)
        keeps = (1 - turning) * (self.clearance + overshoot)
        keeps += turning * self.reach * turn.overshoot
        lasts = REACTION_S + age + (1 - turning) * braking + turning * turn.braking
        return rate, keeps, lasts


def _along_line(
    at: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], velocity: Velocity
) -> NDArray[np.float64]:
    """Seconds until the body meets points [2, n] while moving straight."""
    enters, leaves = np.full(at.shape[1], 0.0), np.full(at.shape[1], math.inf)
    for axis, speed in enumerate((velocity.vx, velocity.vy)):
        if abs(speed) > TOUCH:
            ends = (at[axis] - low[axis]) / speed, (at[axis] - high[axis]) / speed
            enters = np.maximum(enters, np.minimum(*ends))
            leaves = np.minimum(leaves, np.maximum(*ends))
        else:
            beside = (at[axis] <= low[axis]) | (at[axis] >= high[axis])
            leaves = np.where(beside, -math.inf, leaves)
    return np.where(enters < leaves, enters, math.inf)


def _along_arc(
    at: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], velocity: Velocity
) -> NDArray[np.float64]:
    """Where the body meets each point while turning about a centre.

    In the body's frame each point circles the centre the other way, until it meets a side of the
    box.
    """
    centre = np.array([[-velocity.vy], [velocity.vx]]) / velocity.wz
    at, low, high = at - centre, low - centre, high - centre
    (x, y), (left, below), (right, above) = at, low, high
    with np.errstate(invalid="ignore"):  # the root of a negative number: never met
        ups = [np.sqrt(x**2 + y**2 - side**2) for side in (left, right)]
        acrosses = [np.sqrt(x**2 + y**2 - side**2) for side in (below, above)]
    met = np.array(  # [2, 8, n]: intersections of the circle with the lines of the four sides
        [
            [left, left, right, right, *acrosses, *(-across for across in acrosses)],
            [ups[0], -ups[0], ups[1], -ups[1], below, above, below, above],
        ]
    )
    inside = (met >= low[:, None] - TOUCH) & (met <= high[:, None] + TOUCH)
    turned = math.copysign(1.0, velocity.wz) * (np.arctan2(y, x) - np.arctan2(met[1], met[0]))
    turned = np.where(inside.all(0), np.mod(turned, 2 * math.pi), math.inf)
    return np.asarray(turned.min(0) / abs(velocity.wz))
