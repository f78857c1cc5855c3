"""What a mission has seen of the floor, and the path over it.

An occupancy grid of log odds (Moravec and Elfes, ICRA 1985) with a cost near what is solid, and
where the camera has not looked yet (frontiers: Yamauchi, CIRA 1997).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..nav.free_space import RANGES, FreeSpace
from ..nav.pose import Pose, wrap
from ..nav.sight import NEAR_M

COSTMAP_CELL_M = 0.1
REACH = 100  # cells to each side of where the mission began
CAMERA_M, CAMERA_RAD = 4.0, math.radians(30)  # how far and to either side a picture shows things
FREE_ODDS, SOLID_ODDS, MOST_ODDS = -1.0, 2.0, 4.0
NEVER_M = 0.15  # from what is solid; no base's middle is so near
FITS_M = 0.02  # beside the body; with less it does not fit
NARROW = (0.1, 1.6), (0.2, 1.6)  # m beside it: what has less costs so many times as much
UNSEEN_COST, TIGHT_COST = 1.5, 30.0  # of a cell; free ones cost 1, where it does not fit TIGHT_COST
THING_M, STANDS_M = (
    0.3,
    0.75,
)  # from the thing's place: what is the thing itself, and the path's end
LOOK_M, LOOK_CELLS = 0.35, 14  # so many that are new around a cell are worth a look
NEAREST_LOOK_M = 0.5
STRAIGHT_SHARE, STRAIGHT_CELLS = 1.1, 0.5  # what a straight leg may cost more than the path

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Cell = tuple[int, int]


class Costmap:
    """A grid in the odometry's frame, around where the mission began."""

    def __init__(self) -> None:
        size = 2 * REACH + 1
        self._odds, self._looked = np.zeros((size, size)), np.zeros((size, size), bool)
        self._base, self._origin, self._side = Pose(), (math.nan, math.nan), 0.0

    def add(self, space: FreeSpace) -> bool:
        """Look from there; returns whether it is known where that is, and in the grid."""
        base = space.base
        if base is None or len(space.ranges) != RANGES:
            return False
        if math.isnan(self._origin[0]):
            self._origin = base.x, base.y
        if self._cell(base.x, base.y) is None:
            return False
        self._base, self._side = base, space.body[1]
        away, bearing = self._from(base)
        toward = np.rint(bearing * (RANGES / math.tau)).astype(int) % RANGES
        ranges = np.array(space.ranges)
        free = away < np.minimum(ranges, NEAR_M)[toward] - COSTMAP_CELL_M
        solid, bearings = np.zeros_like(free), np.arange(RANGES) * (math.tau / RANGES)
        for met in np.flatnonzero(ranges < NEAR_M):
            yaw, far = base.yaw + bearings[met], ranges[met]
            cell = self._cell(base.x + far * math.cos(yaw), base.y + far * math.sin(yaw))
            if cell is not None:
                solid[cell] = True
        self._odds += np.where(solid, SOLID_ODDS, FREE_ODDS * free)
        np.clip(self._odds, -MOST_ODDS, MOST_ODDS, out=self._odds)
        aside = np.abs((bearing + math.pi) % math.tau - math.pi)
        seen = (aside <= CAMERA_RAD) & (away <= np.minimum(ranges, CAMERA_M)[toward])
        self._looked |= seen | (away <= NEAREST_LOOK_M)
        return True

    def path(self, place: tuple[float, float] | None) -> tuple[float, float] | None:
        """Bearing (rad) and length (m), from the base last added, of the first straight leg of the
        path to a place; without one, or a path to it, to where the camera has not looked. None:
        there is no path, or the place is not in the grid."""
        here = self._cell(self._base.x, self._base.y)
        there = here if place is None else self._cell(*place)
        if here is None or there is None:
            return None
        solid, known = self._odds > 0.0, self._odds < 0.0
        if place is not None:
            thing = self._from(Pose(*place))[0]
            cost, far = self._field(solid & (thing > THING_M), known, thing <= STANDS_M, here)
            straight = _is_straight(cost, here, there, far[here] + STANDS_M / COSTMAP_CELL_M)
            if far[here] == 0.0 or straight:
                return self._leg(*place)
        if place is None or math.isinf(far[here]):
            cost, far = self._field(solid, known, self._worth_a_look(solid, known), here)
        if math.isinf(far[here]):
            return None
        steps = np.array(first_leg(cost, far, here)) - REACH
        return self._leg(
            *(o + COSTMAP_CELL_M * int(n) for o, n in zip(self._origin, steps, strict=True))
        )

    def _field(self, solid: Mask, known: Mask, goals: Mask, here: Cell) -> tuple[Floats, Floats]:
        """What each cell costs, and the cheapest path from it to a goal; infinite: none."""
        cost, far = np.where(known, 1.0, UNSEEN_COST), np.full(solid.shape, np.inf)
        for beside, times in NARROW:
            cost[_near(solid, self._side + beside) > 0] *= times
        cost[_near(solid, self._side + FITS_M) > 0] = TIGHT_COST
        cost[_near(solid, NEVER_M) > 0] = math.inf
        cost[here] = 1.0
        shown = solid | known | goals
        shown[here] = True
        rows, columns = (np.flatnonzero(shown.any(axis)) for axis in (1, 0))
        part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        far[part] = cost_to_go(cost[part], goals[part])
        return cost, far

    def _worth_a_look(self, solid: Mask, known: Mask) -> Mask:
        """Floor where enough is free that the camera has not looked at; else where it ends in what
        is unknown."""
        able = known & (_near(solid, self._side + FITS_M) == 0)
        able &= self._from(self._base)[0] >= NEAREST_LOOK_M
        for new in (known & ~self._looked, ~known & ~solid):
            goals = able & (_near(new, LOOK_M) >= LOOK_CELLS)
            if goals.any():
                break
        return np.asarray(goals)

    def _leg(self, x: float, y: float) -> tuple[float, float]:
        dx, dy = x - self._base.x, y - self._base.y
        return wrap(math.atan2(dy, dx) - self._base.yaw), math.hypot(dx, dy)

    def _cell(self, x: float, y: float) -> Cell | None:
        steps = (round((v - o) / COSTMAP_CELL_M) for v, o in zip((x, y), self._origin, strict=True))
        row, column = steps
        return (row + REACH, column + REACH) if max(abs(row), abs(column)) <= REACH else None

    def _from(self, pose: Pose) -> tuple[Floats, Floats]:
        """Metres and bearings (rad) of all cells from a pose."""
        along = (np.arange(2 * REACH + 1) - REACH) * COSTMAP_CELL_M
        dx = (along + self._origin[0] - pose.x)[:, None]
        dy = (along + self._origin[1] - pose.y)[None]
        return np.hypot(dx, dy), np.arctan2(dy, dx) - pose.yaw


def cost_to_go(cost: Floats, goals: Mask) -> Floats:
    """What the cheapest path from each cell [W, D] to one of ``goals`` costs, where a step to a
    cell costs its ``cost`` times the step's length in cells; infinite: there is none."""
    far = np.where(goals & np.isfinite(cost), 0.0, np.inf)
    w, d = far.shape
    steps = [(i, j) for i in (0, 1, 2) for j in (0, 1, 2) if (i, j) != (1, 1)]
    while True:
        padded, nearer = np.pad(far, 1, constant_values=np.inf), far
        for i, j in steps:
            length = math.hypot(i - 1, j - 1)
            nearer = np.minimum(nearer, padded[i : i + w, j : j + d] + length * cost)
        if np.array_equal(nearer, far):
            return far
        far = nearer


def first_leg(cost: Floats, far: Floats, start: Cell) -> Cell:
    """The farthest cell down ``far`` to which the straight line costs hardly more than the path."""
    cell, leg = start, start
    while far[cell] > 0.0:
        low = max(cell[0] - 1, 0), max(cell[1] - 1, 0)
        near = far[low[0] : cell[0] + 2, low[1] : cell[1] + 2]
        row, column = divmod(int(near.argmin()), near.shape[1])
        following = low[0] + row, low[1] + column
        if following == cell:
            break
        cell = following
        if leg == start or _is_straight(cost, start, cell, far[start] - far[cell]):
            leg = cell
    return leg


def _is_straight(cost: Floats, start: Cell, end: Cell, path: float) -> bool:
    """Whether the straight line costs hardly more than this path."""
    line = np.linspace(start, end, 2 * max(abs(np.subtract(end, start))) + 1)
    rows, columns = np.rint(line).astype(int).T
    straight = float(cost[rows, columns].mean()) * math.dist(start, end)
    return straight < math.inf and straight <= STRAIGHT_SHARE * path + STRAIGHT_CELLS


def _near(mask: Mask, metres: float) -> NDArray[np.int_]:
    """How many cells of a mask are so near to each."""
    most = math.floor(metres / COSTMAP_CELL_M)
    padded, count = np.pad(mask, most), np.zeros(mask.shape, int)
    w, d = mask.shape
    for i in range(-most, most + 1):
        for j in range(-most, most + 1):
            if math.hypot(i, j) * COSTMAP_CELL_M <= metres:
                count += padded[most + i : most + i + w, most + j : most + j + d]
    return count
