"""One task in one room without ROS: frames out, actions in. Time stands still between actions."""

from __future__ import annotations

from contextlib import ExitStack

from edge_cloud_spec.lab.sim.bases import IDEAL, make_base
from edge_cloud_spec.lab.sim.camera import Camera, encode_jpeg
from edge_cloud_spec.lab.sim.room import Room
from edge_cloud_spec.lab.sim.scene import Scene
from edge_cloud_spec.nav.answer import Action
from edge_cloud_spec.nav.motion import Limits, Motion, Steps, goal_of
from edge_cloud_spec.nav.pose import STILL, Pose, Velocity

CYCLE = 0.05  # s between two velocity commands


class Episode(ExitStack):
    """The closed loop of one room, closed when done; ``contacts``: how often the base met what."""

    def __init__(
        self, room: Room, size: int | None = None, base: str = IDEAL, steps: Steps | None = None
    ) -> None:
        super().__init__()
        self.room, self.world, self.contacts = room, make_base(base, room), 0
        self._camera, self._steps = Camera(Scene(room), "rays", size), steps or Steps()
        self.callback(self._camera.close)

    def frame(self) -> bytes:
        """What the camera sees now, as the JPEG that the robot would publish."""
        return encode_jpeg(self._camera.render(self.world.eye))

    def perform(self, action: Action) -> None:
        """Carry the action out, closed-loop on odometry, until the base has come to rest."""
        if action.verb != "stop":
            goal = goal_of(action, self._steps)
            motion = Motion(goal, Limits(), self.world.time, self._where())
            while not (step := motion.step(self.world.time, self._where())).done:
                self._pass(step.velocity)
        self._pass(STILL)
        while not self.world.standing:
            self._pass(STILL)

    def _pass(self, velocity: Velocity) -> None:
        touched = self.world.contact
        self.world.command(velocity.vx, velocity.vy, velocity.wz)
        self.world.step(CYCLE)
        self.contacts += self.world.contact and not touched

    def _where(self) -> Pose:
        odometry = self.world.odometry
        return Pose(odometry.x, odometry.y, odometry.yaw)
