"""Placement of a room's things, so that rooms are varied and their tasks are fair."""

from __future__ import annotations

import math

import numpy as np

from ...nav.pose import Pose
from .furniture import furnish
from .kinds import build
from .thing import Thing

START_DISTANCE = (1.6, 3.4)
"""Metres from the start to the target's nearest point."""

APART = 0.7
"""Metres at least between two ``things``, so that "stopped at the wrong one" has one meaning."""

CLEARANCE = 0.4
"""Metres at least from the line between start and target to anything else."""


class Layout:
    """The things placed so far; a piece that does not fit after some attempts is left out."""

    def __init__(self, size: tuple[float, float], start: Pose, rng: np.random.Generator) -> None:
        self.size, self.start, self.rng = size, start, rng
        self.things: list[Thing] = []
        self.furniture: list[Thing] = []

    def place_target(self, name: str) -> Thing | None:
        """The thing to find, START_DISTANCE from the start; None where it does not fit."""
        for _ in range(60):
            thing = build(name, self.rng, *self._spot(name))
            distance = thing.distance(self.start.x, self.start.y)
            if not START_DISTANCE[0] <= distance <= START_DISTANCE[1] or not self._inside(thing):
                continue
            if name.endswith("door"):  # from the side it is a line
                slant = thing.bearing(self.start.x, self.start.y, thing.yaw + math.pi)
                if abs(slant) > math.radians(50):
                    continue
            self.things.append(thing)
            return thing
        return None

    def place_thing(self, name: str) -> bool:
        """Another nameable thing or look-alike, APART from the rest; whether it fits."""
        for _ in range(40):
            thing = build(name, self.rng, *self._spot(name))
            if self._fits(thing, APART):
                self.things.append(thing)
                return True
        return False

    def place_furniture(self, name: str) -> None:
        """A piece of furniture, mostly at a wall, unless none fits."""
        for _ in range(15):
            x, y, yaw = self._wall_spot(0.0) if self.rng.random() < 0.75 else self._floor_spot()
            piece = furnish(name, self.rng, x, y, yaw)
            if self._fits(piece, 0.3):
                self.furniture.append(piece)
                return

    def _spot(self, name: str) -> tuple[float, float, float]:
        return self._wall_spot(0.03) if name.endswith("door") else self._floor_spot()

    def _floor_spot(self) -> tuple[float, float, float]:
        x, y = (float(self.rng.uniform(-1, 1)) * (side / 2 - 0.35) for side in self.size)
        return x, y, float(self.rng.uniform(-math.pi, math.pi))

    def _wall_spot(self, depth: float) -> tuple[float, float, float]:
        """A place with its back to a wall, ``depth`` metres in front of it."""
        side = int(self.rng.integers(4))
        along = float(self.rng.uniform(-1, 1))
        w, d = self.size[0] / 2, self.size[1] / 2
        yaw = (side + 2) * math.pi / 2
        if side % 2 == 0:
            sign = 1 - side
            return sign * (w - depth), along * (d - 0.6), yaw
        sign = 2 - side
        return along * (w - 0.6), sign * (d - depth), yaw

    def _inside(self, thing: Thing) -> bool:
        points = np.abs(thing.outline())
        return bool(np.all(points <= np.array(self.size) / 2 + 1e-6))

    def _fits(self, thing: Thing, gap: float) -> bool:
        points = thing.outline()
        if not self._inside(thing) or thing.distance(self.start.x, self.start.y) < 0.7:
            return False
        target = self.things[0]
        line = np.linspace((self.start.x, self.start.y), (target.x, target.y), 40)
        away = np.linalg.norm(points[:, None] - line[None], axis=-1).min()
        if away < CLEARANCE + 0.02:
            return False
        for other in self.things:
            if min(other.distance(x, y) for x, y in points) < max(
                gap, APART if other is target else gap
            ):
                return False
        return all(min(f.distance(x, y) for x, y in points) >= 0.1 for f in self.furniture)
