"""The simulator node: a simulated Go2 in its room, with the topics that a real robot has.

``python -m edge_cloud_spec.lab.simulator.simulator --ros-args ...``; room, physics and camera are
those of ``sim``.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass

from geometry_msgs.msg import Twist, TwistStamped
from rclpy.node import Node

from ...bounds import Bounded, bounded, chosen, described
from ...errors import UserError
from ...nodes.health import Health, Level
from ...nodes.runtime.diagnostics import Diagnostics
from ...nodes.runtime.parameters import Parameters, refuse_unknown_parameters
from ...nodes.runtime.qos import RELIABLE
from ...nodes.runtime.run import spin
from ..sim.camera import RENDERERS, Camera
from ..sim.kinds import KINDS
from ..sim.room import Room, make_room
from ..sim.scene import Scene
from ..sim.world import World
from .room_topics import RoomTopics

CYCLE = 0.02  # s between two updates: the newest command is applied and physics caught up
MAX_STEP = 0.5  # s of physics in one update; what a longer pause of the machine missed is skipped
MARKER_RATE = 1.0  # Hz
MIN_IMAGE_SIZE = 32  # pixels


@dataclass(frozen=True)
class SimulatorSettings(Bounded):
    """Which room, and the rates of its topics. All are read at the start only."""

    seed: int = bounded(0, 0, 2**31 - 1, "which room", fixed=True)
    target: str = chosen("", ("", *KINDS), "what to find; empty: the room's own", fixed=True)
    renderer: str = chosen("auto", RENDERERS, "auto: egl where it draws", fixed=True)
    image_size: int = bounded(
        0, 0, 512, "side of the square picture, pixels, from 32; 0: the renderer's own", fixed=True
    )
    jpeg_quality: int = bounded(85, 30, 100, "of the camera's JPEG", fixed=True)
    camera_rate: float = bounded(15.0, 1.0, 50.0, "pictures per second", fixed=True)
    odom_rate: float = bounded(50.0, 5.0, 50.0, "odometry messages per second", fixed=True)
    outcome_rate: float = bounded(4.0, 1.0, 20.0, "sim/outcome messages per second", fixed=True)
    drift: float = bounded(0.0, 0.0, 0.2, "odometry's errors, relative, 1 sigma", fixed=True)
    stamped_commands: bool = described(False, "cmd_vel is a TwistStamped", fixed=True)
    odom_frame: str = described("odom", "frame of odometry and markers", fixed=True)
    base_frame: str = described("base_link", "frame of the base", fixed=True)
    camera_frame: str = described("camera_optical_frame", "frame of the pictures", fixed=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.image_size < MIN_IMAGE_SIZE:
            raise ValueError(f"image_size must be 0 or from 32 to 512, not {self.image_size}")


class SimulatorNode(Node):
    """A room in real time.

    World, camera and publishers belong to one thread of their own, paced by the steady clock;
    callbacks only keep the newest command for it.
    """

    def __init__(self) -> None:
        super().__init__("simulator")
        diagnostics = Diagnostics(self)
        self.settings = Parameters(self, SimulatorSettings()).start_value()
        refuse_unknown_parameters(self)  # before there is a room
        self.room: Room = make_room(self.settings.seed, self.settings.target or None)
        self._topics = RoomTopics(
            self,
            self.room,
            self.settings.jpeg_quality,
            self.settings.odom_frame,
            self.settings.base_frame,
            self.settings.camera_frame,
        )
        if self._topics.problem:
            self.get_logger().warning(self._topics.problem)
        self._commands: deque[tuple[float, float, float]] = deque(maxlen=1)
        kind = TwistStamped if self.settings.stamped_commands else Twist
        self.create_subscription(kind, "cmd_vel", self._on_command, RELIABLE)
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._problem: UserError | None = None
        self._thread = threading.Thread(target=self._simulate, name="room", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._problem is not None:
            raise self._problem
        diagnostics.report(self._health)

    def _health(self) -> Health:
        if self._thread.is_alive():
            return Health(Level.OK, f"room {self.settings.seed}")
        return Health(Level.ERROR, "the simulated room stands still", "see the log; start it again")

    def close(self) -> None:
        """End the room's thread, and with it the renderer."""
        self._stop.set()
        self._thread.join(5.0)

    def _on_command(self, message: Twist | TwistStamped) -> None:
        twist = message.twist if isinstance(message, TwistStamped) else message
        velocity = (twist.linear.x, twist.linear.y, twist.angular.z)
        if all(math.isfinite(value) for value in velocity):
            self._commands.append(velocity)
        else:
            self.get_logger().warning("a cmd_vel that is not a number was dropped")

    # The room's thread

    def _simulate(self) -> None:
        settings = self.settings
        try:
            world = World(Scene(self.room), settings.drift)
            # a GL context belongs to the thread that makes it
            camera = Camera(world.scene, settings.renderer, settings.image_size or None)
        except UserError as error:
            self._problem = error
            return
        finally:
            self._ready.set()
        self.get_logger().info(
            f"room {self.room.seed}, {self.room.instruction!r}: "
            f"{camera.renderer} {camera.size}x{camera.size} at {settings.camera_rate:g} Hz"
        )
        with camera:
            try:
                self._run(world, camera)
            except Exception as error:
                if not self._stop.is_set():  # at the end publishers may be destroyed already
                    self.get_logger().fatal(f"the simulation failed: {error!r}")
                    self.context.try_shutdown()

    def _run(self, world: World, camera: Camera) -> None:
        topics, settings = self._topics, self.settings
        odometry, picture = _Rate(settings.odom_rate), _Rate(settings.camera_rate)
        outcome, markers = _Rate(settings.outcome_rate), _Rate(MARKER_RATE)
        last = time.monotonic()
        while not self._stop.wait(max(0.0, last + CYCLE - time.monotonic())):
            if self._commands:
                world.command(*self._commands.popleft())
            passed = time.monotonic() - last
            last += passed
            world.step(min(passed, MAX_STEP))
            now = self.get_clock().now()
            topics.update(world)
            if odometry.is_due(last):
                topics.publish_odometry(world, now)
            if outcome.is_due(last):
                topics.publish_outcome(world)
            if markers.is_due(last):
                topics.publish_markers(now)
            if picture.is_due(last):
                topics.publish_picture(camera, world.eye, now)


class _Rate:
    """When something is due that happens ``rate`` times a second; what was missed is skipped."""

    def __init__(self, rate: float) -> None:
        self._period, self._next = 1 / rate, 0.0

    def is_due(self, now: float) -> bool:
        if now < self._next - CYCLE / 4:  # updates are a little early or late
            return False
        self._next = max(self._next + self._period, now - self._period)
        return True


def main() -> int:
    """Run the node until a signal."""
    return spin(SimulatorNode)


if __name__ == "__main__":
    sys.exit(main())
