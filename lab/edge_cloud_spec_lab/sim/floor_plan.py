"""Draws the room from above with the robot's path, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from .room import Pose, Room
from .thing import Part, Rgb, Thing

_WIDTH_PX, _MARGIN_PX = 640, 24
_LINE_RGB = (40, 40, 46)
_PLAN_PATH_RGB = (214, 60, 40)


def draw_plan(room: Room, path: Sequence[Pose], stops: Sequence[Pose]) -> np.ndarray:
    """The plan uint8 [H, 640, 3]: x to the right, y up; ``stops`` are marked as decisions.

    The path begins at a ring and ends at an arrow; a dashed circle marks 1 m around the named
    thing.
    """
    return _FloorPlan(room).draw(path, stops)


class _FloorPlan:
    def __init__(self, room: Room) -> None:
        self.room = room
        self.scale = (_WIDTH_PX - 2 * _MARGIN_PX) / room.size[0]
        height = round(room.size[1] * self.scale) + 2 * _MARGIN_PX
        self.image = Image.new("RGB", (_WIDTH_PX, height), (250, 250, 248))
        self.pen = ImageDraw.Draw(self.image)

    def draw(self, path: Sequence[Pose], stops: Sequence[Pose]) -> np.ndarray:
        w, d = self.room.size[0] / 2, self.room.size[1] / 2
        self.pen.rectangle([self._at(-w, d), self._at(w, -d)], fill=_ink(self.room.floor, 0.5))
        self.pen.rectangle([self._at(-w, d), self._at(w, -d)], outline=_LINE_RGB, width=4)
        for piece in (*self.room.furniture, *self.room.things):
            self._thing(piece)
        for thing in self.room.things:
            if thing.name == self.room.target:
                self._reach(thing)
        for thing in self.room.things:
            self._name(thing)
        self._path(path, stops)
        return np.array(self.image)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        w, d = self.room.size[0] / 2, self.room.size[1] / 2
        return _MARGIN_PX + (x + w) * self.scale, _MARGIN_PX + (d - y) * self.scale

    def _thing(self, thing: Thing) -> None:
        for part in sorted(thing.parts, key=lambda p: p.at[2] + p.size[-1]):
            a, b = _footprint(part)
            corners = [(-a, -b), (a, -b), (a, b), (-a, b)]
            if part.shape != "box":
                turn = np.linspace(0, 2 * math.pi, 20, endpoint=False)
                corners = [(a * math.cos(t), a * math.sin(t)) for t in turn]
            cos, sin = math.cos(thing.yaw), math.sin(thing.yaw)
            points = [(x + part.at[0], y + part.at[1]) for x, y in corners]
            outline = [
                self._at(thing.x + cos * x - sin * y, thing.y + sin * x + cos * y)
                for x, y in points
            ]
            self.pen.polygon(outline, fill=_ink(part.rgb), outline=_LINE_RGB)

    def _name(self, thing: Thing) -> None:
        bold = thing.name == self.room.target
        x, y = self._at(thing.x, thing.y)
        box = self.pen.textbbox((0, 0), thing.name)
        x = min(max(x + 12, 6), self.image.width - box[2] - 8)
        y = min(max(y - 20, 6), self.image.height - 18)
        area = [x - 3, y - 1, x + box[2] + 3, y + box[3] + 3]
        self.pen.rectangle(
            area, fill=(255, 240, 150) if bold else (255, 255, 255), outline=_LINE_RGB
        )
        self.pen.text((x, y), thing.name, fill=_LINE_RGB)

    def _reach(self, thing: Thing) -> None:
        x, y = self._at(thing.x, thing.y)
        r = (1.0 + thing.half[0]) * self.scale
        for start in range(0, 360, 12):
            self.pen.arc([x - r, y - r, x + r, y + r], start, start + 6, fill=_LINE_RGB)

    def _path(self, path: Sequence[Pose], stops: Sequence[Pose]) -> None:
        points = [self._at(p.x, p.y) for p in path]
        if len(points) > 1:
            self.pen.line(points, fill=_PLAN_PATH_RGB, width=3, joint="curve")
        for stop in stops:
            x, y = self._at(stop.x, stop.y)
            self.pen.ellipse([x - 3, y - 3, x + 3, y + 3], fill=_PLAN_PATH_RGB)
        if not points:
            return
        x, y = points[0]
        self.pen.ellipse([x - 6, y - 6, x + 6, y + 6], outline=_PLAN_PATH_RGB, width=3)
        last = path[-1]
        arrow = [
            self._at(
                last.x + size * math.cos(last.yaw + turn),
                last.y + size * math.sin(last.yaw + turn),
            )
            for size, turn in ((0.32, 0.0), (0.2, 2.5), (0.08, math.pi), (0.2, -2.5))
        ]
        self.pen.polygon(arrow, fill=_PLAN_PATH_RGB, outline=_LINE_RGB)


def _footprint(part: Part) -> tuple[float, float]:
    return (part.size[0], part.size[1]) if part.shape == "box" else (part.size[0], part.size[0])


def _ink(rgb: Rgb, toward_white: float = 0.0) -> tuple[int, int, int]:
    red, green, blue = (round(255 * (v + (1 - v) * toward_white)) for v in rgb)
    return red, green, blue
