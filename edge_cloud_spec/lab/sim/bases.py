"""The bases that can drive in a room: their interface, the choice, and a simulated lidar scan."""

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
    """The interface of a robot's base in a room, implemented by ``World`` and ``Legs``; for one
    thread.

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
        """The true pose in the room's frame."""

    @property
    def velocity(self) -> tuple[float, float, float]:
        """The true velocity: m/s forward, m/s left, rad/s."""

    @property
    def standing(self) -> bool:
        """Whether the base stands, whatever was commanded."""

    @property
    def resting(self) -> bool:
        """Whether the base stands because that was commanded."""

    @property
    def odometry(self) -> OdometryReading:
        """The pose and velocity that the base reports."""

    @property
    def contact(self) -> bool:
        """Whether the base touches anything but the floor."""

    @property
    def eye(self) -> Eye:
        """The camera's position and orientation."""


def make_base(name: str, room: Room, people: int = 0, drift: float = 0.0) -> Base:
    """Make a base of BASES at the room's start; UserError if its package is missing."""
    if name in (GO2, UNTRIMMED):
        return Legs(room, people, drift, trimmed=name == GO2)
    return World(Scene(room, people), drift)


def scan(base: Base) -> np.ndarray:
    """A lidar scan: distances float32 [RAYS] in metres from the base; infinite: nothing is there.

    The nearest of all HEIGHTS counts, as when a lidar's points are flattened. Rays meet everything
    solid or visible except the robot itself.
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
    """The points of a scan, [n, 2]: m ahead of the base and to its left."""
    distances = scan(base)
    points = distances[:, None] * np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
    return np.asarray(points[np.isfinite(distances)], np.float64)
