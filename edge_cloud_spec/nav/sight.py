"""What the rays of a lidar tell: where something is, and in which directions it sees at all. Pure
functions.

A ray that tells nothing is no free way: a covered lidar has only such rays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import refuse
from .floor import BUMP_M, Floor, floor_of, height_over, plane_of
from .footprint import Mount, ObstacleSettings, Points
from .motion import BLIND
from .pose import Velocity

Rays = NDArray[np.float64]
"""[n, 3]: the bearing of a ray in the base's frame, rad; how far from the lidar it saw, m along the
floor (0: it tells nothing); and 1 if something that counts ended it, else 0."""

TELLING_SHARE = 0.01  # the share of a message's rays that must tell something
SIDE_RAYS_SHARE = 0.25  # the share of a scan's rays to a side with which it sees there
SIDE_RETURNS = 5  # of a cloud to a side with which it sees there; it does not tell its other rays
NEAR_M = 4.0  # m; farther points do not matter
SIDE_DEGREES = 30  # degrees to either side of a move, each of which must be seen
ALL_AROUND = ((-30, 0), (0, 30), *((begin, begin + 60) for begin in range(30, 330, 60)))
LEFT, RIGHT = 1, -1
BESIDE = {LEFT: ((30, 90), (90, 150)), RIGHT: ((210, 270), (270, 330))}
SIDE_NAMES = ("ahead", "to its left", "behind", "to its right")
NO_RETURN_M = 1e-3  # m; nearer points are a driver's word for no return
FARTHEST_M = 500.0  # m; what is farther is no return of any lidar, but millimetres, or a constant
UNLIMITED_M = 1e30  # m; a driver's word for no limit, such as the largest float
BODY_EDGE_M = 0.01  # m from the body's edge beyond which a ray must see to tell something
SAME_THING_M = 0.1  # m between two points of one thing at most


def rays_of_scan(
    ranges: NDArray[np.float64],
    angles: NDArray[np.float64],
    nearest: float,
    farthest: float,
    settings: ObstacleSettings,
) -> Rays:
    """The rays of a level scan with these ranges [n] (m) and angles [n] in the lidar's frame.

    As REP 117 has it, +inf is a free way, -inf something too near to measure: it counts as standing
    at the body's edge. NaN, zero and what is beyond ``farthest`` tell nothing; ``farthest`` itself
    is some drivers' word for +inf. Raises ValueError, with a sentence, if the scan sees nothing
    (some drivers say +inf for a cover, too), or not what stands near the body.
    """
    mount = settings.scan_at
    beyond = max(mount.x - settings.front, -mount.x - settings.rear)
    hidden = nearest + min(nearest, beyond)
    refuse(
        (
            not 0.0 <= nearest < farthest,
            f"range_min of the scan is {nearest:.3g} and range_max {farthest:.3g}; correct them in "
            "its driver",
        ),
        (
            2 * FARTHEST_M < farthest < UNLIMITED_M,
            f"range_max of the scan is {farthest:g} m; does its driver say millimetres?",
        ),
        (
            hidden > settings.margin + settings.clearance,
            f"the scan does not see what is nearer than {nearest:.2f} m (range_min), up to "
            f"{hidden:.2f} m from the body; set obstacles.clearance to {hidden:.2f}",
        ),
        error=ValueError,
    )
    ways = np.stack([np.cos(angles), np.sin(angles), np.zeros(len(angles))], 1)
    x, y, _ = (mount.to_base(ways) - (mount.x, mount.y, mount.z)).T
    with np.errstate(divide="ignore", invalid="ignore"):  # the body's edge in the way of each ray
        ahead = np.where(x >= 0.0, settings.front - mount.x, settings.rear + mount.x) / np.abs(x)
        aside = np.where(y >= 0.0, settings.side - mount.y, settings.side + mount.y) / np.abs(y)
        edge = np.hypot(x, y) * np.maximum(np.fmin(ahead, aside), 0.0) + BODY_EDGE_M / 2
    free, near = (ranges == np.inf) | (ranges == farthest), ranges == -np.inf
    ends = (ranges > 0.0) & (ranges < min(farthest, FARTHEST_M))
    far = np.where(ends, ranges, np.where(free, farthest, 0.0)) * np.hypot(x, y)
    rays = np.stack([np.arctan2(y, x), np.where(near, edge, far), ends | near], 1)
    _telling(rays, len(ranges), mount, settings)
    if not (settings.beyond(ends_of(rays, mount))[ends] > BODY_EDGE_M).any():
        raise ValueError(
            "no ray of the scan meets anything: all are inf or range_max; is it covered?"
        )
    return rays


def cloud_of(places: NDArray[np.float64], settings: ObstacleSettings) -> tuple[Rays, Floor]:
    """The rays of a cloud's points [n, 3] in the lidar's frame, and what it tells of the floor;
    what has no return has no bearing and is left out.

    A ray counts as far as it is within the heights of ``settings``, so what sees only floor sees
    that the way is free; nothing stands where the floor is, however the base leans. Raises
    ValueError, with a sentence, if the cloud sees nothing.
    """
    mount = settings.points_at
    far = np.abs(places)
    absurd = np.count_nonzero(((far > FARTHEST_M) & np.isfinite(far)).any(1))
    if absurd > len(places) / 2:
        raise ValueError(
            f"{absurd} of {len(places)} points are farther than {FARTHEST_M:g} m; does its driver "
            "say millimetres, or has it another order of bytes (is_bigendian)?"
        )
    is_return = (far <= FARTHEST_M).all(1) & (far > NO_RETURN_M).any(1)
    points = mount.to_base(places[is_return])
    x, y, z = (points - (mount.x, mount.y, mount.z)).T
    plane = plane_of(points, settings)
    limit = np.clip(mount.z + z, settings.lowest, settings.highest)
    counts = limit == mount.z + z
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(counts, 1.0, (limit - mount.z) / z)
    part = np.where((part >= 0.0) & (part <= 1.0), part, 0.0)  # else it is never within
    counts &= height_over(plane, points) >= min(settings.lowest - plane[2], BUMP_M)
    rays = np.stack([np.arctan2(y, x), np.hypot(x, y) * part, counts], 1)
    return _telling(rays, len(places), mount, settings), floor_of(points, plane, settings)


def _telling(rays: Rays, count: int, mount: Mount, settings: ObstacleSettings) -> Rays:
    """``rays``, if enough of ``count`` tell something; raises ValueError, with a sentence."""
    tell = np.count_nonzero(settings.beyond(ends_of(rays, mount)) > BODY_EDGE_M)
    if tell < max(1.0, TELLING_SHARE * count):
        raise ValueError(
            f"{tell} of {count} rays tell anything from beyond the robot's body; is it covered? "
            "(A ray that meets nothing must be inf, others in metres, and the mount right: "
            "obstacles.scan_at, points_at)"
        )
    return rays


def ends_of(rays: Rays, mount: Mount) -> Points:
    """Where rays end, or how far they saw: [n, 2] in the base's frame, m."""
    bearings, seen = rays[:, 0], np.minimum(rays[:, 1], 1e3)
    return np.stack([mount.x + seen * np.cos(bearings), mount.y + seen * np.sin(bearings)], 1)


@dataclass(frozen=True, eq=False)
class LidarSight:
    """What a lidar of this ``source`` sees: the points [n, 2] at which rays ended beyond the body.

    ``rays`` [360] counts its rays by the degree of their bearing, ``telling`` [360] those of them
    that tell something. ``spacing``: degrees between the rays of a scan.
    """

    source: str
    mount: Mount
    points: Points
    rays: NDArray[np.intp]
    telling: NDArray[np.intp]
    spacing: float

    @classmethod
    def of(cls, source: str, rays: Rays, settings: ObstacleSettings) -> LidarSight:
        """What these rays tell; rays without a number are left out."""
        mount: Mount = getattr(settings, f"{source}_at")
        rays = rays[np.isfinite(rays[:, 0]) & ~np.isnan(rays[:, 1])]
        ends, degrees = ends_of(rays, mount), np.degrees(rays[:, 0])
        beyond, spots = settings.beyond(ends), _degree(degrees)
        points = ends[(rays[:, 2] > 0.0) & (beyond > 0.0)]
        apart = np.abs((np.diff(degrees, append=0.0) + 180.0) % 360.0 - 180.0)
        spacing = float(np.median(apart)) if len(rays) else 0.0
        counts, telling = (
            np.bincount(at, minlength=360) for at in (spots, spots[beyond > BODY_EDGE_M])
        )
        return cls(source, mount, points, counts, telling, spacing)

    def misses(self, points: Points) -> NDArray[np.bool_]:
        """Whether this says nothing of each of ``points`` [n, 2], seen earlier.

        A scan does where a ray looks there that tells something: the thing, or what is beyond. A
        cloud's rays may pass above it, so only a point of the thing does.
        """
        if self.source == "scan":
            x, y = (points - (self.mount.x, self.mount.y)).T
            wide = int(self.spacing / 2 + 0.4)
            there = np.degrees(np.arctan2(y, x)) + np.arange(-wide, wide + 1)[:, None]
            return np.asarray((self.telling[_degree(there)] == 0).all(0))
        return np.asarray((np.hypot(*(points[:, None] - self.points).T) > SAME_THING_M).all(0))

    def sees(self, begin: int, end: int) -> bool:
        """Whether enough rays between these bearings (degrees to the left) tell something."""
        rays, telling = self._rays_between(begin, end)
        least = max(1.0, SIDE_RAYS_SHARE * rays) if self.source == "scan" else SIDE_RETURNS
        return telling >= least

    def _rays_between(self, begin: int, end: int) -> tuple[int, int]:
        """How many rays go there, and how many of them tell something."""
        there = np.arange(begin, end + 1) % 360
        return int(self.rays[there].sum()), int(self.telling[there].sum())

    def blind(self, begin: int, end: int) -> str | None:
        """Why it does not see between these bearings (degrees to the left); empty: it does.

        None: it does not look there, by its build: a scan by its angles; of a cloud, which tells
        no ray without a return, only its view ahead is judged.
        """
        where, scans = round((begin + end) / 180) % 4, self.source == "scan"
        rays, telling = self._rays_between(begin, end)
        if rays * self.spacing < (end - begin) / 2 if scans else where:
            return None
        if self.sees(begin, end):
            return ""
        of = f"{telling} of {rays}" if scans else f"{telling}"
        return (
            f"{self.source} sees too little {SIDE_NAMES[where]} ({of} rays); is it covered? Where "
            "nothing is, its driver must say inf; what its mount hides must not be in its angles"
        )


def _degree(bearings: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.asarray(np.rint(bearings).astype(np.intp) % 360)


def blindness(sights: Sequence[LidarSight], velocity: Velocity, reach: float) -> str:
    """Why the lidars do not see where ``velocity`` leads; empty if they do.

    Each that looks there must see there. Ahead one must look; elsewhere, where none looks by its
    build, nothing is seen and the way counts as free. ``reach``: the body's, m.
    """
    middle = 0 if velocity.vx >= 0.0 else 180
    turns = abs(velocity.wz) * reach > velocity.speed
    sides = [(middle - SIDE_DEGREES, middle), (middle, middle + SIDE_DEGREES)]
    if abs(velocity.vy) > abs(velocity.vx):
        sides += BESIDE[LEFT if velocity.vy > 0.0 else RIGHT]
    for side in ALL_AROUND if turns else sides:
        whys = [why for sight in sights if (why := sight.blind(*side)) is not None]
        if any(whys):
            return f"{BLIND}: {max(whys)}"
        if not whys and side in ALL_AROUND[:2]:
            return f"{BLIND}: no lidar looks ahead; correct the yaw of obstacles.scan_at"
    return ""


def sides_seen(sights: Sequence[LidarSight]) -> list[int]:
    """Which of LEFT and RIGHT a lidar sees, and none that looks there is blind."""
    return [
        side
        for side, sectors in BESIDE.items()
        if all(
            any(sight.sees(*sector) for sight in sights)
            and not any(sight.blind(*sector) for sight in sights)
            for sector in sectors
        )
    ]
