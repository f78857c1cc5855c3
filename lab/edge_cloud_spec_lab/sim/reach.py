"""Whether a robot stands at a thing, as an instruction to find it requires."""

from __future__ import annotations

import math

from .camera import Eye, eye_at
from .room import Pose, Room
from .thing import Thing

REACH_M = 1.0
"""Metres from the camera to the named thing's nearest point within which a stop is at it."""

FACING = math.radians(25)
"""How far beside the middle of the picture the thing may be at the end."""


def thing_in_front(room: Room, pose: Pose) -> str:
    """The thing in front of a robot at ``pose``: within REACH_M, within FACING of ahead; empty:
    none.

    Of several the one most nearly ahead counts; a wide one is ahead if the line ahead meets it.
    """
    eye = eye_at(pose)
    faced = [thing for thing in room.things if faces(thing, pose)]
    nearest = min(faced, key=lambda thing: _aside(thing, eye), default=None)
    return nearest.name if nearest else ""


def faces(thing: Thing, pose: Pose) -> bool:
    """Whether a robot at ``pose`` is within REACH_M of the thing, and within FACING of ahead."""
    eye = eye_at(pose)
    return thing.distance(eye.x, eye.y) <= REACH_M and _aside(thing, eye) <= FACING


def _aside(thing: Thing, eye: Eye) -> float:
    """The angle between ahead and the thing's middle (rad); 0 if the line ahead meets it within
    REACH_M."""
    for step in range(1, 51):
        ahead = step * REACH_M / 50
        x, y = eye.x + ahead * math.cos(eye.yaw), eye.y + ahead * math.sin(eye.yaw)
        if thing.distance(x, y) == 0.0:
            return 0.0
    return abs(thing.bearing(eye.x, eye.y, eye.yaw))
