"""Where the floor ends, as a cloud shows it. Pure functions of points in the base's frame.

Only what rays reach is judged. A ray that ends below the floor has passed it where there is none; a
direction in which nothing comes back tells something only where the floor is usually seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .footprint import ObstacleSettings, Points

Plane = NDArray[np.float64]
"""[a, b, c] of z = a x + b y + c in the base's frame, m."""

DIRECTIONS = 24
BEARINGS = (np.arange(DIRECTIONS) + 0.5) * (2 * np.pi / DIRECTIONS)  # rad, of their middles
CELL_M, CELLS = 0.15, 9  # m from the base's middle, of each sector
JUDGED_M = CELL_M * (CELLS - 2)  # floor that is seen farther is not known to end
DROP_M = 0.07  # m between two cells that no slope or noise explains
LEAST_POINTS = 2  # points of a cell that show a drop
STEEPEST = 0.3  # the slope of a floor at most, as it seems to a base that pitches
FLAT_M = 0.04  # m from a plane within which a point is on it
BUMP_M = 0.1  # m over the floor above which something stands there, however the base leans
TRIES, SAMPLED = 60, 300  # planes that are tried, on so many points
MOST_FITTED = 1500  # points that show a plane well
ACROSS = np.radians((-5.0, 0.0, 5.0))  # from a sector's middle, where its edge is marked


@dataclass(frozen=True, eq=False)
class Floor:
    """What a cloud tells of the floor in each of ``DIRECTIONS``.

    ``seen``: how far from the base's middle it is seen, m; the body's edge, where it is not.
    ``drops``: whether what comes next is lower. ``is_open``: whether nothing is seen after it,
    neither lower nor higher.
    """

    seen: NDArray[np.float64]
    drops: NDArray[np.bool_]
    is_open: NDArray[np.bool_]

    @property
    def reaches(self) -> NDArray[np.bool_]:
        """Whether it is seen as far as it is judged."""
        return self.is_open & (self.seen > JUDGED_M)

    def edges(self, usual: NDArray[np.bool_]) -> NDArray[np.float64]:
        """How far from the base's middle the floor ends, m; infinite where it does not. ``usual``:
        where it is usually seen, so that nothing seen means none."""
        ends = self.drops | (self.is_open & usual & (self.seen <= JUDGED_M))
        return np.where(ends, self.seen, np.inf)


def height_over(plane: Plane, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """How high [n] points [n, 3] are over a plane, m."""
    return np.asarray(points @ (-plane[0], -plane[1], 1.0) - plane[2])


def floor_of(points: NDArray[np.float64], plane: Plane, settings: ObstacleSettings) -> Floor:
    """What a cloud's points [n, 3], in the base's frame, tell of the floor; ``plane``: on which the
    base stands.

    Each counts where its ray meets the plane, so that an edge hides nothing. From the base
    outwards, the floor goes on while its height (the cells' median, from that plane) changes
    little: on a ramp, but over no edge.
    """
    mount = settings.points_at
    points = points[points[:, 2] < settings.highest]
    points = points[settings.beyond(points[:, :2]) > 0.0]
    height = height_over(plane, points)
    eye = max(CELL_M, float(height_over(plane, np.array([[mount.x, mount.y, mount.z]]))[0]))
    share = (eye / (eye - np.minimum(height, 0.0)))[:, None]
    met = (mount.x, mount.y) + (points[:, :2] - (mount.x, mount.y)) * share
    cell = np.minimum(np.hypot(*met.T) / CELL_M, CELLS).astype(np.intp)
    counts = (cell < CELLS) & (settings.beyond(met) > 0.0)
    spot = sector_of(met) * CELLS + cell
    return _outwards(*_medians(height[counts], spot[counts]), settings)


def sector_of(points: Points) -> NDArray[np.intp]:
    """The sector [n] of each of points [n, 2]."""
    bearing = np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi)
    return np.floor(bearing * DIRECTIONS).astype(np.intp) % DIRECTIONS


def _medians(
    height: NDArray[np.float64], spot: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The median height (NaN: none) and number of points of each cell [CELLS, DIRECTIONS]."""
    count = np.bincount(spot, minlength=DIRECTIONS * CELLS)
    ordered = np.append(height[np.lexsort((height, spot))], np.nan)
    median = np.where(count > 0, ordered[np.cumsum(count) - count + count // 2], np.nan)
    return median.reshape(DIRECTIONS, CELLS).T, count.reshape(DIRECTIONS, CELLS).T


def _outwards(
    medians: NDArray[np.float64], counts: NDArray[np.intp], settings: ObstacleSettings
) -> Floor:
    x, y = np.abs(np.cos(BEARINGS)), np.abs(np.sin(BEARINGS))
    ahead = np.where(np.cos(BEARINGS) > 0.0, settings.front, settings.rear)
    seen = np.minimum(ahead / x, settings.side / y)
    last, is_open, drops = (
        np.zeros(DIRECTIONS),
        np.ones(DIRECTIONS, bool),
        np.zeros(DIRECTIONS, bool),
    )
    for cell, (median, count) in enumerate(zip(medians, counts, strict=True)):
        lower = median < last - DROP_M
        drops |= is_open & lower & (count >= LEAST_POINTS)
        is_open &= ~drops & ~(median > last + DROP_M)
        goes_on = is_open & (count > 0) & ~lower
        last, seen = np.where(goes_on, median, last), np.where(goes_on, CELL_M * (cell + 1), seen)
    return Floor(seen, drops, is_open)


def plane_of(points: NDArray[np.float64], settings: ObstacleSettings) -> Plane:
    """The plane under the base's middle on which most of a cloud's ``points`` [n, 3] are, the
    nearer the more; a level one where there is none.

    RANSAC (Fischler and Bolles 1981), then least squares.
    """
    level = np.array([0.0, 0.0, settings.lowest - 2 * DROP_M])
    low = points[:, 2] < settings.lowest + 2 * DROP_M
    points = points[low & (settings.beyond(points[:, :2]) > 0.0)]
    points = points[np.hypot(points[:, 0], points[:, 1]) < CELL_M * CELLS]
    points = points[:: 1 + len(points) // MOST_FITTED]
    if len(points) < SAMPLED // 30:
        return level
    random = np.random.default_rng(0)
    some = random.integers(len(points), size=SAMPLED)
    x, y, z = points[some].T
    weight = 1.0 / (x**2 + y**2)
    one, two, three = points[some][random.choice(SAMPLED, (3, TRIES), p=weight / weight.sum())]
    normal = np.cross(two - one, three - one)
    with np.errstate(all="ignore"):  # three on one line have no plane
        slopes = -normal[:, :2] / normal[:, 2:]
    slopes = np.where(np.hypot(*slopes.T)[:, None] < STEEPEST, slopes, 0.0)
    planes = np.column_stack([slopes, one[:, 2] - (slopes * one[:, :2]).sum(1)])
    off = np.abs(planes @ np.stack([x, y, np.ones(SAMPLED)]) - z)
    score = (off < FLAT_M) @ weight * (planes[:, 2] < settings.lowest)
    plane = planes[score.argmax()]
    for _ in range(4):
        on = np.abs(height_over(plane, points)) < FLAT_M
        if on.sum() < 3 or score.max() <= 0.0:
            return level
        base = np.column_stack([points[on, :2], np.ones(on.sum())])
        plane = np.linalg.lstsq(base, points[on, 2], rcond=None)[0]
    return np.asarray(plane)


def marks(edges: NDArray[np.float64]) -> Points:
    """Points [m, 2] along the edges, each ``edges`` [DIRECTIONS] m from the base's middle."""
    there = np.isfinite(edges)
    bearings = (BEARINGS[there][:, None] + ACROSS).ravel()
    far = np.repeat(edges[there], len(ACROSS))[:, None]
    return np.asarray(far * np.stack([np.cos(bearings), np.sin(bearings)], 1))
