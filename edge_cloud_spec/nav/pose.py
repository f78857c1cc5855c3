"""Poses and velocities of the base.

Frames and units: metres, seconds, radians; x forward, y left, yaw to the left (ROS REP 103).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

FARTHEST_PLACE = 1e6  # m or rad; beyond any robot, and sums would lose centimetres
QUATERNION_TOLERANCE = 0.05  # by which a quaternion's length may differ from 1: drivers round


@dataclass(frozen=True)
class Pose:
    """The base's pose in its odometry frame: metres and radians."""

    x: float = 0.0
    y: float = 0.0
    yaw: float = 0.0

    @property
    def problem(self) -> str:
        """Why this is no pose, as the end of a sentence; empty if it is one."""
        if not (abs(self.x) <= FARTHEST_PLACE and abs(self.y) <= FARTHEST_PLACE):
            return "is not a number, or no place"
        return (
            ""
            if abs(self.yaw) <= FARTHEST_PLACE
            else "has an orientation that is no unit quaternion"
        )


@dataclass(frozen=True)
class Velocity:
    """A velocity command in the base's frame: m/s forward, m/s left, rad/s left."""

    vx: float = 0.0
    vy: float = 0.0
    wz: float = 0.0

    @property
    def speed(self) -> float:
        """The speed over ground, m/s."""
        return math.hypot(self.vx, self.vy)

    def no_faster(self, speed: float) -> Velocity:
        """The same, slowed down in its direction to at most ``speed`` over ground, m/s."""
        share = speed / self.speed if self.speed > speed else 1.0
        return replace(self, vx=self.vx * share, vy=self.vy * share)


STILL = Velocity()


def ahead_of(pose: Pose, metres: float) -> Pose:
    """The pose so far ahead of another."""
    return replace(
        pose, x=pose.x + metres * math.cos(pose.yaw), y=pose.y + metres * math.sin(pose.yaw)
    )


def apart(one: Pose, other: Pose) -> tuple[float, float]:
    """Metres and radians from one pose to another."""
    return math.hypot(other.x - one.x, other.y - one.y), abs(wrap(other.yaw - one.yaw))


def between(one: Pose, other: Pose, share: float) -> Pose:
    """The pose at ``share`` (0 to 1) of the way from one to the other, by the shorter turn."""
    turned = wrap(other.yaw - one.yaw)
    x, y = one.x + share * (other.x - one.x), one.y + share * (other.y - one.y)
    return Pose(x, y, one.yaw + share * turned)


def wrap(angle: float) -> float:
    """The same angle (rad) in the range -pi to pi."""
    return math.atan2(math.sin(angle), math.cos(angle))


def yaw_of(q: Any) -> float:
    """The yaw (rad) of a quaternion with x, y, z and w, of any length; NaN if it has none."""
    sin, cos = 2 * (q.w * q.z + q.x * q.y), q.w * q.w + q.x * q.x - q.y * q.y - q.z * q.z
    return math.atan2(sin, cos) if any((q.x, q.y, q.z, q.w)) else math.nan


def is_unit(q: Any) -> bool:
    """Whether a quaternion's length is near 1; false if it has none."""
    return abs(math.hypot(q.x, q.y, q.z, q.w) - 1.0) <= QUATERNION_TOLERANCE


def tilt_of(q: Any) -> float:
    """How far (rad) the vertical axis of this orientation leans; NaN if it is no unit
    quaternion."""
    lean = math.atan2(math.hypot(q.x, q.y), math.hypot(q.z, q.w))
    return 2 * lean if is_unit(q) else math.nan


def pose_of(pose: Any) -> Pose:
    """The pose of a ROS Pose; NaN for the yaw of an orientation that is not near length 1."""
    at, q = pose.position, pose.orientation
    return Pose(at.x, at.y, yaw_of(q) if is_unit(q) else math.nan)
