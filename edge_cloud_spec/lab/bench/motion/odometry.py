"""Odometry of a base in virtual time, which fails in windows of time, each with one fault."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from ....nav.events import Odometry
from ....nav.pose import Pose

FAULTS = ("none", "frozen", "restarted", "jump", "lies", "gone")
LIES = ("scaled", "rotated", "noise", "drift", "nan", "huge")


class FaultyOdometry:
    """The base's pose as odometry reports it: right outside of windows, but for its origin.

    ``silent_since`` is when usable messages ended, else infinite; ``begun`` whether any was sent.
    """

    def __init__(self, random: Random, fault: str, now: float) -> None:
        self._random, self._fault = random, fault
        self._ros = random.uniform(0.0, 1e6)  # the computer's ROS time minus steady time, s
        self._epoch = self._ros  # the camera's
        self._clock = self._epoch  # the odometry's own
        self._origin = Pose(random.uniform(-9, 9), random.uniform(-9, 9), random.uniform(-3, 3))
        self._sent: list[Odometry] = []
        self._kind, self._begin, self._entry = "", now, Pose()
        self._amount = 0.0
        self._next_window(now)

    @property
    def begun(self) -> bool:
        """Whether a message was sent."""
        return bool(self._sent)

    @property
    def silent_since(self) -> float:
        """When usable messages ended, s; infinite while they have not."""
        return self._begin if self._kind in ("frozen", "gone", "nan", "huge") else math.inf

    @property
    def camera_ahead(self) -> float:
        """Seconds by which the camera's clock is ahead of the computer's."""
        return self._epoch - self._ros

    def stamp_at(self, at: float) -> int:
        """The camera's stamp (ns) at ``at``."""
        return int((at + self._epoch) * 1e9)

    def read(self, pose: Pose, now: float) -> Odometry | None:
        """The message for a base at ``pose``, if any."""
        if self._kind and now >= self._end:
            self._next_window(now)
        elif not self._kind and self._fault != "none" and now >= self._end:
            self._fail(pose, now)
        if self._kind == "gone":
            return None
        stamp, age = int((now + self._clock) * 1e9), self._ros - self._clock
        message = Odometry(self._distorted(pose), stamp, age)
        if self._kind == "frozen" and self._sent:
            message = self._frozen(message)
            message = replace(message, age=now + self._ros - message.stamp / 1e9)
        self._sent = [*self._sent[-1:], message]
        return message

    def _next_window(self, now: float) -> None:
        self._kind, self._end = "", now + self._random.uniform(0.0, 3.0)

    def _fail(self, pose: Pose, now: float) -> None:
        random = self._random
        self._kind = random.choice(LIES) if self._fault == "lies" else self._fault
        self._begin, self._end = now, now + random.uniform(0.05, 2.0)
        self._entry, self._amount = pose, random.uniform(-1.0, 3.0)
        if self._kind == "restarted":
            self._origin = replace(pose, yaw=random.choice((0.0, pose.yaw)))
            self._clock = random.choice((self._clock, -now, self._clock - 5.0))
            self._epoch = random.choice((self._epoch, self._clock))
        elif self._kind == "jump":
            far, way = 0.03 * 200 ** random.random(), random.uniform(-math.pi, math.pi)
            self._origin = Pose(
                self._origin.x + far * math.cos(way),
                self._origin.y + far * math.sin(way),
                self._origin.yaw + random.choice((0.0, random.uniform(-3, 3))),
            )

    def _frozen(self, message: Odometry) -> Odometry:
        """The last again; or its stamp with other poses; or the last two in turn."""
        if self._amount < 0.0:
            return replace(message, stamp=max(sent.stamp for sent in self._sent))
        return self._sent[-1] if self._amount < 1.5 else self._sent[0]

    def _distorted(self, pose: Pose) -> Pose:
        random, entry, amount = self._random, self._entry, self._amount
        dx, dy, turned = pose.x - entry.x, pose.y - entry.y, pose.yaw - entry.yaw
        if self._kind == "scaled":
            pose = Pose(entry.x + amount * dx, entry.y + amount * dy, entry.yaw + amount * turned)
        elif self._kind == "rotated":
            cos, sin = math.cos(amount), math.sin(amount)
            pose = Pose(entry.x + cos * dx - sin * dy, entry.y + sin * dx + cos * dy, pose.yaw)
        elif self._kind == "noise":
            far = 0.2 * abs(amount)
            pose = Pose(*(v + random.gauss(0.0, far) for v in (pose.x, pose.y, pose.yaw)))
        elif self._kind == "drift":
            pose = replace(pose, yaw=pose.yaw + amount * math.hypot(dx, dy))
        elif self._kind == "nan":
            return replace(pose, x=math.nan)
        elif self._kind == "huge":
            return random.choice((Pose(1e308, -1e308, pose.yaw), Pose(math.inf, 0.0, 0.0)))
        return self._from_origin(pose)

    def _from_origin(self, pose: Pose) -> Pose:
        origin = self._origin
        dx, dy = pose.x - origin.x, pose.y - origin.y
        cos, sin = math.cos(origin.yaw), math.sin(origin.yaw)
        yaw = math.remainder(pose.yaw - origin.yaw, 2 * math.pi)
        return Pose(cos * dx + sin * dy, cos * dy - sin * dx, yaw)
