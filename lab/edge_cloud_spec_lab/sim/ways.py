"""Where a robot fits among things and walls, and its shortest ways, on a grid of the floor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edge_cloud_spec.pilot.costmap import cost_to_go

from .thing import Thing

CELL = 0.1
"""Metres of a cell's side."""

ROBOT_GAP_M = 0.26
"""Metres at least from the middle of a robot that goes straight on to all that is solid."""

Point = tuple[float, float]


class Ways:
    """The floor [W, D] of ``size`` metres around the origin, with solid things on it.

    ``points`` [W, D, 2] are the cells' middles, ``gap`` how far each is from what is solid (m).
    Where that is less than ``keeps``, the robot does not fit; where it is less than ``roomy``, a
    way counts as longer.
    """

    def __init__(
        self,
        size: tuple[float, float],
        solid: Sequence[Thing],
        keeps: float = ROBOT_GAP_M,
        roomy: float = 0.42,
    ) -> None:
        self._size, self._keeps = size, keeps
        axes = [(np.arange(math.ceil(s / CELL)) + 0.5) * CELL - s / 2 for s in size]
        self.points = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        self.gap = (np.array(size) / 2 - np.abs(self.points)).min(-1)
        for thing in solid:
            if any(part.solid for part in thing.parts):
                self.gap = np.minimum(self.gap, self.distances(thing))
        self.free = self.gap >= keeps
        # a way in the middle is worth a small detour
        self.cost = 1 + 2 * np.clip(roomy - self.gap, 0, None)
        self._fields: dict[bytes, np.ndarray] = {}  # a robot goes down the same one for long

    def distances(self, thing: Thing) -> np.ndarray:
        """Metres [W, D] from each cell to the thing's footprint."""
        off = self.points - (thing.x, thing.y)
        cos, sin = math.cos(thing.yaw), math.sin(thing.yaw)
        along = np.abs(cos * off[..., 0] + sin * off[..., 1])
        across = np.abs(cos * off[..., 1] - sin * off[..., 0])
        if thing.round:
            return np.maximum(0.0, np.hypot(along, across) - thing.half[0])
        outside = np.maximum(0, along - thing.half[0]), np.maximum(0, across - thing.half[1])
        return np.asarray(np.hypot(*outside))

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """The cell of (x, y), or the nearest one."""
        places = ((v + s / 2) / CELL for v, s in zip((x, y), self._size, strict=True))
        i, j = (min(max(int(p), 0), n - 1) for p, n in zip(places, self.gap.shape, strict=True))
        return i, j

    def gap_at(self, x: float, y: float) -> float:
        """Metres from (x, y) to what is solid."""
        return float(self.gap[self.cell(x, y)])

    def at(self, x: float, y: float) -> np.ndarray:
        """A mask [W, D] of the one cell at (x, y)."""
        mask = np.zeros(self.gap.shape, bool)
        mask[self.cell(x, y)] = True
        return mask

    def field(self, goals: np.ndarray) -> np.ndarray:
        """Metres [W, D] from each free cell to the nearest of ``goals`` [W, D], infinite: no way.

        Ways near to what is solid count as longer.
        """
        key = goals.tobytes()
        if key not in self._fields:
            cost = np.where(self.free, CELL * self.cost, np.inf)
            self._fields[key] = cost_to_go(cost, goals)
        return self._fields[key]

    def clear(self, a: Point, b: Point) -> bool:
        """Whether the robot fits on the straight line; no worse than at its begin is enough."""
        count = max(2, math.ceil(math.dist(a, b) / (CELL / 2)))
        line = np.linspace(a, b, count)
        cells = ((line + np.array(self._size) / 2) / CELL).astype(int)
        cells = np.clip(cells, 0, np.array(self.gap.shape) - 1)
        gaps = self.gap[cells[:, 0], cells[:, 1]]
        return bool(gaps.min() >= min(self._keeps, gaps[0]) - 1e-9)

    def ahead(self, field: np.ndarray, place: Point, most: float = math.inf) -> Point:
        """The farthest point of the way down ``field`` to which one can go straight, m.

        Not farther than ``most``; ``place`` where the goal is reached or there is no way.
        """
        i, j = self.cell(*place)
        if not math.isfinite(field[i, j]):
            away = np.hypot(*np.moveaxis(self.points - place, -1, 0))
            away[~np.isfinite(field)] = np.inf
            i, j = (int(v) for v in np.unravel_index(int(away.argmin()), away.shape))
        best = place
        while math.isfinite(field[i, j]):
            here = (float(self.points[i, j, 0]), float(self.points[i, j, 1]))
            if math.dist(here, place) <= most and self.clear(place, here):
                best = here
            elif best != place:
                break
            if field[i, j] == 0.0:
                break
            low_i, low_j = max(i - 1, 0), max(j - 1, 0)
            near = field[low_i : i + 2, low_j : j + 2]
            k = int(near.argmin())
            i, j = low_i + k // near.shape[1], low_j + k % near.shape[1]
        return best

    def way(self, field: np.ndarray, place: Point) -> list[Point]:
        """The way from ``place`` down the field, as the corners of straight lines."""
        way = [place]
        while len(way) < 100:
            following = self.ahead(field, way[-1])
            if math.dist(following, way[-1]) < CELL / 2:
                break
            way.append(following)
        return way
