"""A robot that stops before what a lidar sees."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.drill import Drill, words

from edge_cloud_spec.lab.bench.motion import Base
from edge_cloud_spec.nav.events import Effect, Odometry, Scan, Tick
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.motion import PERIOD
from edge_cloud_spec.nav.settings import Settings

SEES = ObstacleSettings(scan="scan")
FAR_OFF = (0.0, 3.0)  # something to see


class Room:
    """A navigator, a base, and the points that a lidar sees of them at 10 Hz."""

    def __init__(
        self, *things: tuple[float, float], odometry: bool = True, settings: ObstacleSettings = SEES
    ) -> None:
        self.drill = Drill(Settings(obstacles=settings))
        self.base = Base(0.1, self.drill.now)
        self.things = [*things, FAR_OFF]
        self.odometry, self.scans, self.ticks = odometry, True, 0
        self.effects: list[Effect] = []
        self.nearest = math.inf  # m from the body that something ever was
        self.run(0.2)

    @property
    def status(self) -> str:
        return self.drill.status

    def on(self, *args: object) -> list[Effect]:
        effects = self.drill.on(*args)  # type: ignore[arg-type]
        for effect in effects:
            self.base.obey(effect)
        self.effects += effects
        return effects

    def seen(self) -> np.ndarray:
        """The things from the base."""
        pose, things = self.base.pose, np.array(self.things)
        dx, dy = (things - (pose.x, pose.y)).T
        cos, sin = math.cos(pose.yaw), math.sin(pose.yaw)
        return np.stack([cos * dx + sin * dy, cos * dy - sin * dx], 1)

    def scan(self, late: float = 0.0, **changes: object) -> Scan:
        stamp = round((self.drill.now - late) * 1e9)
        return replace(Scan("scan", stamp, late, self.seen()), **changes)  # type: ignore[arg-type]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / PERIOD)):
            self.drill.now += PERIOD
            self.ticks += 1
            for _ in self.base.run(self.drill.now):
                pass
            self.nearest = min(self.nearest, SEES.beyond(self.seen()).min())
            if self.odometry:
                self.on(Odometry(self.base.pose, round(self.drill.now * 1e9)))
            if self.scans and self.ticks % 2 == 0:
                self.on(self.scan())
            self.on(Tick())

    def act(self, text: str, seconds: float = 4.0) -> None:
        self.on(words(f"action: {text};", f"r{self.ticks}"))
        self.run(seconds)


@pytest.mark.parametrize("odometry", [True, False])
@pytest.mark.parametrize("at", [0.6, 0.8, 1.0, 1.2])
def test_it_stops_before_what_stands_ahead(at: float, odometry: bool) -> None:
    room = Room((at, 0.0), odometry=odometry)
    room.act("move forward large")
    assert room.nearest >= SEES.margin, "it touches nothing"
    assert "move forward large: something is in the way at 0." in room.status, room.status
    assert room.status.endswith("m ahead") and not room.drill.navigator.moving
    assert odometry is False or room.nearest < SEES.margin + SEES.clearance + 0.1, "and gets near"


def test_without_a_lidar_it_goes_on_as_ever() -> None:
    room = Room((0.6, 0.0), settings=ObstacleSettings())
    room.act("move forward large")
    assert room.nearest < 0.0 and "done: move forward large" in room.status
