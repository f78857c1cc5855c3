"""Carry out an instruction on a robot of your own: two callbacks, no ROS.

    edge-cloud-spec serve                 # the verifier, in another shell
    python examples/own_robot.py          # or with --cloud HOST:PORT

A simulated robot in a room stands in for yours: write ``camera``, ``drive`` and, if it knows where
it is, ``odometry`` for your own in place of ``SimulatedRobot``. Ctrl-C stops it.
"""

from __future__ import annotations

import argparse
import sys
import time

from edge_cloud_spec import PictureDecoder, Pilot, UserError
from edge_cloud_spec.errors import imports

with imports():
    from edge_cloud_spec_lab.sim.bases import IDEAL_BASE, make_base
    from edge_cloud_spec_lab.sim.camera import Camera, encode_jpeg
    from edge_cloud_spec_lab.sim.room import make_room
    from edge_cloud_spec_lab.sim.scene import Scene


class SimulatedRobot:
    """A base in a room, in real time."""

    def __init__(self, number: int) -> None:
        self.room = make_room(number)
        self._world, self._camera = make_base(IDEAL_BASE, self.room), Camera(Scene(self.room))
        self._now = time.monotonic()

    def camera(self) -> bytes:
        """The newest picture, a JPEG."""
        self._go_on()
        return encode_jpeg(self._camera.render(self._world.eye))

    def drive(self, vx: float, vy: float, wz: float) -> None:
        """Go on at m/s ahead, m/s to the left and rad/s to the left, until the next command."""
        self._go_on()
        self._world.command(vx, vy, wz)

    def odometry(self) -> tuple[float, float, float]:
        """Where the base is: m, m, rad."""
        reading = self._world.odometry
        return reading.x, reading.y, reading.yaw

    def _go_on(self) -> None:
        before, self._now = self._now, time.monotonic()
        self._world.step(self._now - before)


def main() -> int:
    parser = argparse.ArgumentParser(description="Carry out an instruction without ROS.")
    parser.add_argument("--cloud", default="127.0.0.1:50151", help="the verifier's HOST:PORT")
    parser.add_argument("--seed", type=int, default=0, help="of the room")
    args = parser.parse_args()
    robot = SimulatedRobot(args.seed)
    try:
        with PictureDecoder(args.cloud) as decoder:
            pilot = Pilot.of(decoder)
            instruction = robot.room.instruction
            end = pilot.navigate(instruction, robot.camera, robot.drive, robot.odometry)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(end)  # done find the blue box
    return 0 if end.state == "done" else 1


if __name__ == "__main__":
    raise SystemExit(main())
