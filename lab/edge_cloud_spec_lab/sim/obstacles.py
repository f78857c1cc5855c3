"""Obstacles in a robot's way: a pillar as wide as a person, and walking people."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from edge_cloud_spec.errors import UserError

from .go2_sim import go2_sim
from .room import Room
from .thing import Part, Thing

OBSTACLES = FREE, PILLAR, PERSON = "free", "pillar", "person"
"""What a way may have in it: nothing, a pillar half-way, somebody who walks to and fro across."""

HALF_WAY = 0.5  # of the way to the target
_CLEARANCE = 0.28  # m from a person's middle to all that stands there
_ATTEMPTS = 400  # ways that are drawn for a person
_APART = 0.8  # m from the robot's start to where a person starts: it reaches 0.6 m, or nearly
_STRETCH = (0.4, 2.0)  # m that a way goes to either side of the robot's


def with_pillar(room: Room, share: float) -> Room:
    """The room with a pillar at this share of the straight line from the start to the target."""
    x, y = _on_the_way(room, share)
    part = Part("cylinder", (0.14, 0.85), (0, 0, 0.85), (0.35, 0.37, 0.42))
    pillar = Thing("pillar", x, y, 0.0, (0.14, 0.14), True, (part,))
    return replace(room, furniture=(*room.furniture, pillar))


def people_in(room: Room, count: int) -> Any:
    """dim-go2-sim's People, who walk back and forth across the robot's way; None: nobody.

    Each waits while the robot is in their way. UserError if the room is too full for them.
    """
    if not count:
        return None
    settings = go2_sim("config").PeopleConfig(count=count)
    rng = np.random.default_rng((room.seed, 0x9E0))
    ways = [_way(room, rng) for _ in range(count)]
    return go2_sim("people").People(ways, settings, (room.start.x, room.start.y))


def place_people(people: Any, data: Any) -> None:
    """Move the people's bodies in a simulation to their current places."""
    for i, (x, y, yaw) in enumerate(people.poses()):
        data.mocap_pos[i] = (x, y, 0.0)
        data.mocap_quat[i] = (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))


def _on_the_way(room: Room, share: float) -> tuple[float, float]:
    target, start = room.thing(room.target), room.start
    return start.x + share * (target.x - start.x), start.y + share * (target.y - start.y)


def _way(room: Room, rng: np.random.Generator) -> np.ndarray:
    """Both ends [2, 2] of a straight path across the robot's, clear of walls and things.

    A person starts at the first end, which is not where the robot stands.
    """
    ahead, left = np.subtract(_on_the_way(room, 1.0), _on_the_way(room, 0.0))
    for _ in range(_ATTEMPTS):
        middle = _on_the_way(room, rng.uniform(0.2, 0.8))
        angle = math.atan2(ahead, -left) + rng.uniform(-0.9, 0.9)
        lengths = np.array([[-1.0], [1.0]]) * rng.uniform(*_STRETCH, (2, 1))
        ends = middle + lengths * (math.cos(angle), math.sin(angle))
        apart = np.hypot(*(ends - _on_the_way(room, 0.0)).T) >= _APART
        ends = ends if apart[0] else ends[::-1]
        if apart.any() and all(_is_clear(room, *at) for at in np.linspace(ends[0], ends[1], 30)):
            return np.asarray(ends)
    raise UserError(f"room {room.seed} has no way for people across the robot's: give another seed")


def _is_clear(room: Room, x: float, y: float) -> bool:
    wide, deep = (side / 2 - _CLEARANCE for side in room.size)
    free = (t.distance(x, y) > _CLEARANCE for t in (*room.things, *room.furniture))
    return abs(x) < wide and abs(y) < deep and all(free)
