"""The robot's base in a room: velocity tracking, limits, command timeout, contact, odometry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edge_cloud_spec.nav.pose import wrap

from .camera import CAMERA_FORWARD_M, CAMERA_HEIGHT_M, Eye, eye_at
from .engine import mujoco
from .obstacles import people_in, place_people
from .room import Pose
from .scene import MASS, PHYSICS_STEP_S, Scene

STRIDES_PER_S = 2.4
"""Strides per second of the trot."""

_PITCH, _ROLL, _HEAVE = math.radians(1.4), math.radians(2.0), 0.008
_LEAN = math.radians(0.6)  # nose up per m/s^2 of acceleration
_SETTLE = 0.15  # s with which the shaking grows and fades


class Gait:
    """The swaying of a walking body; advances with its speed, and settles when it stands."""

    def __init__(self) -> None:
        self._phase = self._effort = self._lean = self._speed = 0.0

    def step(self, dt: float, speed: float, turn: float) -> None:
        """Advance by ``dt`` seconds at ``speed`` (m/s, forward) and ``turn`` (rad/s)."""
        fade = 1 - math.exp(-dt / _SETTLE)
        effort = min(1.0, (abs(speed) + 0.3 * abs(turn)) / 0.5)
        self._effort += (effort - self._effort) * fade
        acceleration = (speed - self._speed) / dt
        self._lean += (acceleration * _LEAN - self._lean) * fade
        self._speed = speed
        self._phase = (self._phase + STRIDES_PER_S * dt) % 1.0

    @property
    def attitude(self) -> tuple[float, float, float]:
        """The camera's current tilt, pitch (up) and roll (to the right, rad), and lift (m)."""
        angle, effort = 2 * math.pi * self._phase, self._effort
        return (
            self._lean + effort * _PITCH * math.sin(2 * angle),
            effort * _ROLL * math.sin(angle),
            effort * _HEAVE * math.cos(2 * angle),
        )


MAX_VELOCITY = (1.0, 0.5, 1.5)
"""The largest velocity of the base: m/s forward or backward, m/s sideways, rad/s."""

RISE = 0.2
"""Seconds in which the velocity rises from 10 to 90 % of a commanded step."""

COMMAND_TIMEOUT_S = 0.5
"""Seconds without a command after which the base stops by itself."""

RESTING_VELOCITY = 0.01
"""m/s and rad/s below which a base that is to stand puts its feet down."""

STANDING_VELOCITY = 0.02
"""m/s and rad/s below which it stands."""

PLACE_ROUNDING = 1e-9
"""m and rad to which a place at rest is rounded: sums of other moments round otherwise."""


@dataclass(frozen=True)
class OdometryReading:
    """The base's own estimate: pose since the start (m, rad) and velocity in its own frame.

    ``z`` is the height of the base's frame above the floor; ``pitch`` is up and ``roll`` to the
    right, as an Eye's.
    """

    stamp: float
    x: float
    y: float
    yaw: float
    vx: float
    vy: float
    wz: float
    z: float = 0.0
    pitch: float = 0.0
    roll: float = 0.0


class SimulatedOdometer:
    """Integrates the base's motion, with errors of scale and of heading per metre.

    ``drift`` is their standard deviation (0: none); they are drawn once from the room's seed.
    """

    def __init__(self, drift: float, seed: int) -> None:
        errors = np.random.default_rng((0, seed, 0xD81F)).normal(0, 1, 3)
        self._scale, self._turn_scale, self._bend = drift * errors
        self.pose = np.zeros(3)

    def add(self, before: np.ndarray, moved: np.ndarray) -> None:
        """Add a motion by (x, y, yaw) from the pose ``before``, in the room's frame."""
        cos, sin = math.cos(before[2]), math.sin(before[2])
        ahead, aside = cos * moved[0] + sin * moved[1], cos * moved[1] - sin * moved[0]
        ahead, aside = ahead * (1 + self._scale), aside * (1 + self._scale)
        turned = moved[2] * (1 + self._turn_scale) + self._bend * math.hypot(ahead, aside)
        cos, sin = math.cos(self.pose[2]), math.sin(self.pose[2])
        self.pose += (cos * ahead - sin * aside, sin * ahead + cos * aside, turned)


def checked(vx: float, vy: float, wz: float) -> np.ndarray:
    """A command limited to MAX_VELOCITY; raises ValueError if a number is not finite."""
    wanted = np.array([vx, vy, wz], float)
    if not np.all(np.isfinite(wanted)):
        raise ValueError(f"a velocity command must be finite numbers, not {wanted.tolist()}")
    return np.asarray(np.clip(wanted, -np.array(MAX_VELOCITY), MAX_VELOCITY))


class World:
    """The physics of one room; owned by one thread. Time is simulated seconds since the start.

    At rest (``resting``) only time advances, and all phases restart: what follows does not depend
    on how long it stood. With people in the scene everything advances.

    ``drift`` is the odometer's.
    """

    mount = (CAMERA_FORWARD_M, 0.0, CAMERA_HEIGHT_M)

    def __init__(self, scene: Scene, drift: float = 0.0) -> None:
        self.scene = scene
        self.gait = Gait()
        self._ticks = 0
        self._people = people_in(scene.room, scene.people)
        self._frozen = self._people is None
        self.model, self.data = scene.model, mujoco.MjData(scene.model)
        if self._people is not None:
            place_people(self._people, self.data)
        self.data.qpos[2] = scene.room.start.yaw
        mujoco.mj_forward(scene.model, self.data)
        self._robot = scene.model.geom("robot").id
        self._wanted = np.zeros(3)
        self._reference = np.zeros(3)
        self._commanded = -math.inf
        self._touching = False
        self._odometer = SimulatedOdometer(drift, scene.room.seed)
        self._start_of_room = np.array([scene.room.start.x, scene.room.start.y, 0.0])

    def command(self, vx: float, vy: float, wz: float) -> None:
        """Follow this velocity (m/s, m/s, rad/s) within MAX_VELOCITY, for COMMAND_TIMEOUT_S at
        most.

        Raises ValueError if a number is not finite; the earlier command then stays in force.
        """
        self._wanted = checked(vx, vy, wz)
        self._commanded = self.time
        self._frozen = self._frozen and not self._wanted.any()

    @property
    def time(self) -> float:
        """Seconds since the start."""
        return self._ticks * PHYSICS_STEP_S

    def step(self, dt: float) -> None:
        """Let ``dt`` seconds pass (rounded to physics steps of PHYSICS_STEP_S)."""
        self.walk(dt, self.pose)
        end = self._ticks + round(dt / PHYSICS_STEP_S)
        while self._ticks < end and not self._frozen:
            self._tick()
        self._ticks = end

    def walk(self, dt: float, robot: Pose) -> None:
        """Let people walk for ``dt`` seconds, the robot being there."""
        if self._people is not None:
            self._people.step(dt, np.array([robot.x, robot.y]))
            place_people(self._people, self.data)
            mujoco.mj_kinematics(self.model, self.data)  # a scan meets them where they are

    def _tick(self) -> None:
        data, model = self.data, self.scene.model
        if self.time - self._commanded > COMMAND_TIMEOUT_S - PHYSICS_STEP_S / 2:
            self._wanted = np.zeros(3)
        # first order with a 10-90 % rise of RISE
        self._reference += (self._wanted - self._reference) * (
            1 - math.exp(-PHYSICS_STEP_S * 2.2 / RISE)
        )
        yaw = data.qpos[2]
        cos, sin = math.cos(yaw), math.sin(yaw)
        vx, vy, wz = self._reference
        data.ctrl[:] = (cos * vx - sin * vy, sin * vx + cos * vy, wz)
        # centripetal feed-forward: without it the base slides out of a turn
        data.qfrc_applied[0] = -MASS * data.qvel[2] * data.qvel[1]
        data.qfrc_applied[1] = MASS * data.qvel[2] * data.qvel[0]
        before = data.qpos.copy()
        mujoco.mj_step(model, data)
        self._ticks += 1
        self._touching = data.ncon > 0
        self._odometer.add(before, data.qpos - before)
        speed, turn = self.velocity[0], data.qvel[2]
        self.gait.step(PHYSICS_STEP_S, float(speed), float(turn))
        fastest = max(abs(self._reference).max(), abs(data.qvel).max())
        if fastest < RESTING_VELOCITY and not self._wanted.any() and self._people is None:
            self._rest()

    def _rest(self) -> None:
        data = self.data
        data.qpos[:] = np.round(data.qpos / PLACE_ROUNDING) * PLACE_ROUNDING
        self._odometer.pose = np.round(self._odometer.pose / PLACE_ROUNDING) * PLACE_ROUNDING
        data.qvel[:] = data.qacc_warmstart[:] = self._reference[:] = 0.0
        self.gait = Gait()
        self._frozen = True

    @property
    def standing(self) -> bool:
        """Whether the base stands, whatever was commanded."""
        return max(map(abs, self.velocity)) < STANDING_VELOCITY

    @property
    def resting(self) -> bool:
        """Whether the base stands because that was commanded."""
        walked_about = self._people is not None and not self._wanted.any()
        return self._frozen or (walked_about and self.standing)

    @property
    def pose(self) -> Pose:
        """The true pose in the room's frame."""
        x, y, yaw = self.data.qpos
        start = self._start_of_room
        return Pose(float(x + start[0]), float(y + start[1]), wrap(float(yaw)))

    @property
    def velocity(self) -> tuple[float, float, float]:
        """The true velocity in the base's frame: m/s forward, m/s left, rad/s."""
        vx, vy, wz = self.data.qvel
        cos, sin = math.cos(self.data.qpos[2]), math.sin(self.data.qpos[2])
        return float(cos * vx + sin * vy), float(cos * vy - sin * vx), float(wz)

    @property
    def odometry(self) -> OdometryReading:
        """Pose and velocity as the base reports them, from (0, 0, 0) at the start."""
        x, y, yaw = self._odometer.pose
        return OdometryReading(self.time, float(x), float(y), wrap(float(yaw)), *self.velocity)

    @property
    def contact(self) -> bool:
        """Whether the body touches a wall or a thing."""
        return self._touching

    @property
    def eye(self) -> Eye:
        """The position and orientation of the camera, gait included."""
        return eye_at(self.pose, *self.gait.attitude)
