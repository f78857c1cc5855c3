"""A simulated lidar: a ray to each degree and to each thing, as ``rays_of_scan`` reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.sight import Rays, rays_of_scan

NEAREST, FARTHEST = 0.05, 12.0  # m
BODY = ObstacleSettings(scan="scan")


def hidden(bearings: np.ndarray, sectors: Iterable[tuple[float, float]]) -> np.ndarray:
    """Whether bearings (degrees) are in one of the sectors (begin and end, degrees to the left)."""
    found = np.zeros(len(bearings), bool)
    for begin, end in sectors:
        found |= (bearings - begin) % 360.0 <= (end - begin)
    return found


def scan_of(
    things: Iterable[tuple[float, float]],
    sectors: Iterable[tuple[float, float]] = (),
    says: float = math.nan,
    nearest: float = NEAREST,
    settings: ObstacleSettings = BODY,
    field: tuple[float, float] = (-180.0, 180.0),
) -> Rays:
    """The rays of a scan of things about the base, elsewhere of far walls. A ray into ``sectors``,
    or to what is nearer than ``nearest``, ``says`` this. ``field``: degrees in which rays go
    out."""
    places = np.array(list(things), float).reshape(-1, 2)
    around = np.arange(*field)
    far, off = np.hypot(*places.T), np.degrees(np.arctan2(places[:, 1], places[:, 0]))
    looks = (off >= field[0]) & (off < field[1])
    ranges = np.concatenate([np.full(len(around), FARTHEST - 0.5), far[looks]])
    degrees = np.concatenate([around, off[looks]])
    for near in np.flatnonzero(far < max(nearest, 0.6)):  # it hides what is beyond it
        beside = np.abs((degrees - off[near] + 180) % 360 - 180) < 3.0
        ranges[beside] = np.minimum(ranges[beside], far[near])
    ranges[(ranges < nearest) | hidden(degrees, sectors)] = says
    return rays_of_scan(ranges, np.radians(degrees), nearest, FARTHEST, settings)
