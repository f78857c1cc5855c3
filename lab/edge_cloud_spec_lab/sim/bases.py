"""The bases that can drive in a room: the choice, and a simulated lidar scan."""

from __future__ import annotations

import math

import numpy as np

from edge_cloud_spec.nav.free_space import FreeSpace, free_space, looking_around
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.sight import LidarSight, Rays

from .camera import cast
from .legs import Legs
from .room import Room
from .scene import ROBOT_GROUPS, Scene
from .world import World

IDEAL_BASE, GO2_BASE, UNTRIMMED_GO2_BASE = "ideal", "go2", "go2_untrimmed"
BASES = (IDEAL_BASE, GO2_BASE, UNTRIMMED_GO2_BASE)
"""Ours, the legged Go2, and the same without the loop that trims its gait to the command."""

RAYS = 360
HEIGHTS = (0.1, 0.25, 0.4)
"""Rays of a scan, and metres above the floor at which they leave."""

ANGLES = -math.pi + np.arange(RAYS) * (2 * math.pi / RAYS)
"""Of the rays, rad from ahead, to the left positive (ROS REP 103)."""

SCAN_NEAREST_M, SCAN_FARTHEST_M = 0.05, 12.0
"""Metres between which a scan sees something."""


Base = World | Legs
"""A robot's base in a room; for one thread."""


def make_base(name: str, room: Room, people: int = 0, drift: float = 0.0) -> Base:
    """Make a base of BASES at the room's start; UserError if its package is missing."""
    if name in (GO2_BASE, UNTRIMMED_GO2_BASE):
        return Legs(room, people, drift, name == GO2_BASE)
    return World(Scene(room, people), drift)


def scan(base: Base) -> np.ndarray:
    """A lidar scan from the base; see ``scan_from``."""
    return scan_from(base.pose, base)


def sight_of(pose: Pose, base: Base, settings: NavigatorSettings) -> LidarSight:
    """What the base's lidar sees at a pose."""
    return LidarSight.of("scan", rays_of(scan_from(pose, base)), settings.obstacles)


def free_space_of(pose: Pose, sight: LidarSight, settings: NavigatorSettings) -> FreeSpace:
    """What a navigator says of the free space at a pose, by what its lidar sees there."""
    margin = np.full(len(sight.points), settings.obstacles.margin)
    seen = sight.points, margin, [sight], settings
    return looking_around(free_space(*seen), *seen, pose)


def scan_from(pose: Pose, base: Base) -> np.ndarray:
    """A lidar scan: distances float32 [RAYS] in metres from a pose; infinite: nothing is there.

    The nearest of all HEIGHTS counts, as when a lidar's points are flattened. Rays meet everything
    solid or visible except the robot itself.
    """
    angles = pose.yaw + ANGLES
    directions = np.stack([np.cos(angles), np.sin(angles), np.zeros(RAYS)], 1)
    nearest = np.full(RAYS, np.inf)
    for height in HEIGHTS:
        origin = np.array([pose.x, pose.y, height])
        met = cast(base.model, base.data, origin, directions, ROBOT_GROUPS)[1]
        seen = (met >= SCAN_NEAREST_M) & (met <= SCAN_FARTHEST_M)
        nearest = np.minimum(nearest, np.where(seen, met, np.inf))
    return nearest.astype(np.float32)


def scanned_rays(base: Base) -> Rays:
    """A scan from the base as the navigator takes it."""
    return rays_of(scan(base))


def rays_of(scanned: np.ndarray) -> Rays:
    """A scan [RAYS] as the rays [RAYS, 3] that the navigator takes."""
    distances = scanned.astype(np.float64)
    return np.stack([ANGLES, distances, np.isfinite(distances)], 1)
