"""What moves by itself, by two scans. Pure functions of points in the frames of a base."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .footprint import Mount, ObstacleSettings, Points
from .sight import Rays

SEEN_PAST_M = 0.1  # m from a point up to which rays went beyond it
SHIFT_M, SHIFT_DEGREES = 0.05, 2.0  # by which a scan may be off, to a side and in bearing
SHIFT_OF_TURN = 0.25  # of a turn since the other scan, by which it may be off besides
WIDEST = 15  # degrees that are looked at to either side, of what is very near
LEAST_OF_SOMEBODY = 3  # points
NEAR_PEOPLE_M = 1.0  # m from the body within which people count


def reach_of(rays: Rays) -> NDArray[np.float64]:
    """How far [360] a scan saw, by the degree, m; 0: a ray there tells nothing; inf: there is
    none."""
    reach, rays = np.full(360, np.inf), rays[np.isfinite(rays[:, 0]) & ~np.isnan(rays[:, 1])]
    np.minimum.at(reach, np.rint(np.degrees(rays[:, 0])).astype(np.intp) % 360, rays[:, 1])
    return reach


def seen_free(
    points: Points, reach: NDArray[np.float64], mount: Mount, turned: float
) -> NDArray[np.bool_]:
    """Which [n] of points [n, 2] stand where another scan, in whose frame they are, saw nothing.
    ``turned``: by the base between both, rad."""
    x, y = (points - (mount.x, mount.y)).T
    far, degree = np.hypot(x, y), np.rint(np.degrees(np.arctan2(y, x))).astype(np.intp)
    beside = np.arange(-WIDEST, WIDEST + 1)
    wide = np.degrees(SHIFT_M / np.maximum(far, SHIFT_M) + SHIFT_OF_TURN * turned) + SHIFT_DEGREES
    there = np.abs(beside) <= wide[:, None]
    saw = np.where(there, reach[(degree[:, None] + beside) % 360], np.inf)
    return np.asarray(saw.min(1) > far + SEEN_PAST_M)


def moves_near(came: Points, settings: ObstacleSettings) -> bool:
    """Whether somebody moves near the body: ``came`` [n, 2] stands where there was nothing."""
    near = settings.beyond(came) < NEAR_PEOPLE_M
    return bool(np.count_nonzero(near) >= LEAST_OF_SOMEBODY)
