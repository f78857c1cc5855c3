"""Makes a room with furniture in the way: the robot must go around it to the target.

A room of ``make_room`` keeps the line from its start to the target clear; this one does not. It
keeps a way that is wide enough, wherever that leads.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edge_cloud_spec.nav.pose import Pose, wrap

from .kinds import LOOKALIKES, OBSTRUCTING_FURNITURE, THING_KINDS, build, furnish, person
from .room import (
    PHRASINGS,
    THINGS_APART_M,
    Room,
    Walker,
    decorate,
    first_that_fits,
    light_of,
    pale,
)
from .thing import Thing
from .ways import Ways

SIDE_M = 5.5
"""Metres of a furnished room's side."""

PIECES = (3, 6)
"""Pieces of furniture in it, at least and at most."""

WAY_M = 0.36
"""Metres at least from the middle of a way to the target to all that is solid."""

_GRID_M = 0.04  # by which a point between two cells may be nearer to what is solid than they are
_START_FREE_M, _TARGET_FREE_M = 0.75, 0.45  # metres without furniture around both
_PIECES_APART_M = 0.1
_WALK_M, _WALKER_CLEAR_M, _WALKER_START_M = 1.0, 0.25, 1.2  # least length; metres around people
_WALKING_SPEED = (0.4, 0.8)  # m/s
AT_TARGET_M = 0.7
"""Metres from the target's nearest point at which a way to it may end."""


def make_furnished(seed: int, target: str | None = None, people: int = 0) -> Room:
    """The furnished room of a seed, always the same; ``target``: the thing to find, by default the
    seed's; ``people``: how many walk in it.

    ValueError: an unknown thing, or a negative seed.
    """
    room, rng = first_that_fits(_try_furnished, seed, target, 0xF02)
    return replace(room, walkers=tuple(_walker(room, rng) for _ in range(people)))


def _try_furnished(seed: int, rng: np.random.Generator, wanted: str | None) -> Room | None:
    size, half = (SIDE_M, SIDE_M), SIDE_M / 2
    drawn = THING_KINDS[rng.integers(len(THING_KINDS))]
    name = wanted or drawn
    x, y = -half + 0.9, float(rng.uniform(-1.8, 1.8))
    target = _target(name, rng)
    toward = math.atan2(target.y - y, target.x - x)
    start = Pose(x, y, wrap(toward + float(rng.uniform(-0.5, 0.5))))
    things = [target]
    furniture: list[Thing] = []
    likeness = LOOKALIKES[name][int(rng.integers(len(LOOKALIKES[name])))]
    others = [kind for kind in THING_KINDS if kind not in (name, likeness)]
    more = [str(kind) for kind in rng.permutation(others)[: rng.integers(0, 3)]]
    for other in (likeness, *more):
        for _ in range(20):
            thing = build(other, rng, *_spot(other, rng))
            if _fits(thing, start, target, [*things], THINGS_APART_M):
                things.append(thing)
                break
    for _ in range(rng.integers(PIECES[0], PIECES[1] + 1)):
        kind = OBSTRUCTING_FURNITURE[rng.integers(len(OBSTRUCTING_FURNITURE))]
        for _ in range(20):
            x, y, yaw = (float(v) for v in rng.uniform((-1.9, -2.4, -math.pi), (1.9, 2.4, math.pi)))
            piece = furnish(kind, rng, x, y, yaw)
            if _fits(piece, start, target, [*things, *furniture], _PIECES_APART_M):
                furniture.append(piece)
                break
    if len(furniture) < PIECES[0]:
        return None
    room = Room(
        seed=seed,
        target=name,
        instruction=PHRASINGS[rng.integers(len(PHRASINGS))].format(name),
        things=tuple(things),
        furniture=tuple(furniture),
        decoration=decorate(size, things, rng),
        size=size,
        start=start,
        light=light_of(size, rng),
        wall=pale(rng, 0.5, 0.92, 0.09),
        floor=pale(rng, 0.22, 0.75, 0.07),
        sky=pale(rng, 0.7, 0.95, 0.03),
    )
    ways = Ways(size, [*things[1:], *furniture], WAY_M + _GRID_M)
    way = ways.field(ways.distances(target) <= AT_TARGET_M)
    return room if math.isfinite(way[ways.cell(start.x, start.y)]) else None


def _target(name: str, rng: np.random.Generator) -> Thing:
    """The thing to find, near to the wall that is far from the start; a door is in that wall."""
    half, y = SIDE_M / 2, float(rng.uniform(-2.0, 2.0))
    if name.endswith("door"):
        return build(name, rng, half - 0.03, y, math.pi)
    return build(name, rng, half - 0.5, y, float(rng.uniform(-math.pi, math.pi)))


def _spot(name: str, rng: np.random.Generator) -> tuple[float, float, float]:
    half, along = SIDE_M / 2, float(rng.uniform(-2.0, 2.0))
    if name.endswith("door"):
        side = int(rng.choice([-1, 1]))
        return along, side * (half - 0.03), -side * math.pi / 2
    return along, float(rng.uniform(-2.3, 2.3)), float(rng.uniform(-math.pi, math.pi))


def _fits(thing: Thing, start: Pose, target: Thing, others: list[Thing], apart: float) -> bool:
    """Whether it stands in the room, away from start and target, and ``apart`` from others (m)."""
    points = thing.outline()
    if np.abs(points).max() > SIDE_M / 2 or thing.distance(start.x, start.y) < _START_FREE_M:
        return False
    if min(target.distance(*point) for point in points) < _TARGET_FREE_M:
        return False
    # from either side: a small one may stand within the other's outline
    near = [min(o.distance(*point) for point in points) for o in others]
    inside = [min(thing.distance(*point) for point in o.outline()) for o in others]
    return min([*near, *inside], default=apart) >= apart


def _walker(room: Room, rng: np.random.Generator) -> Walker:
    """Somebody who walks on a straight line that is clear of all that stands there."""
    half = SIDE_M / 2 - _WALKER_CLEAR_M
    solid = (*room.things, *room.furniture)
    for _ in range(2000):
        ends = rng.uniform(-half, half, (2, 2))
        line = np.linspace(ends[0], ends[1], 40)
        long = math.dist(ends[0], ends[1]) >= _WALK_M
        away = math.dist(ends[0], (room.start.x, room.start.y)) >= _WALKER_START_M
        if long and away and all(t.distance(*at) > _WALKER_CLEAR_M for t in solid for at in line):
            yaw = math.atan2(*(ends[1] - ends[0])[::-1])
            shape = person(rng, float(ends[0, 0]), float(ends[0, 1]), yaw)
            to = float(ends[1, 0]), float(ends[1, 1])
            return Walker(shape, to, float(rng.uniform(*_WALKING_SPEED)))
    raise RuntimeError(f"furnished room {room.seed} has no way for people")
