"""A base that follows the navigator's commands with a first-order lag, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....nav.events import Announce, Drive, Effect, Halt
from ....nav.pose import STILL, Pose, Velocity

GRACE = 0.5  # s after a command's end at which the watchdog stops the base
STANDING = (0.03, 0.05)  # m/s, rad/s under which it stands
PART = 0.01  # s, integrated at once

Components = tuple[float, float, float]  # m/s ahead, m/s left, rad/s


class Base:
    """Pose and velocity; ``own`` is the part of the velocity that is the current step's.

    A step begins with its Announce: what the base still rolls from the one before is not its own.
    ``stopped_at`` is when it was commanded to stand, by a Halt or by the watchdog; infinite from
    the next command that moves.
    """

    def __init__(self, lag: float, now: float) -> None:
        self.pose, self.lag, self.now = Pose(), lag, now
        self.velocity: Components = (0.0, 0.0, 0.0)
        self.own = self.velocity
        self.stopped_at = now
        self._command = STILL
        self._deadline = math.inf

    @property
    def stands(self) -> bool:
        """Whether it stands."""
        vx, vy, wz = self.velocity
        return max(abs(vx), abs(vy)) <= STANDING[0] and abs(wz) <= STANDING[1]

    def obey(self, effect: Effect) -> None:
        """Take the navigator's effect."""
        if isinstance(effect, Drive):
            self._command, self.stopped_at = effect.velocity, math.inf
            self._deadline = min(effect.until + GRACE, effect.stop_by)
        elif isinstance(effect, Halt):
            self._stand(self.now)
        elif isinstance(effect, Announce):
            self.own = (0.0, 0.0, 0.0)

    def run(self, until: float) -> Iterator[tuple[float, float, float, float]]:
        """Move until then: (m/s ahead, m/s left, rad/s, seconds) of the step's own, in parts."""
        while self.now < until - 1e-9:
            end = min(until, self.now + PART)
            if self.now >= self._deadline:
                self._stand(self._deadline)
            elif self._deadline < end:
                end = self._deadline
            dt = end - self.now
            self.now = end
            before = self.own
            self.velocity = self._follow(self.velocity, dt)
            self.own = self._follow(before, dt)
            self._move(dt)
            # The mean over dt is exact for the sum of them: what is commanded is what is covered.
            command = _components(self._command)
            vx, vy, wz = (
                c - self.lag * (after - own) / dt if dt > 0 else own
                for c, after, own in zip(command, self.own, before, strict=True)
            )
            yield vx, vy, wz, dt

    def _stand(self, at: float) -> None:
        self._command, self._deadline, self.stopped_at = STILL, math.inf, at

    def _follow(self, velocity: Components, dt: float) -> Components:
        keep = math.exp(-dt / self.lag)
        vx, vy, wz = (
            c + (v - c) * keep for c, v in zip(_components(self._command), velocity, strict=True)
        )
        return vx, vy, wz

    def _move(self, dt: float) -> None:
        x, y, yaw = self.pose.x, self.pose.y, self.pose.yaw
        vx, vy, wz = self.velocity
        cos, sin = math.cos(yaw), math.sin(yaw)
        self.pose = Pose(
            x + dt * (vx * cos - vy * sin), y + dt * (vx * sin + vy * cos), yaw + dt * wz
        )


def _components(velocity: Velocity) -> Components:
    return velocity.vx, velocity.vy, velocity.wz
