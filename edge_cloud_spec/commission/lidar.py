"""Computes from a lidar's scans how it is mounted and what it sees of the robot itself: pure
functions.

Between two stands the room must move in the base's frame as the base did by odometry. A mount that
is turned turns the move's direction and leaves a turn as it is; one that hangs also reverses turns.
So each candidate is scored by how far the points of the second stand, moved back, are from those of
the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..nav.footprint import ObstacleSettings, Points
from .figures import Run, TrialMeasurements

EVERY = 0.4  # s between two scans that are kept
# Points farther apart were not seen twice; farther ones are sparse.
SEEN_TWICE_M, FARTHEST_POINT_M = 0.2, 6.0
WITHIN = ((0.15, 1.5), (0.08, 0.7))  # m, rad of the runs between whose stands scans are compared
REST_DELAY_S = 0.5  # s from a command's end, after which a scan shows where it stood
# The pairs of an axis; every so many points are looked for in the other scan.
LONGEST_PAIRS, POINT_STRIDE = 4, 4
YAW_STEP = 15  # degrees between two candidates, and a fifth of it at last
SCALES, ROUGHLY = np.arange(0.6, 1.61, 0.02), (0.7, 1.0, 1.4)  # of odometry's way
CLEAR = (1.25, 0.004)  # times, and m more, that other candidates are farther off
# Around the body, where it sees only itself; more than it sees.
BODY_NEAR_M, BODY_EXTRA_M = 0.25, 0.02
SECTORS, SEEN = 8, 0.85  # headings of the base, and their share in which it sees itself

Pair = tuple[Points, Points, NDArray[np.float64], float]
"""The points of two stands, and where the second was from the first: m [2], rad."""


class MeasuredMount(NamedTuple):
    """How a lidar's points are turned from where they are, rad to the left; ``hangs``: they are
    mirrored before; ``metre``: metres by odometry of one by the points."""

    yaw: float
    hangs: bool
    metre: float


def thinned(points: Points) -> Points:
    """The nearest of the points [n, 2] in each degree around the base."""
    points = points[np.argsort(np.hypot(*points.T))]
    return np.asarray(points[np.unique(_degrees(points), return_index=True)[1]])


def own_points(recording: TrialMeasurements, source: str) -> Points:
    """The points [n, 2] of the robot itself beyond its body's edge: near it wherever it heads."""
    times, points = zip(*recording.scans[source], strict=True)
    yaws = np.interp(times, *recording.path[:, [0, 3]].T)
    sectors = (yaws * SECTORS / math.tau).astype(int) % SECTORS
    near = [one[recording.obstacles.beyond(one) < BODY_NEAR_M] for one in points]
    seen = np.zeros((len(near), 360))
    for row, one in zip(seen, near, strict=True):
        row[_degrees(one)[:, None] + (-1, 0, 1)] = 1.0  # legs sway
    headings = np.array([seen[sectors == sector].mean(0) for sector in np.unique(sectors)])
    always = (headings.mean(0) >= SEEN) & (len(headings) >= SECTORS / 2)
    own = np.concatenate([one[always[_degrees(one)]] for one in near])
    return np.asarray(own[recording.obstacles.beyond(own) > 0.0])


def body_around(own: Points, body: ObstacleSettings) -> dict[str, float]:
    """The fields of ``body`` that must grow to hold these points, m."""
    x, y = own.T
    ends = {"front": x, "rear": -x, "side": np.abs(y)}
    most = {name: float(at.max(initial=0.0)) for name, at in ends.items()}
    return {
        name: round(at + BODY_EXTRA_M, 2) for name, at in most.items() if at > getattr(body, name)
    }


def mount_of(
    recording: TrialMeasurements, source: str, runs: Sequence[Run], own: Points
) -> MeasuredMount | None:
    """How a lidar is mounted; None if its surroundings do not tell."""
    axes = [[_pair(recording, source, run, own) for run in runs if run.axis == a] for a in (0, 1)]
    moves, turns = (
        sorted((p for p in pairs if p), key=lambda p: -math.hypot(*p[2], p[3]))[:LONGEST_PAIRS]
        for pairs in axes
    )
    scores = {
        (yaw, hangs): min(_apart(moves + turns, yaw, hangs, scale) for scale in ROUGHLY)
        for yaw, hangs in product(range(-180, 180, YAW_STEP), (False, True))
    }
    best, hangs = min(scores, key=lambda one: scores[one])
    others = min(
        score
        for (yaw, other), score in scores.items()
        if other != hangs or abs(math.remainder(yaw - best, 360)) > 2 * YAW_STEP
    )
    if not (moves and turns) or others < CLEAR[0] * scores[best, hangs] + CLEAR[1]:
        return None
    scale = min(SCALES, key=lambda one: _apart(moves, best, hangs, one))
    fine = range(best - YAW_STEP, best + YAW_STEP + 1, YAW_STEP // 5)
    yaw = min(fine, key=lambda one: _apart(moves, one, hangs, scale))
    return MeasuredMount(math.remainder(math.radians(yaw), math.tau), hangs, float(1 / scale))


def _pair(recording: TrialMeasurements, source: str, run: Run, own: Points) -> Pair | None:
    least, most = WITHIN[run.axis]
    scans, (times, *place) = recording.scans[source], recording.path.T
    stands = [[p for at, p in scans if at < run.begin][-1:]]
    stands += [[p for at, p in scans if run.end + REST_DELAY_S < at < run.rest][-1:]]
    if not (all(stands) and least <= abs(run.ended) <= most):
        return None
    first, last = np.array([np.interp([run.begin, run.rest], times, one) for one in place]).T
    dx, dy, turned = last - first
    before, after = (points[_is_room(points, own)] for (points,) in stands)
    return (before, after, _turn(first[2]) @ (dx, dy), turned) if len(before) * len(after) else None


def _is_room(points: Points, own: Points) -> NDArray[np.bool_]:
    far = np.hypot(*points.T)
    return np.asarray(
        (far < FARTHEST_POINT_M) & ~(np.isin(_degrees(points), _degrees(own)) & (far < 1.0))
    )


def _degrees(points: Points) -> NDArray[np.int64]:
    return np.floor(np.degrees(np.arctan2(points[:, 1], points[:, 0]))).astype(np.int64)


def _turn(angle: float) -> NDArray[np.float64]:
    # By which coordinates change when their frame turns left by the angle, rad.
    return np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])


def _apart(pairs: Sequence[Pair], degrees: float, hangs: bool, scale: float = 1.0) -> float:
    # The mean distance between the points of two stands under a mount, m, SEEN_TWICE_M at most.
    mirror, yaw = (1.0, -1.0 if hangs else 1.0), _turn(math.radians(degrees))
    sums = [0.0]
    for before, after, way, turned in pairs:
        moved = after[::POINT_STRIDE] * mirror @ _turn(turned) + scale * (way @ yaw)
        there = before * mirror
        squares = (moved**2).sum(1)[:, None] + (there**2).sum(1) - 2.0 * moved @ there.T
        sums.append(np.minimum(np.sqrt(squares.min(1).clip(0.0)), SEEN_TWICE_M).mean())
    return float(np.mean(sums))
