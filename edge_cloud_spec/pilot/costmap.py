"""What a mission has seen of the floor, and the path over it.

An occupancy grid of log odds (Moravec and Elfes, ICRA 1985) with a cost near what is solid, and
where the camera has not looked yet (frontiers: Yamauchi, CIRA 1997). A path ends where the body
faces the thing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..nav.free_space import RANGES, FreeSpace
from ..nav.pose import Pose, wrap
from ..nav.sight import NEAR_M
from .lattice import (
    HEADING_STEPS,
    HEADINGS,
    HEADINGS_RAD,
    TIGHT_COST,
    Cell,
    Floats,
    Lattice,
    LatticePath,
    Mask,
    State,
    nearest_heading,
)

COSTMAP_CELL_M = 0.1
REACH = 100  # cells to each side of where the mission began
CAMERA_M, CAMERA_RAD = 4.0, math.radians(30)  # how far and to either side a picture shows things
FREE_ODDS, SOLID_ODDS, MOST_ODDS = -1.0, 2.0, 4.0
NEVER_M = 0.15  # from what is solid; no base's middle is so near
FITS_M = 0.02  # beside the body; with less it does not fit
NARROW = (0.1, 1.6), (0.2, 1.6)  # m beside it: what has less costs so many times as much
UNSEEN_COST = 1.5  # of a cell; free ones cost 1
HEADED = 42  # cells to each side of the base within which headings count
# What most bodies keep, as ObstacleSettings has it: a free space tells the side's margin alone.
BODY_MARGIN_M, CLEARANCE_M = 0.08, 0.15
THING_M = 0.3  # from the thing's place; what is solid there is the thing
STANDS_M, FACING_RAD = 1.0, 0.3  # from its place, and from ahead to it, at the path's end
LOOK_M, LOOK_CELLS = 0.35, 14  # so many that are new around a cell are worth a look
NEAREST_LOOK_M = 0.5
LEAST_FREE_M, SHUT_DECISIONS = 0.05, 20  # so little counts as none; for so many decisions

Window = tuple[slice, slice]


class Costmap:
    """A grid in the odometry's frame, around where the mission began."""

    def __init__(self) -> None:
        size = 2 * REACH + 1
        self._odds, self._looked = np.zeros((size, size)), np.zeros((size, size), bool)
        self._base, self._origin = Pose(), (math.nan, math.nan)
        self._front, self._side = 0.0, 0.0
        self._adds, self._shut = 0, dict[tuple[State, int], int]()  # when a step was not made

    def add(self, space: FreeSpace) -> bool:
        """Look from there; returns whether it is known where that is, and in the grid."""
        base = space.base
        if base is None or len(space.ranges) != RANGES:
            return False
        if math.isnan(self._origin[0]):
            self._origin = base.x, base.y
        if self._cell(base.x, base.y) is None:
            return False
        self._base, (self._front, self._side) = base, space.body
        away, bearing = self._from(base)
        toward = np.rint(bearing * (RANGES / math.tau)).astype(int) % RANGES
        ranges = np.array(space.ranges)
        free = away < np.minimum(ranges, NEAR_M)[toward] - COSTMAP_CELL_M
        solid, bearings = np.zeros_like(free), np.arange(RANGES) * (math.tau / RANGES)
        for met in np.flatnonzero(ranges <= NEAR_M):
            yaw, far = base.yaw + bearings[met], ranges[met]
            cell = self._cell(base.x + far * math.cos(yaw), base.y + far * math.sin(yaw))
            if cell is not None:
                solid[cell] = True
        self._odds += np.where(solid, SOLID_ODDS, FREE_ODDS * free)
        np.clip(self._odds, -MOST_ODDS, MOST_ODDS, out=self._odds)
        aside = np.abs((bearing + math.pi) % math.tau - math.pi)
        seen = (aside <= CAMERA_RAD) & (away <= np.minimum(ranges, CAMERA_M)[toward])
        self._looked |= seen | (away <= NEAREST_LOOK_M)
        self._note_shut(space)
        return True

    def _note_shut(self, space: FreeSpace) -> None:
        """Note whether the navigator lets it go ahead and back from there."""
        here, heading = self._cell(self._base.x, self._base.y), nearest_heading(self._base.yaw)
        assert here is not None
        self._adds += 1
        begin = self._adds - SHUT_DECISIONS
        self._shut = {step: when for step, when in self._shut.items() if when > begin}
        step = HEADING_STEPS[heading]
        for sign, metres in ((1, space.ahead), (-1, space.behind)):
            there = (heading, here[0] + sign * step[0], here[1] + sign * step[1])
            self._shut.pop((there, sign), None)
            if metres < LEAST_FREE_M:
                self._shut[there, sign] = self._adds

    def path(self, place: tuple[float, float] | None) -> tuple[float, float] | None:
        """Bearing (rad) and length (m), from the base last added, of the first straight leg of the
        path to a place; without one, or a path to it, to where the camera has not looked. None:
        there is no path, or the place is not in the grid."""
        here = self._cell(self._base.x, self._base.y)
        there = here if place is None else self._cell(*place)
        if here is None or there is None:
            return None
        solid = self._odds > 0.0
        if place is not None:
            around = away, _ = self._from(Pose(*place))
            stands = (away > THING_M) & (away <= STANDS_M)
            others = solid & (away > THING_M)
            seeing = _seeing(others, stands, there)
            path = self._path_to(seeing if seeing.any() else stands, others, here, around)
            if path is not None:
                straight = path.leads_straight(there, STANDS_M / COSTMAP_CELL_M)
                leg = here if straight else path.first_leg
                return self._leg(*place) if leg == here else self._leg_to(leg)
        path = self._path_to(self._worth_a_look(solid), solid, here)
        return None if path is None else self._leg_to(path.first_leg)

    def _path_to(
        self, goals: Mask, solid: Mask, here: Cell, around: tuple[Floats, Floats] | None = None
    ) -> LatticePath | None:
        """The path to one of ``goals``; None: there is none. ``around``: metres and bearings of the
        cells from a place; then it ends facing that.

        Headings count within HEADED cells; farther on it is the path of a disc.
        """
        whole, near = _windows((self._odds != 0.0) | goals, here)
        cost = self._costs(solid, whole)
        cost[here] = 1.0
        ends = np.where(goals[near], 0.0, np.full((HEADINGS, 1, 1), math.inf))
        if around is not None:
            away, bearing = around  # from the place: it faces the other way
            ends[np.cos(HEADINGS_RAD[:, None, None] - bearing[near]) > -math.cos(FACING_RAD)] = (
                math.inf
            )
            cost[away <= THING_M] += TIGHT_COST
        low = near[0].start, near[1].start
        row, column = here[0] - low[0], here[1] - low[1]
        if near != whole:
            beyond = self._beyond(cost, solid, goals, whole)[near]
            inner = (slice(max(0, n - HEADED + 1), n + HEADED) for n in (row, column))
            beyond[tuple(inner)] = math.inf
            ends = np.minimum(ends, beyond)
        body = (self._front + BODY_MARGIN_M, self._side, CLEARANCE_M)
        lattice = Lattice(cost[near], solid[near], *(m / COSTMAP_CELL_M for m in body))
        for (heading, r, c), sign in self._shut:
            if near[0].start <= r < near[0].stop and near[1].start <= c < near[1].stop:
                lattice.shut((heading, r - low[0], c - low[1]), sign)
        start = nearest_heading(self._base.yaw), row, column
        path = LatticePath(lattice, ends, start, low)
        return path if math.isfinite(path.cost) else None

    def _beyond(self, cost: Floats, solid: Mask, goals: Mask, whole: Window) -> Floats:
        """What the path of a disc costs from each cell; infinite: there is none."""
        beyond, touched = np.full_like(cost, math.inf), _near(solid[whole], self._side + FITS_M) > 0
        beyond[whole] = cost_to_go(cost[whole] + TIGHT_COST * touched, goals[whole])
        return beyond

    def _costs(self, solid: Mask, whole: Window) -> Floats:
        """What cells of a window cost to come to, infinite: no base's middle is there."""
        cost, solid = np.where(self._odds < 0.0, 1.0, UNSEEN_COST), solid[whole]
        for beside, times in NARROW:
            cost[whole][_near(solid, self._side + beside) > 0] *= times
        cost[whole][_near(solid, NEVER_M) > 0] = math.inf
        return cost

    def _worth_a_look(self, solid: Mask) -> Mask:
        """Floor where enough is free that the camera has not looked at; else where it ends in what
        is unknown."""
        known = self._odds < 0.0
        able = known & (_near(solid, self._side + FITS_M) == 0)
        able &= self._from(self._base)[0] >= NEAREST_LOOK_M
        for new in (known & ~self._looked, ~known & ~solid):
            goals = able & (_near(new, LOOK_M) >= LOOK_CELLS)
            if goals.any():
                break
        return np.asarray(goals)

    def _leg_to(self, cell: Cell) -> tuple[float, float]:
        middle = np.array(self._origin) + COSTMAP_CELL_M * (np.array(cell) - REACH)
        return self._leg(*middle.tolist())

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


def _windows(shown: Mask, middle: Cell) -> tuple[Window, Window]:
    """The part of a grid that has what is shown and a cell, and what of it is within HEADED cells
    of that."""
    whole, near = [], []
    for axis, here in zip((1, 0), middle, strict=True):
        cells = np.append(np.flatnonzero(shown.any(axis)), here)
        low, high = int(cells.min()), int(cells.max()) + 1
        whole.append(slice(low, high))
        near.append(slice(max(low, here - HEADED), min(high, here + HEADED + 1)))
    return (whole[0], whole[1]), (near[0], near[1])


def _seeing(solid: Mask, cells: Mask, there: Cell) -> Mask:
    """Those of ``cells`` from which nothing solid hides a place."""
    found, seeing = np.argwhere(cells), np.zeros_like(cells)
    part = np.linspace(0.0, 1.0, int(STANDS_M / COSTMAP_CELL_M) + 2)[:, None, None]
    rows, columns = np.rint(found * (1.0 - part) + np.array(there) * part).astype(int).T
    seeing[tuple(found.T)] = ~solid[rows, columns].any(1)
    return seeing


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
