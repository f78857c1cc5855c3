"""One task in one room without ROS: frames out, actions in, and whether the robot got there.

Simulated time stands still between actions; a benchmark then measures decisions, not the machine it
runs on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...nav.answer import Action
from ...nav.motion import BLOCKED, Limits, Motion, Steps, goal_of
from ...nav.pose import STILL
from ...nav.pose import Pose as OdometryPose
from .bases import IDEAL, make_base
from .camera import Camera, Eye, encode_jpeg, eye_at
from .room import Pose, Room
from .scene import Scene
from .thing import Thing

if TYPE_CHECKING:
    from typing_extensions import Self

CYCLE = 0.05
"""Seconds between two velocity commands."""

REACH = 1.0
"""Metres from the camera to the named thing's nearest point within which a stop is at it."""

FACING = math.radians(25)
"""How far beside the middle of the picture the thing may be at the end."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """The state of an episode: ``stopped_at`` is the thing that a stop was made at, "" for none.

    ``success``: stopped, within REACH of the named thing, facing it, and at none of its look-alikes
    (none is more nearly ahead). ``contacts``: how often the base ran into something, ``blocked``:
    how many motions took it to be held by something. ``seconds``: of simulated time.
    """

    success: bool
    stopped_at: str
    contacts: int
    blocked: int
    seconds: float


class Episode:
    """The closed loop of one room; used by one thread, closed when done."""

    def __init__(
        self,
        room: Room,
        renderer: str = "auto",
        *,
        size: int | None = None,
        steps: Steps | None = None,
        base: str = IDEAL,
        limits: Limits | None = None,
    ) -> None:
        self.room = room
        self.world = make_base(base, room)
        self._camera = Camera(Scene(room), renderer, size)
        self._steps, self._limits = steps or Steps(), limits or Limits()
        self._stopped, self._contacts, self._blocked = False, 0, 0

    def frame(self) -> bytes:
        """What the camera sees now, as the JPEG that the robot would publish."""
        return encode_jpeg(self._camera.render(self.world.eye))

    def perform(self, action: Action) -> None:
        """Carry the action out, closed-loop on odometry, until the base has come to rest."""
        self._stopped = action.verb == "stop"
        if not self._stopped:
            self._drive(action)
        self._settle()

    def _drive(self, action: Action) -> None:
        world = self.world
        motion = Motion(goal_of(action, self._steps), self._limits, world.time, self._where())
        while True:
            step = motion.step(world.time, self._where())
            if step.done:
                self._blocked += step.problem == BLOCKED
                return
            self._pass(step.velocity.vx, step.velocity.vy, step.velocity.wz)

    def _settle(self) -> None:
        for _ in range(20):
            self._pass(STILL.vx, STILL.vy, STILL.wz)
            if self.world.standing:
                return

    def _pass(self, vx: float, vy: float, wz: float) -> None:
        touched = self.world.contact
        self.world.command(vx, vy, wz)
        self.world.step(CYCLE)
        self._contacts += self.world.contact and not touched

    def _where(self) -> OdometryPose:
        odometry = self.world.odometry
        return OdometryPose(odometry.x, odometry.y, odometry.yaw)

    def outcome(self) -> EpisodeOutcome:
        """The state of the episode now."""
        at = thing_in_front(self.room, self.world.pose) if self._stopped else ""
        success = at == self.room.target
        return EpisodeOutcome(success, at, self._contacts, self._blocked, self.world.time)

    def close(self) -> None:
        """Free the renderer."""
        self._camera.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def thing_in_front(room: Room, pose: Pose) -> str:
    """The thing a robot at ``pose`` is at: within REACH, within FACING of ahead; "" for none.

    Of several the one most nearly ahead counts; a broad one is ahead when the line ahead meets it.
    """
    eye = eye_at(pose)
    near = [t for t in room.things if t.distance(eye.x, eye.y) <= REACH]
    aside = {t.name: _aside(t, eye) for t in near}
    faced = [name for name, angle in aside.items() if angle <= FACING]
    return min(faced, key=lambda name: aside[name], default="")


def _aside(thing: Thing, eye: Eye) -> float:
    """How far the thing's middle is off ahead (rad); 0 when the line ahead meets it in REACH."""
    for step in range(1, 51):
        ahead = step * REACH / 50
        x, y = eye.x + ahead * math.cos(eye.yaw), eye.y + ahead * math.sin(eye.yaw)
        if thing.distance(x, y) == 0.0:
            return 0.0
    return abs(thing.bearing(eye.x, eye.y, eye.yaw))
