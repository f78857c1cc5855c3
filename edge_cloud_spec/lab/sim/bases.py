"""The bases that drive in a room: what node and episode need of one, the choice, and its scan."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from .camera import Eye, cast
from .legs import Legs
from .room import Pose, Room
from .scene import ROBOT_GROUPS, Scene
from .world import OdometryReading, World

IDEAL, GO2, UNTRIMMED = "ideal", "go2", "go2_untrimmed"
BASES = (IDEAL, GO2, UNTRIMMED)
"""Ours, the legged Go2, and the same without the loop that trims its gait to the command."""

RAYS = 360
HEIGHTS = (0.1, 0.25, 0.4)
"""Rays of a scan, and metres above the floor at which they leave."""

ANGLES = -math.pi + np.arange(RAYS) * (2 * math.pi / RAYS)
"""Of the rays, rad from ahead, to the left positive (ROS REP 103)."""

NEAREST, FARTHEST = 0.05, 12.0
"""Metres between which a scan sees something."""


class Base(Protocol):
    """A robot's base in a room, as ``World`` and ``Legs`` are one; used by one thread.

    ``mount`` is the camera's place in its frame (m).
    """

    model: Any
    data: Any
    mount: tuple[float, float, float]

    def command(self, vx: float, vy: float, wz: float) -> None:
        """Follow this velocity (m/s, m/s, rad/s) until the next, or its time-out."""

    def step(self, dt: float) -> None:
        """Let ``dt`` seconds pass."""

    @property
    def time(self) -> float:
        """Simulated seconds since the start."""

    @property
    def pose(self) -> Pose:
        """Where it truly is, in the room's frame."""

    @property
    def velocity(self) -> tuple[float, float, float]:
        """How fast it truly goes: m/s forward, m/s left, rad/s."""

    @property
    def standing(self) -> bool:
        """Whether it stands, whatever it was told."""

    @property
    def resting(self) -> bool:
        """Whether it stands as it was told to."""

    @property
    def odometry(self) -> OdometryReading:
        """What it reports of itself."""

    @property
    def contact(self) -> bool:
        """Whether it touches what is not the floor."""

    @property
    def eye(self) -> Eye:
        """Where its camera is and looks."""


def make_base(name: str, room: Room, people: int = 0, drift: float = 0.0) -> Base:
    """A base of BASES at the room's start; UserError where the package of it is missing."""
    if name in (GO2, UNTRIMMED):
        return Legs(room, people, drift, trimmed=name == GO2)
    return World(Scene(room, people), drift)


def scan(base: Base) -> np.ndarray:
    """Distances float32 [RAYS] in metres from the base; infinite: nothing is there.

    Of the HEIGHTS the nearest counts, as where a lidar's points are made flat. All that is solid or
    seen is met, but not the robot itself.
    """
    angles = base.pose.yaw + ANGLES
    directions = np.stack([np.cos(angles), np.sin(angles), np.zeros(RAYS)], 1)
    nearest = np.full(RAYS, np.inf)
    for height in HEIGHTS:
        origin = np.array([base.pose.x, base.pose.y, height])
        met = cast(base.model, base.data, origin, directions, ROBOT_GROUPS)[1]
        seen = (met >= NEAREST) & (met <= FARTHEST)
        nearest = np.minimum(nearest, np.where(seen, met, np.inf))
    return nearest.astype(np.float32)


def scanned_points(base: Base) -> np.ndarray:
    """What a scan meets, [n, 2]: m ahead of the base and to its left."""
    distances = scan(base)
    points = distances[:, None] * np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
    return np.asarray(points[np.isfinite(distances)], np.float64)
