"""Where a robot is on the floor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pose:
    """Where the robot's middle is (m) and where it heads (rad, counter-clockwise from x)."""

    x: float
    y: float
    yaw: float
