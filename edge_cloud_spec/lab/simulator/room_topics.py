"""The topics of the simulated robot and its room."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from geometry_msgs.msg import Point, Quaternion, TransformStamped, Vector3
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time
from sensor_msgs.msg import CameraInfo, CompressedImage
from std_msgs.msg import ColorRGBA, String
from visualization_msgs.msg import Marker, MarkerArray

from ...nodes.runtime.qos import LATCHED, RELIABLE, SENSOR_DATA
from ..sim.camera import FIELD_OF_VIEW, FORWARD, HEIGHT, Camera, Eye, encode_jpeg, eye_at
from ..sim.episode import REACH, thing_in_front
from ..sim.room import Pose, Room
from ..sim.thing import Part, Thing
from ..sim.world import World

_SHAPES = {
    "box": Marker.CUBE,
    "cylinder": Marker.CYLINDER,
    "sphere": Marker.SPHERE,
    "ellipsoid": Marker.SPHERE,
}
_WALL, _PATH = (0.25, 0.25, 0.28), (0.84, 0.24, 0.16)


def room_markers(room: Room, frame: str, now: Time) -> list[Marker]:
    """Walls, parts of things and furniture, and names, seen from where the robot started."""
    w, d = room.size[0] / 2, room.size[1] / 2
    corners = [(w, d), (-w, d), (-w, -d), (w, -d), (w, d)]
    markers = [_line("walls", [_from_start(room, *corner) for corner in corners], _WALL, 0.05)]
    for thing in (*room.things, *room.furniture):
        for part in thing.parts:
            markers.append(_part(room, thing, part, len(markers)))
    markers += [_name(room, thing, number) for number, thing in enumerate(room.things)]
    return [_stamped(marker, frame, now) for marker in markers]


def path_marker(room: Room, path: Sequence[Pose], frame: str, now: Time) -> Marker:
    """The path so far as a line on the floor."""
    points = [_from_start(room, pose.x, pose.y) for pose in path]
    return _stamped(_line("path", points or [(0.0, 0.0)], _PATH, 0.03), frame, now)


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
    marker = Marker(ns="room", id=number, type=_SHAPES[part.shape])
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
    marker.action = Marker.ADD
    marker.header.frame_id, marker.header.stamp = frame, now.to_msg()
    return marker


STILL = 0.02  # m/s and rad/s below which the base stands still
OPTICAL = Quaternion(x=-0.5, y=0.5, z=-0.5, w=0.5)  # z ahead, x to the right, y down
STEP = 0.05  # m between two points of the path
TRANSFORMS = QoSProfile(depth=100)  # as tf2's broadcaster
NO_TRANSFORMS = (
    "tf2_msgs is not installed, so no transforms are published and RViz places no robot: "
    "apt install ros-$ROS_DISTRO-tf2-msgs"
)


class RoomTopics:
    """Publishers of one room, for the room's thread only.

    Transforms are published where ``tf2_msgs`` is installed (a full ROS has it): RViz needs them.
    ``problem`` says so where it is not.
    """

    def __init__(
        self, node: Node, room: Room, quality: int, odom: str, base: str, camera: str
    ) -> None:
        self._room, self._quality = room, quality
        self._odom, self._base, self._camera = odom, base, camera
        self._pictures = node.create_publisher(
            CompressedImage, "camera/image_raw/compressed", SENSOR_DATA
        )
        self._infos = node.create_publisher(CameraInfo, "camera/camera_info", SENSOR_DATA)
        self._odometry = node.create_publisher(Odometry, "odom", SENSOR_DATA)
        self._outcome = node.create_publisher(String, "sim/outcome", LATCHED)
        self._markers = node.create_publisher(MarkerArray, "markers", RELIABLE)
        self._path = [room.start]
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
            fixed = camera_transform(base, camera, node.get_clock().now())
            self._fixed.publish(TFMessage(transforms=[fixed]))

    def update(self, world: World) -> None:
        """Add to the path and to the count of contacts."""
        pose, last = world.pose, self._path[-1]
        if math.hypot(pose.x - last.x, pose.y - last.y) > STEP:
            self._path.append(pose)
        self._contacts += world.contact and not self._touching
        self._touching = world.contact

    def publish_picture(self, camera: Camera, eye: Eye, now: Time) -> None:
        """The camera's picture and intrinsics under one stamp; none without a subscriber."""
        if not self._pictures.get_subscription_count():
            return
        picture = CompressedImage(format="jpeg")
        picture.data.frombytes(encode_jpeg(camera.render(eye), self._quality))
        picture.header.stamp, picture.header.frame_id = now.to_msg(), self._camera
        self._pictures.publish(picture)
        info = camera_info(camera.size)
        info.header = picture.header
        self._infos.publish(info)

    def publish_odometry(self, world: World, now: Time) -> None:
        """Pose since the start and velocity, as the base estimates them."""
        state = world.odometry
        message = Odometry(child_frame_id=self._base)
        message.header.stamp, message.header.frame_id = now.to_msg(), self._odom
        message.pose.pose.position.x, message.pose.pose.position.y = state.x, state.y
        message.pose.pose.orientation = _about_z(state.yaw)
        twist = message.twist.twist
        twist.linear.x, twist.linear.y, twist.angular.z = state.vx, state.vy, state.wz
        self._odometry.publish(message)
        if self._transforms is not None:
            moving = _transform(self._odom, self._base, now, state.x, state.y, 0.0)
            moving.transform.rotation = message.pose.pose.orientation
            self._transforms.publish(self._tf_message(transforms=[moving]))

    def publish_outcome(self, world: World) -> None:
        """The state of the task, as JSON (``task_state``)."""
        state = task_state(self._room, world.pose, world.velocity, self._touching, self._contacts)
        self._outcome.publish(String(data=json.dumps({"time": round(world.time, 3), **state})))

    def publish_markers(self, now: Time) -> None:
        """The room and the path so far; repeated for an RViz that starts late."""
        markers = room_markers(self._room, self._odom, now)
        markers.append(path_marker(self._room, self._path, self._odom, now))
        self._markers.publish(MarkerArray(markers=markers))


def task_state(
    room: Room, pose: Pose, velocity: tuple[float, float, float], touching: bool, contacts: int
) -> dict[str, str | float | bool | int]:
    """The state of the task: metres from the camera, degrees to the left, the pose in the room.

    ``at`` is the thing within reach and ahead, ``facing`` whether that is the target,
    ``standing`` whether the base stands still; ``success`` is both. Whether the robot decided to
    stop is not known here.
    """
    eye, target = eye_at(pose), room.thing(room.target)
    at = thing_in_front(room, pose)
    still = all(abs(value) < STILL for value in velocity)
    return {
        "seed": room.seed,
        "target": room.target,
        "distance": round(target.distance(eye.x, eye.y), 3),
        "bearing": round(math.degrees(target.bearing(eye.x, eye.y, eye.yaw)), 1),
        "reach": REACH,
        "at": at,
        "facing": at == room.target,
        "standing": still,
        "success": still and at == room.target,
        "in_contact": touching,
        "contacts": contacts,
        "x": round(pose.x, 3),
        "y": round(pose.y, 3),
        "yaw": round(pose.yaw, 4),
    }


def camera_info(size: int) -> CameraInfo:
    """An ideal pinhole of ``size`` x ``size`` pixels."""
    focal, middle = size / 2 / math.tan(FIELD_OF_VIEW / 2), size / 2
    info = CameraInfo(width=size, height=size, distortion_model="plumb_bob", d=[0.0] * 5)
    info.k = [focal, 0.0, middle, 0.0, focal, middle, 0.0, 0.0, 1.0]
    info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    info.p = [focal, 0.0, middle, 0.0, 0.0, focal, middle, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


def camera_transform(base: str, camera: str, now: Time) -> TransformStamped:
    """Where the camera is on the base; config/go2.urdf says the same."""
    fixed = _transform(base, camera, now, FORWARD, 0.0, HEIGHT)
    fixed.transform.rotation = OPTICAL
    return fixed


def _about_z(yaw: float) -> Quaternion:
    return Quaternion(z=math.sin(yaw / 2), w=math.cos(yaw / 2))


def _transform(
    parent: str, child: str, now: Time, x: float, y: float, z: float
) -> TransformStamped:
    transform = TransformStamped(child_frame_id=child)
    transform.header.stamp, transform.header.frame_id = now.to_msg(), parent
    place = transform.transform.translation
    place.x, place.y, place.z = x, y, z
    return transform
