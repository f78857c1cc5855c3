"""A base that follows its commands with a lag and has the watchdog's half second.

It remembers what it made, so that a step can be held to what its base covered since its frame.
Standing is below 3 cm/s and 3 degrees/s.
"""

from __future__ import annotations

import cmath
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from edge_cloud_spec.nav.events import Drive, Effect, Halt
from edge_cloud_spec.nav.pose import STILL, Pose, Velocity, between

RATIO, MORE = 1.5, (0.05, math.radians(5))  # of a step's size, and m or rad beyond
GRACE = 0.5  # s after a command's end at which the watchdog stops the base
STANDING = (0.03, 0.05)  # m/s, rad/s under which it stands
PART = 0.01  # s, integrated at once
REMEMBERED = 2000  # parts; more than ten seconds

Place = tuple[float, float]  # m
Components = tuple[float, float, float]  # m/s ahead, m/s left, rad/s


@dataclass(frozen=True)
class Made:
    """What a base has covered until ``at`` (s).

    ``path`` in m, ``turned`` in rad to either side.
    """

    at: float
    pose: Pose
    path: float = 0.0
    turned: float = 0.0


class Base:
    """Pose and velocity, and what it made."""

    def __init__(self, lag: float, now: float) -> None:
        self.pose, self.lag, self.now = Pose(), lag, now
        self.velocity: Components = (0.0, 0.0, 0.0)
        self.command = STILL
        self._deadline = math.inf
        self._made = deque([Made(now, self.pose)], maxlen=REMEMBERED)

    @property
    def stands(self) -> bool:
        """Whether it stands."""
        vx, vy, wz = self.velocity
        return max(abs(vx), abs(vy)) <= STANDING[0] and abs(wz) <= STANDING[1]

    def made(self, until: float) -> Made:
        """What the base had covered until this time (s), interpolated."""
        after = self._made[-1]
        for before in reversed(self._made):
            if before.at <= until:
                break
            after = before
        share = (until - before.at) / (after.at - before.at) if after.at > before.at else 0.0
        share = min(1.0, max(0.0, share))
        path = before.path + share * (after.path - before.path)
        turned = before.turned + share * (after.turned - before.turned)
        return Made(until, between(before.pose, after.pose, share), path, turned)

    def obey(self, effect: Effect) -> None:
        """Take the navigator's effect."""
        if isinstance(effect, Drive):
            self.command = effect.velocity
            self._deadline = min(effect.until + GRACE, effect.stop_by)
        elif isinstance(effect, Halt):
            self._stand()

    def run(self, until: float) -> Iterator[tuple[float, float, float, float]]:
        """Move until then: (m/s ahead, m/s left, rad/s, seconds), in parts."""
        while self.now < until - 1e-9:
            end = min(until, self.now + PART)
            if self.now >= self._deadline:
                self._stand()
            elif self._deadline < end:
                end = self._deadline
            dt, before = end - self.now, self.velocity
            self.now = end
            self.velocity = self._follow(dt)
            # The mean over dt is exact for the sum of them: what is commanded is what is covered.
            vx, vy, wz = (
                c - self.lag * (after - v) / dt if dt > 0 else v
                for c, after, v in zip(components(self.command), self.velocity, before, strict=True)
            )
            self._move(vx, vy, wz, dt)
            yield vx, vy, wz, dt

    def _stand(self) -> None:
        self.command, self._deadline = STILL, math.inf

    def _follow(self, dt: float) -> Components:
        keep = math.exp(-dt / self.lag)
        vx, vy, wz = (
            c + (v - c) * keep for c, v in zip(components(self.command), self.velocity, strict=True)
        )
        return vx, vy, wz

    def _move(self, vx: float, vy: float, wz: float, dt: float) -> None:
        self.pose = moved(self.pose, Velocity(vx, vy, wz), dt)
        last = self._made[-1]
        path, turned = last.path + math.hypot(vx, vy) * dt, last.turned + abs(wz) * dt
        self._made.append(Made(self.now, self.pose, path, turned))


def components(velocity: Velocity) -> Components:
    """The velocity as numbers."""
    return velocity.vx, velocity.vy, velocity.wz


def moved(pose: Pose, velocity: Velocity, seconds: float) -> Pose:
    """Where a base is that has moved so for a moment."""
    way = complex(velocity.vx, velocity.vy) * seconds * cmath.rect(1.0, pose.yaw)
    return Pose(pose.x + way.real, pose.y + way.imag, pose.yaw + velocity.wz * seconds)


def seen_from(pose: Pose, place: Place) -> Place:
    """The place from a base: m ahead, and to its left."""
    way = complex(place[0] - pose.x, place[1] - pose.y) * cmath.rect(1.0, -pose.yaw)
    return way.real, way.imag
