"""A flat scan around the robot, as it is made of a lidar's points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .camera import cast
from .room import Pose
from .scene import ROBOT_GROUPS

RAYS = 360
NEAREST, FARTHEST = 0.05, 12.0
"""Metres between which something is seen."""

HEIGHTS = (0.1, 0.25, 0.4)
"""Metres above the floor at which it looks; the nearest of the three counts."""


def scan(model: Any, data: Any, pose: Pose) -> np.ndarray:
    """Distances float32 [RAYS] in metres from ``pose``; infinite: nothing is there.

    Ray i leaves at ``-pi + i * 2 pi / RAYS`` from ahead, to the left where that is positive
    (ROS REP 103). All that is solid or seen counts but the robot itself.
    """
    angles = pose.yaw - math.pi + np.arange(RAYS) * (2 * math.pi / RAYS)
    directions = np.stack([np.cos(angles), np.sin(angles), np.zeros(RAYS)], 1)
    nearest = np.full(RAYS, np.inf)
    for height in HEIGHTS:
        origin = np.array([pose.x, pose.y, height])
        distances = cast(model, data, origin, directions, ROBOT_GROUPS)[1]
        met = (distances >= NEAREST) & (distances <= FARTHEST)
        nearest = np.minimum(nearest, np.where(met, distances, np.inf))
    return nearest.astype(np.float32)
