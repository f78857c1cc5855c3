"""A base that drives over a floor that ends, and the cloud that its lidar makes of that.

``python -m helpers.stairs`` (with ``test`` on the path) drives at stairs, steps, platforms and over
good floors, and prints what came of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
from helpers.drill import Drill, words
from helpers.lagging_base import Base

from edge_cloud_spec.nav.budget import COMMAND_PERIOD_S
from edge_cloud_spec.nav.events import Effect, Odometry, Report, Scan, Show, Tick
from edge_cloud_spec.nav.footprint import Mount, ObstacleSettings
from edge_cloud_spec.nav.obstacles import FLOOR_ENDS
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.sight import cloud_of

STAND_M = 0.3  # of the base's middle above the floor
PART_M = 0.08  # m between the places of a ray that are looked at
FOOT_M = 0.25  # ahead of the base's middle
WALLS_M = 4.0
FARTHEST_M = 5.0
RAMP_M = 0.06  # from foot to middle, on a ramp that is no fall

Ground = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Metres above the floor at places x and y; -inf: bottomless."""


def flat(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.zeros_like(x)


def stairs(at: float, rise: float = 0.17, tread: float = 0.28) -> Ground:
    """Down from x = ``at`` m."""
    return lambda x, y: np.where(x < at, 0.0, -rise * (1 + np.floor((x - at) / tread)))


def step(at: float, down: float) -> Ground:
    """A floor that is lower from x = ``at`` m; inf: bottomless."""
    return lambda x, y: np.where(x < at, 0.0, -down)


def slope(at: float, degrees: float) -> Ground:
    """A ramp from x = ``at`` m, up or down."""
    return lambda x, y: np.maximum(0.0, x - at) * math.tan(math.radians(degrees))


@dataclass(frozen=True)
class Cloud:
    """A lidar: where it is on the base, its rings (degrees up) and rays of each, and its noise
    (m)."""

    mount: Mount
    rings: np.ndarray
    rays: int = 120
    field: float = 360.0  # degrees
    noise: float = 0.0
    lost: float = 0.0  # share of its rays

    def ways(self, random: np.random.Generator) -> np.ndarray:
        """The unit vectors [n, 3] of its rays, each time others."""
        turn = random.uniform(0.0, self.field / self.rays)
        around = np.radians(-self.field / 2 + turn + np.arange(self.rays) * self.field / self.rays)
        rings = np.radians(self.rings + random.uniform(-0.5, 0.5, len(self.rings)))
        up, around = np.meshgrid(rings, around)
        ways = np.stack(
            [np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], -1
        ).reshape(-1, 3)
        return ways[random.random(len(ways)) >= self.lost]


DOWN = np.arange(-75.0, 11.0, 3.0)
LIDARS = {
    "on the head, all down": Cloud(Mount(x=0.3, z=0.05), DOWN),
    "upside down, on the head": Cloud(Mount(x=0.3, z=0.05, roll=math.pi), -DOWN),
    "few rays": Cloud(Mount(x=0.3, z=0.05), np.arange(-75.0, 11.0, 4.0), 60),
    "high on a mast": Cloud(Mount(z=0.6), np.arange(-70.0, 5.0, 2.0), 180),
    "a depth camera": Cloud(
        Mount(x=0.35, z=0.05, pitch=0.5), np.arange(-29.0, 30.0, 2.0), 60, 86.0
    ),
}
NO_FLOOR = Cloud(Mount(z=0.3), np.arange(-7.0, 52.0, 3.0))  # before 4.9 m


@dataclass
class Walk:
    """A navigator on a base that walks on a ground; ``sways``: degrees of roll and pitch."""

    ground: Ground
    cloud: Cloud
    seed: int = 0
    start: Pose = field(default_factory=Pose)
    sways: float = 0.0
    period: float = 0.1  # s between two clouds
    blank: Callable[[float], bool] = lambda now: False  # whether the floor returns nothing then
    settings: ObstacleSettings = field(default_factory=lambda: ObstacleSettings(points="points"))

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, points_at=self.cloud.mount)
        self.drill = Drill(NavigatorSettings(obstacles=self.settings))
        self.base = Base(0.15, self.drill.now)
        self.base.pose = self.start
        self.random, self.numbers = Random(self.seed), np.random.default_rng(self.seed)
        self.seen = Counter[str]()  # what held it, by kind
        self.reports: list[str] = []
        self.statuses: list[str] = []
        self.fell = False
        self.farthest, self.next_cloud, self.requests = -math.inf, 0.0, 0

    def on(self, event: object) -> None:
        for effect in self.drill.on(event):  # type: ignore[arg-type]
            self._take(effect)

    def _take(self, effect: Effect) -> None:
        self.base.obey(effect)
        if isinstance(effect, Report):
            self.reports.append(effect.problem)
        elif isinstance(effect, Show):
            self.statuses.append(effect.status.detail)

    def tilt(self) -> tuple[float, float]:
        """Roll and pitch now, rad: a gait of 2 Hz."""
        most, phase = math.radians(self.sways), 2 * math.pi * 2.0 * self.drill.now
        pose = self.base.pose
        ways = np.array([-FOOT_M, FOOT_M])
        feet = self.ground(pose.x + ways * math.cos(pose.yaw), pose.y + ways * math.sin(pose.yaw))
        slope = math.atan2(feet[0] - feet[1], 2 * FOOT_M)  # down ahead is positive
        slope = slope if abs(slope) < math.radians(15.0) else 0.0
        return most * math.sin(phase), slope + most * math.sin(1.3 * phase + self.seed)

    def places(self) -> np.ndarray:
        """The cloud [n, 3] in the lidar's frame, as its rays meet the ground, or a wall."""
        roll, pitch = self.tilt()
        pose, ways = self.base.pose, self.cloud.ways(self.numbers)
        lean = Mount(roll=roll, pitch=pitch, yaw=pose.yaw)
        turned = replace(self.cloud.mount, x=0.0, y=0.0, z=0.0)
        out = lean.to_base(turned.to_base(ways))
        mount = self.cloud.mount
        height = STAND_M + float(self.ground(np.array([pose.x]), np.array([pose.y]))[0])
        eye = lean.to_base(np.array([[mount.x, mount.y, mount.z]]))[0] + (pose.x, pose.y, height)
        low, high = self._between(eye, out)
        for _ in range(6):
            middle = (low + high) / 2
            met = self._within(eye + out * middle[:, None])
            low, high = np.where(met, low, middle), np.where(met, middle, high)
        end = eye + out * high[:, None]
        is_floor = np.abs(end[:, 1]) < WALLS_M - 0.05
        hits = (high < FARTHEST_M) & ~(is_floor & self.blank(self.drill.now))
        ranges = high + self.numbers.normal(0.0, 1.0, len(high)) * self.cloud.noise
        return (ways * ranges[:, None])[hits]

    def _within(self, at: np.ndarray) -> np.ndarray:
        """Whether places [..., 3] are in the ground, or in a wall."""
        return (at[..., 2] <= self.ground(at[..., 0], at[..., 1])) | (np.abs(at[..., 1]) >= WALLS_M)

    def _between(self, eye: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ranges [n] between which each ray meets something; the last is ``FARTHEST_M`` or more,
        where it meets nothing."""
        along = np.arange(PART_M, FARTHEST_M + 2 * PART_M, PART_M)
        first, left = np.full(len(out), along[-1]), np.arange(len(out))
        for part in np.array_split(along[:-1], 6):  # most rays end near by
            met = self._within(eye + out[left, None] * part[:, None])
            ends = met.any(1)
            first[left[ends]] = part[met[ends].argmax(1)]
            left = left[~ends]
        return first - PART_M, first

    def scan(self) -> Scan:
        stamp, places = round(self.drill.now * 1e9), self.places()
        try:
            rays, floor = cloud_of(places, self.settings)
        except ValueError as error:
            return Scan("points", stamp, 0.0, problem=str(error))
        return Scan("points", stamp, 0.0, rays, floor=floor)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / COMMAND_PERIOD_S)):
            self.drill.now += COMMAND_PERIOD_S
            for _ in self.base.run(self.drill.now):
                pass
            pose = self.base.pose
            feet = np.array([[x, y] for x in (FOOT_M, -FOOT_M) for y in (0.15, -0.15)])
            turn = np.array(
                [
                    [math.cos(pose.yaw), math.sin(pose.yaw)],
                    [-math.sin(pose.yaw), math.cos(pose.yaw)],
                ]
            )
            x, y = (feet @ turn + (pose.x, pose.y)).T
            here = self.ground(np.array([pose.x]), np.array([pose.y]))
            self.fell |= bool((self.ground(x, y) < here - RAMP_M).any())
            self.farthest = max(self.farthest, float(x.max()))
            self.on(Odometry(pose, round(self.drill.now * 1e9)))
            if self.drill.now >= self.next_cloud:
                self.next_cloud = self.drill.now + self.period - 1e-6
                self.on(self.scan())
            self.on(Tick())
            why = self.drill.navigator.obstacles.why
            if self.drill.navigator.moving and why:
                self.seen[FLOOR_ENDS if FLOOR_ENDS in why else why] += 1

    def act(self, text: str, seconds: float = 4.0) -> str:
        """Decide it, and let time pass until it has ended; how."""
        self.requests += 1
        stamp = round(self.drill.now * 1e9)
        self.on(words(f"action: {text};", f"r{self.requests}", stamp=stamp, age=0.0))
        for _ in range(round(seconds / 0.1)):
            self.run(0.1)
            if not self.drill.navigator.moving:
                break
        self.run(0.3)
        return self.drill.navigator.status.detail


GOOD = {
    "flat": lambda random: flat,
    "a ramp up": lambda random: slope(random.uniform(0.8, 2.0), random.uniform(2.0, 8.0)),
    "a ramp down": lambda random: slope(random.uniform(0.8, 2.0), -random.uniform(2.0, 5.0)),
}
ENDS = {
    "stairs down": lambda random: stairs(random.uniform(0.75, 2.5), random.uniform(0.14, 0.2)),
    "a step down": lambda random: step(random.uniform(0.75, 2.5), random.uniform(0.1, 0.4)),
    "a platform": lambda random: step(random.uniform(0.75, 2.5), random.uniform(0.6, 1.5)),
    "no bottom": lambda random: step(random.uniform(1.0, 2.5), 1e3),
}


def walk(number: int, grounds: dict[str, Callable[[Random], Ground]], sways: float) -> Walk:
    """One of the grounds and of the lidars; the robot stands for 3 s, and goes ahead 4 times."""
    random = Random(number)
    cloud = replace(list(LIDARS.values())[number % len(LIDARS)], noise=random.uniform(0.0, 0.03))
    cloud = replace(cloud, lost=random.choice((0.0, 0.1)))
    ground, yaw = [*grounds.values()][number % len(grounds)], random.uniform(-0.5, 0.5)
    walk = Walk(ground(random), cloud, number, Pose(yaw=yaw), random.uniform(0.0, sways))
    walk.run(3.0)
    for _ in range(4):
        walk.act("move forward large")
    return walk


def main() -> None:
    """50 runs at floors that end and 50 over good ones."""
    for grounds in (ENDS, GOOD):
        fell, held, stopped = Counter[str](), Counter[str](), Counter[str]()
        for number in range(50):
            done, name = walk(number, grounds, 10.0), [*grounds][number % len(grounds)]
            fell[name] += done.fell
            held[name] += done.seen[FLOOR_ENDS] > 0
            stopped[name] += any(FLOOR_ENDS in report for report in done.reports)
        for name in grounds:
            print(f"{name}: fell {fell[name]}, slowed {held[name]}, stopped {stopped[name]}")


if __name__ == "__main__":
    main()
