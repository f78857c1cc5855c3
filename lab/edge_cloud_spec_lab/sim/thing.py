"""A thing on the floor: its parts and footprint, its distance and bearing, and its visible part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edge_cloud_spec.nav.pose import wrap

Rgb = tuple[float, float, float]


def as_rgb(values: np.ndarray) -> Rgb:
    """Convert an array [3] to a colour."""
    return float(values[0]), float(values[1]), float(values[2])


@dataclass(frozen=True)
class Part:
    """A primitive: MuJoCo ``shape`` and half ``size`` (m), centre ``at`` in the thing's frame."""

    shape: str
    size: tuple[float, ...]
    at: tuple[float, float, float]
    rgb: Rgb
    metal: bool = False
    solid: bool = True


@dataclass(frozen=True)
class Thing:
    """A thing on the floor at (x, y, yaw) with its parts and its footprint.

    The footprint is a disc of radius ``half[0]`` if ``round``, else a rectangle with half sides
    ``half`` (m), turned by ``yaw``.
    """

    name: str
    x: float
    y: float
    yaw: float
    half: tuple[float, float]
    round: bool
    parts: tuple[Part, ...]

    def distance(self, x: float, y: float) -> float:
        """Horizontal distance in metres from (x, y) to the nearest point of the footprint."""
        along, across = self._local(x, y)
        if self.round:
            return max(0.0, math.hypot(along, across) - self.half[0])
        return math.hypot(max(0.0, abs(along) - self.half[0]), max(0.0, abs(across) - self.half[1]))

    def bearing(self, x: float, y: float, yaw: float) -> float:
        """Direction (rad, left positive) of the footprint's centre from (x, y) heading ``yaw``."""
        return wrap(math.atan2(self.y - y, self.x - x) - yaw)

    def outline(self) -> np.ndarray:
        """Points [n, 2] on and in the footprint's edge, about 0.1 m apart."""
        if self.round:
            angle = np.linspace(0.0, 2 * np.pi, 12, endpoint=False)
            local = self.half[0] * np.stack([np.cos(angle), np.sin(angle)], 1)
        else:
            sides = [np.linspace(-h, h, max(2, math.ceil(2 * h / 0.1) + 1)) for h in self.half]
            local = np.stack(np.meshgrid(*sides), -1).reshape(-1, 2)
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        turned = local @ np.array([[cos, sin], [-sin, cos]])
        return np.asarray(turned + np.array([self.x, self.y]))

    def _local(self, x: float, y: float) -> tuple[float, float]:
        dx, dy = x - self.x, y - self.y
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        return cos * dx + sin * dy, cos * dy - sin * dx


@dataclass(frozen=True)
class VisibleThing:
    """A thing in view: its visible pixels of 128 x 128, bearing (degrees) and distance (m).

    The bearing, positive to the left, is the horizontal direction of the visible pixels' centroid;
    the distance is horizontal, from the camera to the nearest point of the thing's footprint.
    """

    name: str
    pixels: int
    bearing: float
    distance: float


Shape = tuple[tuple[float, float], bool, tuple[Part, ...]]
"""Half footprint, whether it is round, and the parts."""
