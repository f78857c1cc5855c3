"""The map: the robot, its path, what it is doing, and the simulated room, seen from above.

In the picture ahead of where the robot started is up, and its left is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import rerun as rr

from ..observe.annotated_picture import COLOURS, GREY
from .entity import Entity

ROOT = "map"
ROBOT, PATH, COMMAND, GOAL, ROOM = (
    f"{ROOT}/{n}" for n in ("robot", "path", "cmd_vel", "goal", "room")
)
STEP, POINTS = 0.1, 2000  # m between two points of the path, and how many of the newest are shown
PERIOD = 0.1  # s between two poses
BODY = ((0.35, 0.0), (0.2, 0.15), (-0.35, 0.15), (-0.35, -0.15), (0.2, -0.15), (0.35, 0.0))  # m
TURN_ARROW = 0.6  # m
HORIZON = 1.0  # s that a velocity's arrow shows
MOVE, TURN, SEARCH = 1, 2, 3  # actions of NavCommand
CUBE, CYLINDER, SPHERE, LINE_STRIP, TEXT = 1, 3, 2, 4, 9  # types of Marker
YELLOW, CYAN, RED = (250, 204, 90), (90, 200, 250), (214, 61, 41)

Point = tuple[float, float]


class Floor:
    """Messages to shapes on the floor, in metres."""

    def __init__(self) -> None:
        self._x = self._y = self._yaw = 0.0
        self._path: list[Point] = []
        self._next = -math.inf
        self._room: dict[str, Any] = {}
        self._handlers = {
            "odom": self._on_odometry,
            "cmd_vel": self._on_velocity,
            "nav_command": self._on_command,
            "nav_status": self._on_status,
            "markers": self._on_markers,
        }

    def on_message(self, topic: str, message: Any, now: float) -> Iterator[Entity]:
        """The shapes that a message changes; of topics that change none there are none."""
        handler = self._handlers.get(topic)
        if handler is not None:
            yield from handler(message, now)

    def _on_odometry(self, message: Any, now: float) -> Iterator[Entity]:
        place, q = message.pose.pose.position, message.pose.pose.orientation
        self._x, self._y = place.x, place.y
        self._yaw = math.atan2(2 * (q.w * q.z + q.x * q.y), 1 - 2 * (q.y * q.y + q.z * q.z))
        if now < self._next:
            return
        self._next = now + PERIOD
        outline = [self._seen(*corner) for corner in BODY]
        yield Entity(ROBOT, rr.LineStrips2D([outline], colors=[CYAN], radii=[0.03]), now)
        here = _above(self._x, self._y)
        if not self._path or math.dist(here, self._path[-1]) > STEP:
            self._path = [*self._path[-POINTS:], here]
            if len(self._path) > 1:
                yield Entity(PATH, rr.LineStrips2D([self._path], colors=[RED], radii=[0.02]), now)

    def _on_velocity(self, message: Any, now: float) -> Iterator[Entity]:
        """What the base is told just now: where it would be after a second, and its turn."""
        twist = getattr(message, "twist", message)
        ahead, left, turn = twist.linear.x, twist.linear.y, twist.angular.z
        moving = math.hypot(ahead, left) > 0.01 or abs(turn) > 0.01
        if math.hypot(ahead, left) <= 0.01:
            ahead, left = TURN_ARROW * math.cos(turn), TURN_ARROW * math.sin(turn)
        yield from self._arrow(COMMAND, (HORIZON * ahead, HORIZON * left), "", YELLOW, now, moving)

    def _on_command(self, message: Any, now: float) -> Iterator[Entity]:
        angle = message.magnitude if message.action in (TURN, SEARCH) else 0.0
        reach = message.magnitude if message.action == MOVE else TURN_ARROW
        tip = (reach * math.cos(angle), reach * math.sin(angle))
        colour = COLOURS["accepted" if message.verified else "unverified"]
        moving = message.action in (MOVE, TURN, SEARCH)
        yield from self._arrow(GOAL, tip, message.text, colour, now, moving)

    def _on_status(self, message: Any, now: float) -> Iterator[Entity]:
        if message.data.partition(" ")[0] in ("idle", "stopped"):
            yield Entity(GOAL, rr.Clear(recursive=False), now)
            yield Entity(COMMAND, rr.Clear(recursive=False), now)

    def _arrow(
        self,
        path: str,
        tip: Point,
        text: str,
        colour: tuple[int, int, int],
        now: float,
        moving: bool,
    ) -> Iterator[Entity]:
        if not moving:
            yield Entity(path, rr.Clear(recursive=False), now)
            return
        (x0, y0), (x1, y1) = self._seen(0.0, 0.0), self._seen(*tip)
        arrow = rr.Arrows2D(
            origins=[(x0, y0)],
            vectors=[(x1 - x0, y1 - y0)],
            colors=[colour],
            radii=[0.04],
            labels=[text] if text else None,
        )
        yield Entity(path, arrow, now)

    def _on_markers(self, message: Any, now: float) -> Iterator[Entity]:
        """Walls, things and names; actions are taken from nav_command, the path from odometry."""
        markers = [m for m in message.markers if m.ns in ("walls", "room", "names")]
        if not markers:
            return
        shapes = {
            "walls": _outlines(markers),
            "things": _discs(markers),
            "names": _names(markers),
        }
        for name, (key, shown) in shapes.items():
            if self._room.get(name) != key:
                self._room[name] = key
                yield Entity(f"{ROOM}/{name}", shown, now)

    def _seen(self, ahead: float, left: float) -> Point:
        """A point of the robot's own frame, in the picture."""
        cos, sin = math.cos(self._yaw), math.sin(self._yaw)
        return _above(self._x + cos * ahead - sin * left, self._y + sin * ahead + cos * left)


def _above(x: float, y: float) -> Point:
    """A point of odometry's frame (x ahead, y left) in the picture (x right, y down)."""
    return (-y, -x)


def _outlines(markers: Sequence[Any]) -> tuple[Any, Any]:
    strips, colours = [], []
    for marker in markers:
        if marker.type == LINE_STRIP:
            strips.append([_above(p.x, p.y) for p in marker.points])
        elif marker.type == CUBE:
            strips.append(_rectangle(marker))
        else:
            continue
        colours.append(_colour(marker))
    return (strips, colours), rr.LineStrips2D(strips, colors=colours, radii=[0.02])


def _rectangle(marker: Any) -> list[Point]:
    q, place, size = marker.pose.orientation, marker.pose.position, marker.scale
    yaw = 2 * math.atan2(q.z, q.w)
    corners = ((1, 1), (-1, 1), (-1, -1), (1, -1), (1, 1))
    cos, sin = math.cos(yaw), math.sin(yaw)
    points = []
    for a, b in corners:
        x, y = a * size.x / 2, b * size.y / 2
        points.append(_above(place.x + cos * x - sin * y, place.y + sin * x + cos * y))
    return points


def _discs(markers: Sequence[Any]) -> tuple[Any, Any]:
    round_ones = [m for m in markers if m.type in (CYLINDER, SPHERE)]
    places = [_above(m.pose.position.x, m.pose.position.y) for m in round_ones]
    radii = [max(m.scale.x, m.scale.y) / 2 for m in round_ones]
    colours = [_colour(m) for m in round_ones]
    return (places, radii, colours), rr.Points2D(places, radii=radii, colors=colours)


def _names(markers: Sequence[Any]) -> tuple[Any, Any]:
    texts = [m for m in markers if m.type == TEXT]
    places = [_above(m.pose.position.x, m.pose.position.y) for m in texts]
    names = [m.text for m in texts]
    colours = [_colour(m) if max(_colour(m)) > 150 else GREY for m in texts]
    shown = rr.Points2D(places, labels=names, colors=colours, radii=[0.02], show_labels=True)
    return (places, names, colours), shown


def _colour(marker: Any) -> tuple[int, int, int]:
    c = marker.color
    return (round(255 * c.r), round(255 * c.g), round(255 * c.b))
