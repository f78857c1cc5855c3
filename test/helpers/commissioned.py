"""A kinematic base in virtual time under the trials of ``commission``, and a person who answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from helpers.graph.topic_messages import seconds
from helpers.run_bag import Said, odometry, write_run

from edge_cloud_spec.commission.camera import COLUMNS_WIDE, PictureFeatures
from edge_cloud_spec.commission.figures import TrialMeasurements
from edge_cloud_spec.commission.trials import Commission, Event, TrialSettings
from edge_cloud_spec.nav.events import Instruction, Odometry, Scan, Tick
from edge_cloud_spec.nav.footprint import ObstacleSettings, Points
from edge_cloud_spec.nav.pose import Pose, Velocity

DT, ODOMETRY, TICK, PICTURE, SCAN = 0.01, 2, 5, 7, 40  # s, and every so many of them
EPOCH = 1_700_000_000.0


@dataclass
class Kinematic:
    """Follows commands (m/s, rad/s) with a lag up and another down; ``told``: odometry's scale."""

    response: float = 0.1
    braking: float = 0.1
    slowest: tuple[float, ...] = (0.0, 0.0)
    drift: tuple[float, ...] = (0.0, 0.0)
    strafes: float = 1.0  # of a sideways command; 0: it cannot
    told: float = 1.0
    gain: float = 1.0
    wall: float = math.inf  # m ahead of its start, which it cannot pass
    timeout: float = 0.5
    follows: Callable[[float, float], tuple[float, float]] | None = None
    x: float = 0.0
    y: float = 0.0
    yaw: float = 0.0
    rates: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def move(self, command: tuple[float, ...], dt: float) -> bool:
        """``command``: m/s, rad/s and maybe m/s to the left. Returns whether it moves."""
        given = self.follows(*command[:2]) if self.follows else command[:2]
        scales = self.gain, self.gain, self.gain * self.strafes
        aside = command[2] if len(command) > 2 else 0.0
        limits = zip(
            scales, (*given, aside), (*self.slowest, 0.0), (*self.drift, 0.0), strict=False
        )
        rates = self.rates
        for axis, (scale, one, slowest, drift) in enumerate(limits):  # no last two unless said
            rate = rates[axis]
            wanted = (scale * one if abs(one) >= slowest else 0.0) or drift
            if rate != wanted:
                lag = self.braking if abs(wanted) < abs(rate) else self.response
                rate = wanted + (rate - wanted) * math.exp(-dt / lag)
                rates[axis] = wanted if abs(rate - wanted) < 1e-9 else rate
        ahead, turn, aside = rates
        if ahead == turn == aside == 0.0:
            return False
        self.yaw += turn * dt
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        self.x += (ahead * cos - aside * sin) * dt
        if self.x > self.wall:
            self.x, rates[0] = self.wall, 0.0
            ahead = 0.0
        self.y += (ahead * sin + aside * cos) * dt
        return True


WALLS = np.array(  # [n, 2, 2] m: ends of a room's walls and of a cupboard in it, around the start
    [
        [[-3.1, -2.4], [2.9, -2.4]],
        [[2.9, -2.4], [2.9, 2.7]],
        [[2.9, 2.7], [-3.1, 2.7]],
        [[-3.1, 2.7], [-3.1, -2.4]],
        [[1.1, 2.7], [1.1, 2.1]],
        [[1.1, 2.1], [2.0, 2.1]],
        [[2.0, 2.1], [2.0, 2.7]],
    ]
)
CORRIDOR = np.array([[[-40.0, 1.2], [40.0, 1.2]], [[-40.0, -1.2], [40.0, -1.2]]])


@dataclass
class Lidar:
    """A planar lidar of 360 rays in a room; its points are turned by ``yaw`` and, if it ``hangs``,
    mirrored, and some always show the robot itself (``legs``: [n, 2] m)."""

    yaw: float = 0.0
    hangs: bool = False
    legs: Points = field(default_factory=lambda: np.empty((0, 2)))
    walls: Points = field(default_factory=lambda: WALLS)
    noise: float = 0.015
    lag: float = 0.1

    def points(self, pose: Pose, random: np.random.Generator) -> Points:
        angles = np.radians(np.arange(-180.0, 180.0))
        rays = np.stack([np.cos(angles + pose.yaw), np.sin(angles + pose.yaw)], 1)[:, None]
        begin, along = self.walls[:, 0] - (pose.x, pose.y), self.walls[:, 1] - self.walls[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            across = rays[..., 0] * along[:, 1] - rays[..., 1] * along[:, 0]
            far = (begin[:, 0] * along[:, 1] - begin[:, 1] * along[:, 0]) / across
            share = (begin[:, 0] * rays[..., 1] - begin[:, 1] * rays[..., 0]) / across
        met = (far > 0.0) & (share >= 0.0) & (share <= 1.0)
        near = np.where(met, far, np.inf).min(1)
        near = near + random.normal(0.0, self.noise, len(near))
        seen = np.stack([np.cos(angles), np.sin(angles)], 1)[near < 12.0] * near[near < 12.0, None]
        legs = self.legs + random.normal(0.0, self.noise / 3, self.legs.shape)
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        mirror = (1.0, -1.0 if self.hangs else 1.0)
        return np.concatenate([seen, legs]) @ np.array([[cos, sin], [-sin, cos]]) * mirror


class Trial:
    """One commission: ``run`` it; then what was said, sent and made is here."""

    def __init__(
        self,
        base: Kinematic,
        answer: Callable[[str, Trial], str | None] = lambda text, trial: trial.agree(text),
        odometry: Callable[[Pose, float], Pose | None] = lambda pose, now: pose,
        camera: tuple[float, float] | None = (0.15, 0.0),
        seed: int = 0,
        lidar: Lidar | None = None,
        settings: TrialSettings | None = None,
    ) -> None:
        self.lidar, self.poses = lidar, [Pose()]
        self.base, self.answer, self.odometry, self.camera = base, answer, odometry, camera
        self.commission = Commission(self, settings or TrialSettings())
        if lidar is not None:
            self.commission.recording.obstacles = ObstacleSettings(scan="scan")
        self.noise = np.random.default_rng(seed)
        self.strip = np.resize(self.noise.normal(size=4096)[:2000], 4000)  # it is closed
        self.now, self.steps = 100.0, 0
        self.velocity, self.sent = (0.0, 0.0, 0.0), -math.inf
        self.halts = 0
        self.asked: list[str] = []
        self.problem: str | None = None
        self.pending: list[Event] = []
        self.given: list[tuple[float, Event]] = []
        self.way = self.farthest = 0.0
        self.astray = self.fastest = 0.0  # m from where the person agreed last, m/s
        self.marked = self.base.x, self.base.y
        self.yaws = [0.0]

    def agree(self, text: str) -> str:
        """A person who says yes, and who has a tape."""
        if "cm did" in text:
            moved = math.dist(self.marked, (self.base.x, self.base.y))
            return f"{100 * moved:.1f}"
        self.marked = self.base.x, self.base.y
        return "y"

    def command(self, velocity: Velocity) -> None:
        self.velocity, self.sent = (velocity.vx, velocity.wz, velocity.vy), self.now

    def stop(self, repeat: int) -> None:
        self.velocity, self.halts = (0.0, 0.0, 0.0), self.halts + 1

    def keep_silent(self, seconds: float) -> None:
        """As it is."""

    def report(self, text: str) -> None:
        """Nobody reads it."""

    def ask(self, text: str) -> None:
        self.asked.append(text)
        if (answer := self.answer(text, self)) is not None:
            self.pending.append(Instruction(answer))

    def period(self) -> Iterator[tuple[float, Event]]:
        for _ in range(TICK):
            self._step()
            while self.pending:
                yield self.now, self.pending.pop(0)
        yield self.now, Tick()

    def run(self, events: Sequence[tuple[float, Event]] = ()) -> Trial:
        """Until it has ended, and for two seconds more, with these events after so many s."""
        self.given = [(self.now + after, event) for after, event in events]
        self.problem = self.commission.run()
        for _ in range(round(2.0 / DT)):
            self._step()
        return self

    def _step(self) -> None:
        self.now, self.steps = self.now + DT, self.steps + 1
        base, x, y = self.base, self.base.x, self.base.y
        fresh = self.now - self.sent <= base.timeout
        if base.move(self.velocity if fresh else (0.0, 0.0, 0.0), DT):
            self.way += math.hypot(base.x - x, base.y - y)
            self.farthest = max(self.farthest, math.hypot(base.x, base.y))
            self.astray = max(self.astray, math.dist(self.marked, (base.x, base.y)))
            self.fastest = max(self.fastest, abs(base.rates[0]))
        self.yaws.append(base.yaw)
        if self.lidar:
            self.poses.append(Pose(base.x, base.y, base.yaw))
        if self.given:
            self.pending += [event for at, event in self.given if at <= self.now]
            self.given = [one for one in self.given if one[0] > self.now]
        if self.steps % ODOMETRY == 0:
            self._tell()
        if self.camera and self.steps % PICTURE == 0:
            self._see(*self.camera)

        if self.lidar and self.steps % SCAN == 0:
            then = self.poses[-1 - min(len(self.poses) - 1, round(self.lidar.lag / DT))]
            points = self.lidar.points(then, self.noise)
            bearings, far = np.arctan2(points[:, 1], points[:, 0]), np.hypot(*points.T)
            rays = np.stack([bearings, far, np.ones(len(points))], 1)
            self.pending.append(Scan("scan", 0, 0.0, rays))

    def _tell(self) -> None:
        k = self.base.told
        pose = self.odometry(Pose(k * self.base.x, k * self.base.y, self.base.yaw), self.now)
        if pose is not None:
            yaw = math.remainder(pose.yaw, 2 * math.pi)
            stamp = round((EPOCH + self.now) * 1e9)
            self.pending.append(Odometry(Pose(pose.x, pose.y, yaw), stamp, 0.01))

    def _see(self, lag: float, blur: float) -> None:
        """A picture of a strip; ``lag`` s older than stamped, less sharp by ``blur`` a rad/s."""
        yaw = self.yaws[-1 - min(len(self.yaws) - 1, round(lag / DT))]
        part, left = math.modf(-yaw * 150.0 % 2000)
        strip = self.strip[int(left) : int(left) + COLUMNS_WIDE + 1]
        columns = strip[:-1] + part * (strip[1:] - strip[:-1])
        sharp = 1.0 / (1.0 + blur * abs(self.base.rates[1])) + self.noise.normal() * 0.01
        came = EPOCH + self.now
        self.pending.append(PictureFeatures(came, came, columns - columns.mean(), float(sharp)))


def write_bag(path: Path, recording: TrialMeasurements, nudge: float) -> None:
    """Its commands, 20 a second while they last, and its odometry as a bag.

    ``nudge``: m/s of every other message of a stop, as of ``output.stop_nudge``.
    """
    said: list[Said] = []
    for at, x, y, yaw in recording.poses:
        told = odometry(x, yaw, y) | {"header": {"stamp": seconds(at)}}
        said.append((at, "odom", told))
    for (at, *given), (end, *_) in pairwise([*recording.commands, (said[-1][0], 0.0, 0.0, 0.0)]):
        if not math.isnan(given[0]):
            for number, one in enumerate(np.arange(at, end, 0.05)):
                speed, turn, aside = given if any(given) else (number % 2 * nudge, 0.0, 0.0)
                linear = {"x": speed, "y": aside}
                said.append((one, "cmd_vel", {"linear": linear, "angular": {"z": turn}}))
    write_run(path, said=sorted(said, key=lambda each: each[0]))
