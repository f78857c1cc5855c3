"""The simulated room in RViz: walls, things with their names, and the robot's path."""

from __future__ import annotations

import math
from collections.abc import Sequence

from geometry_msgs.msg import Point, Vector3
from rclpy.time import Time
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker

from ..sim.room import Pose, Room
from ..sim.thing import Part, Thing

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
