"""A flat by seed: rooms along a hallway, an instruction that needs memory, and who fulfils it.

It is a ``Room`` like any other to physics and renderers: inner walls are furniture, floors are
decoration, doorways are things, so that a segmentation tells which of them are in view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from edge_cloud_spec.nav.pose import Pose, wrap

from .camera import Eye
from .kinds import FURNITURE, THING_KINDS, build, furnish
from .reach import faces
from .room import PHRASINGS, THINGS_APART_M, Room, decorate, light_of, pale
from .scene import WALL_HEIGHT
from .thing import Part, Rgb, Thing, VisibleThing, as_rgb
from .view import visible_parts
from .ways import Ways

HALLWAY = 0
"""Index of the hallway among a flat's areas."""

DOORWAY = "doorway"
"""The name of doorways among a room's things; nobody asks for it as for a thing."""

INSTRUCTION_FAMILIES = FIND_FAMILY, THEN_FAMILY, BACK_FAMILY, TURN_FAMILY, DOOR_FAMILY = (
    "find",
    "then",
    "back",
    "turn",
    "door",
)
"""What an instruction asks for: a thing, one and then another, one and then back to another, a turn
at the hallway, a door by its number."""

ORDINALS = ("first", "second", "third")
ASKED = tuple(kind for kind in THING_KINDS if not kind.endswith("door"))
"""The things of flats: a closed door among doorways would be a riddle."""

TURNED_RAD = math.radians(30)
"""How far a robot that turned at the hallway may head beside it."""

_SHARES = (0.34, 0.2, 0.2, 0.1, 0.16)  # of the families
_ROOMS = (0.35, 0.35, 0.2, 0.1)  # of two to five rooms
_THICK = 0.05  # half a wall, m
_SPACING = 1.5  # m along the hallway between doorways: nearer ones are not seen from each other
_DOOR_HEIGHT, _POST = 2.0, 0.05
_FRAMES: Rgb = (0.05, 0.62, 0.60)  # turquoise, which no thing is: a frame is told from a wall
_HALLWAY_FLOOR: Rgb = (0.36, 0.24, 0.44)  # so that a picture tells the hallway from a room


@dataclass(frozen=True)
class Area:
    """A rectangle of the floor between walls, m."""

    west: float
    south: float
    east: float
    north: float

    def contains(self, x: float, y: float, margin: float = 0.0) -> bool:
        """Whether (x, y) is in it, ``margin`` metres off the walls."""
        inside = self.west + margin <= x <= self.east - margin
        return inside and self.south + margin <= y <= self.north - margin

    @property
    def size(self) -> tuple[float, float]:
        """Metres from west to east and from south to north."""
        return self.east - self.west, self.north - self.south

    @property
    def middle(self) -> tuple[float, float]:
        """Its middle."""
        return (self.west + self.east) / 2, (self.south + self.north) / 2


@dataclass(frozen=True)
class Doorway:
    """The opening between the hallway and a room, which is to the north (1) or south (-1)."""

    area: int
    x: float
    y: float
    side: int

    def at(self, depth: float) -> tuple[float, float]:
        """The point so many metres inside the room; negative: in the hallway."""
        return self.x, self.y + self.side * depth


@dataclass(frozen=True)
class Destination:
    """To stand at a thing and face it, in an area, or in the hallway with this heading (rad)."""

    thing: str = ""
    area: int = HALLWAY
    yaw: float | None = None


@dataclass(frozen=True)
class Flat:
    """A flat of ``areas``, the hallway first, with ``doorways[i]`` to area ``i + 1``.

    The last of the ``goals`` is where to stop; the others are to be visited before, in turn.
    """

    room: Room
    areas: tuple[Area, ...]
    doorways: tuple[Doorway, ...]
    family: str
    goals: tuple[Destination, ...]

    @cached_property
    def ways(self) -> Ways:
        """Where its robot fits."""
        solid = [*self.room.things, *self.room.furniture]
        frames = [thing for thing in solid if thing.name == DOORWAY]
        posts = [post for frame in frames for post in _posts(frame)]
        return Ways(self.room.size, [*(t for t in solid if t.name != DOORWAY), *posts])

    def area_at(self, x: float, y: float) -> int:
        """The index of the area around (x, y); a doorway belongs to the hallway."""
        rooms = (i for i, area in enumerate(self.areas) if i and area.contains(x, y))
        return next(rooms, HALLWAY)

    def area_of(self, goal: Destination) -> int:
        """The index of the area in which the goal is."""
        if not goal.thing:
            return goal.area
        thing = self.room.thing(goal.thing)
        return self.area_at(thing.x, thing.y)

    def reached(self, goal: Destination, pose: Pose) -> bool:
        """Whether a robot that stands at ``pose`` is there: at a thing as ``thing_in_front``."""
        if goal.thing:
            thing = self.room.thing(goal.thing)
            there = self.areas[self.area_of(goal)].contains(pose.x, pose.y, -0.4)
            return there and faces(thing, pose)
        inside = self.areas[goal.area].contains(pose.x, pose.y, 0.1)
        return inside and (goal.yaw is None or abs(wrap(pose.yaw - goal.yaw)) <= TURNED_RAD)

    def field(self, goal: Destination) -> np.ndarray:
        """Metres from each cell of ``ways`` to the nearest place at the goal."""
        x, y = self.ways.points[..., 0], self.ways.points[..., 1]
        area, off = self.areas[self.area_of(goal)], 0.0 if goal.thing else 0.3
        there = (area.west + off < x) & (x < area.east - off)
        there &= (area.south + off < y) & (y < area.north - off)
        if goal.thing:
            there &= self.ways.distances(self.room.thing(goal.thing)) <= 1.1
        return self.ways.field(there)

    @cached_property
    def shortest(self) -> float:
        """Metres of the shortest way from the start through all goals."""
        place, metres = (self.room.start.x, self.room.start.y), 0.0
        for goal in self.goals:
            way = self.ways.way(self.field(goal), place)
            metres += sum(math.dist(a, b) for a, b in pairwise(way))
            place = way[-1]
        return metres


@dataclass(frozen=True)
class FlatJudgement:
    """How a mission ended; ``spl`` is success weighted by path length (arXiv 1807.06757)."""

    success: bool
    walked: float
    shortest: float

    @property
    def spl(self) -> float:
        """1 for a success on the shortest way, 0 for none."""
        longer = max(self.walked, self.shortest)
        return self.success * (self.shortest / longer if longer else 1.0)


def judge(flat: Flat, poses: list[Pose], stopped: bool) -> FlatJudgement:
    """The judgement of a robot that went through ``poses`` and stopped at the last one, or not."""
    walked = sum(math.hypot(b.x - a.x, b.y - a.y) for a, b in pairwise(poses))
    left = list(flat.goals[:-1])
    for pose in poses:
        if left and flat.reached(left[0], pose):
            del left[0]
    success = stopped and not left and flat.reached(flat.goals[-1], poses[-1])
    return FlatJudgement(success, walked, flat.shortest)


@dataclass(frozen=True)
class Sight:
    """What a picture shows, and the pose at which it was taken.

    ``doorways`` by their index; the distance of each is to its middle.
    """

    pose: Pose
    things: tuple[VisibleThing, ...]
    doorways: dict[int, VisibleThing]


def sight_of(flat: Flat, pose: Pose, eye: Eye, segmentation: np.ndarray) -> Sight:
    """What is in a segmentation int [n, n], indices into ``flat.room.things``, or -1."""
    first = len(flat.room.things) - len(flat.doorways)
    seen = visible_parts(flat.room.things, eye, segmentation)
    doorways = {
        i: replace(seen[first + i], distance=math.dist((eye.x, eye.y), door.at(0.0)))
        for i, door in enumerate(flat.doorways)
        if first + i in seen
    }
    things = tuple(part for part in seen.values() if part.name in THING_KINDS)
    return Sight(pose, things, doorways)


def make_flat(seed: int, family: str | None = None) -> Flat:
    """The flat of a seed, always the same; ``family``: instead of its own, one of
    INSTRUCTION_FAMILIES."""
    rng = np.random.default_rng((seed, 0xF1A7))
    drawn, rooms = (
        str(rng.choice(INSTRUCTION_FAMILIES, p=_SHARES)),
        2 + int(rng.choice(4, p=_ROOMS)),
    )
    for _ in range(10_000):
        flat = _try_flat(seed, rng, family or drawn, rooms)
        if flat is not None:
            return flat
    raise RuntimeError(f"no flat could be made from seed {seed}")


def _try_flat(seed: int, rng: np.random.Generator, family: str, rooms: int) -> Flat | None:
    areas, size = _areas(rooms, rng)
    doorways = _doorways(areas, rng)
    if not doorways:
        return None
    wall = pale(rng, 0.5, 0.92, 0.09)
    frame = toned(_FRAMES, rng)
    frames = [_frame(door, float(rng.uniform(0.52, 0.58)), frame) for door in doorways]
    walls = _walls(areas, size, frames, wall)
    things, furniture, decoration = _contents(areas, doorways, rng)
    goals = _goals(family, areas, doorways, things, rng)
    if goals is None:
        return None
    start, instruction, goals_in_turn = goals
    room = Room(
        seed=seed,
        target=goals_in_turn[-1].thing,
        instruction=instruction,
        things=(*things, *frames),
        furniture=(*walls, *furniture),
        decoration=tuple(decoration),
        size=size,
        start=start,
        light=light_of(size, rng),
        wall=wall,
        floor=toned(_HALLWAY_FLOOR, rng),
        sky=pale(rng, 0.7, 0.95, 0.03),
    )
    flat = Flat(room, areas, doorways, family, goals_in_turn)
    return flat if _is_fair(flat) else None


def _is_fair(flat: Flat) -> bool:
    """Whether the robot gets everywhere, and does not begin where it is to go."""
    ways, start = flat.ways, flat.room.start
    here = ways.cell(start.x, start.y)
    if not ways.free[here] or ways.gap[here] < 0.38 or flat.reached(flat.goals[0], start):
        return False
    ends = [door.at(depth) for door in flat.doorways for depth in (-0.45, 0.6)]
    from_start = ways.field(ways.at(start.x, start.y))
    if not all(math.isfinite(from_start[ways.cell(*end)]) for end in ends):
        return False
    return all(np.isfinite(flat.field(goal)[here]) for goal in flat.goals)


def _areas(count: int, rng: np.random.Generator) -> tuple[tuple[Area, ...], tuple[float, float]]:
    """The hallway from west to east, the rooms to its north and south, and the flat's size."""
    north = int(np.clip(rng.integers(count + 1), count - 3, 3))
    sides = [
        [float(rng.uniform(2.6, 4.0 if n < 3 else 3.4)) for _ in range(n)]
        for n in (north, count - north)
    ]
    length = max(3.6, *(sum(widths) for widths in sides))
    depths = [float(rng.uniform(2.5, 3.6)) if widths else 0.0 for widths in sides]
    wide = float(rng.uniform(1.4, 1.8))
    size = (length, depths[0] + wide + depths[1])
    south = depths[1] - size[1] / 2
    areas = [Area(-length / 2, south, length / 2, south + wide)]
    for widths, low, high in (
        (sides[0], south + wide, size[1] / 2),
        (sides[1], -size[1] / 2, south),
    ):
        west = -length / 2
        for width in widths:
            areas.append(Area(west, low, west + width, high))
            west += width
    return tuple(areas), size


def _doorways(areas: tuple[Area, ...], rng: np.random.Generator) -> tuple[Doorway, ...]:
    """One of each room, _SPACING apart along the hallway; none where they do not fit."""
    hallway = areas[HALLWAY]
    for _ in range(50):
        along = [float(rng.uniform(area.west + 0.7, area.east - 0.7)) for area in areas[1:]]
        if np.diff(np.sort(along)).min() >= _SPACING:
            return tuple(
                Doorway(i, x, hallway.north, 1)
                if areas[i].south >= hallway.north
                else Doorway(i, x, hallway.south, -1)
                for i, x in enumerate(along, 1)
            )
    return ()


def toned(rgb: Rgb, rng: np.random.Generator) -> Rgb:
    """The colour as one flat has it: a little lighter or darker, a little off in hue."""
    values = np.array(rgb) * rng.uniform(0.8, 1.2) + rng.uniform(-0.04, 0.04, 3)
    return as_rgb(np.clip(values, 0.02, 0.98))


def _frame(door: Doorway, half: float, rgb: Rgb) -> Thing:
    """What is seen of a doorway: two posts, a lintel, and a sill on the floor."""
    deep, post, h = _THICK + 0.03, _POST, _DOOR_HEIGHT
    parts = (
        Part("box", (deep, post, h / 2), (0, half, h / 2), rgb),
        Part("box", (deep, post, h / 2), (0, -half, h / 2), rgb),
        Part("box", (deep, half + post, post), (0, 0, h), rgb, solid=False),
        Part("box", (_THICK + 0.06, half, 0.006), (0, 0, 0.006), rgb, solid=False),
    )
    yaw = door.side * math.pi / 2
    return Thing(DOORWAY, door.x, door.y, yaw, (deep, half + post), False, parts)


def _posts(frame: Thing) -> list[Thing]:
    """What is solid of a doorway, which is not what lies between."""
    half = (_POST, frame.half[0])
    offs = frame.half[1] - _POST
    return [
        Thing("post", frame.x + s * offs, frame.y, 0.0, half, False, frame.parts) for s in (-1, 1)
    ]


def _wall(x: float, y: float, a: float, b: float, rgb: Rgb) -> Thing:
    """A wall of half sides (a, b)."""
    part = Part("box", (a, b, WALL_HEIGHT / 2), (0, 0, WALL_HEIGHT / 2), rgb)
    return Thing("wall", x, y, 0.0, (a, b), False, (part,))


def _walls(
    areas: tuple[Area, ...], size: tuple[float, float], frames: list[Thing], rgb: Rgb
) -> list[Thing]:
    """Between the areas; each wall of the hallway ends at every doorway in it."""
    hallway, walls = areas[HALLWAY], []
    for y in (hallway.north, hallway.south):
        if abs(y) > size[1] / 2 - 0.1:
            continue
        openings = sorted((f.x, f.half[1]) for f in frames if f.y == y)
        edges = [hallway.west, *(x + s * half for x, half in openings for s in (-1, 1))]
        edges.append(hallway.east)
        for west, east in zip(edges[::2], edges[1::2], strict=True):
            walls.append(_wall((west + east) / 2, y, (east - west) / 2, _THICK, rgb))
    for area in areas[1:]:
        (_, y), half = area.middle, area.size[1] / 2
        if area.east < hallway.east - 0.1:
            walls.append(_wall(area.east, y, _THICK, half, rgb))
    return walls


def _contents(
    areas: tuple[Area, ...], doorways: tuple[Doorway, ...], rng: np.random.Generator
) -> tuple[list[Thing], list[Thing], list[Thing]]:
    """Things, furniture and decoration: each room has its own floor, and one or two things."""
    things: list[Thing] = []
    furniture: list[Thing] = []
    decoration: list[Thing] = []
    names = [str(name) for name in rng.permutation(ASKED)]
    for area, door in zip(areas[1:], doorways, strict=True):
        (x, y), (w, d) = area.middle, area.size
        tone = pale(rng, 0.22, 0.75, 0.12)
        floor = Part("box", (w / 2, d / 2, 0.001), (0, 0, 0.001), tone, solid=False)
        decoration.append(Thing("floor", x, y, 0.0, (w / 2, d / 2), False, (floor,)))
        for piece in decorate((w - 0.1, d - 0.1), [], rng):
            placed = replace(piece, x=piece.x + x, y=piece.y + y)
            by_door = math.dist((placed.x, placed.y), (door.x, door.y)) < 1.2
            inside = piece.name != "rug" or max(piece.half) < min(w, d) / 2 - abs(piece.x + piece.y)
            if piece.name != "skirting" and inside and not by_door:
                decoration.append(placed)
        for _ in range(int(rng.integers(1, 3))):
            for _ in range(20 if names else 0):
                spot = (rng.uniform(-1, 1) * (w / 2 - 0.4), rng.uniform(-1, 1) * (d / 2 - 0.4))
                yaw = float(rng.uniform(-math.pi, math.pi))
                thing = build(names[-1], rng, x + float(spot[0]), y + float(spot[1]), yaw)
                off_wall = abs(thing.y - door.y) > 0.8  # else it is not seen from the door
                if off_wall and _fits(thing, area, door, [*things, *furniture], THINGS_APART_M):
                    things.append(thing)
                    names.pop()
                    break
        for _ in range(int(rng.integers(0, 3))):
            side = int(rng.integers(4))
            yaw, share = (side + 2) * math.pi / 2, float(rng.uniform(-0.8, 0.8))
            at = [
                (x + w / 2 - _THICK, y + share * d / 2),
                (x + share * w / 2, y + d / 2 - _THICK),
                (x - w / 2 + _THICK, y + share * d / 2),
                (x + share * w / 2, y - d / 2 + _THICK),
            ][side]
            piece = furnish(FURNITURE[rng.integers(len(FURNITURE))], rng, *at, yaw)
            if _fits(piece, area, door, [*things, *furniture], 0.75):
                furniture.append(piece)
    return things, furniture, decoration


def _fits(thing: Thing, area: Area, door: Doorway, others: list[Thing], gap: float) -> bool:
    points = thing.outline()
    if not all(area.contains(px, py, _THICK - 1e-6) for px, py in points):
        return False
    if np.hypot(*(points - door.at(0.3)).T).min() < 0.75:
        return False
    return all(other.distance(px, py) >= gap for other in others for px, py in points)


Task = tuple[Pose, str, tuple[Destination, ...]]


def _goals(
    family: str,
    areas: tuple[Area, ...],
    doorways: tuple[Doorway, ...],
    things: list[Thing],
    rng: np.random.Generator,
) -> Task | None:
    """Start, instruction and goals; None where this flat has none of the family."""
    inside = {
        i: [t.name for t in things if areas[i].contains(t.x, t.y)] for i in range(1, len(areas))
    }
    in_hallway = family == DOOR_FAMILY or (
        family in (FIND_FAMILY, THEN_FAMILY) and rng.random() < 0.25
    )
    eastward = bool(rng.random() < 0.5)
    if in_hallway:
        hallway, forward = areas[HALLWAY], 1 if eastward else -1
        x = hallway.west + 0.5 if eastward else hallway.east - 0.5
        yaw = (0.0 if eastward else math.pi) + float(rng.normal(0, 0.06))
        start, home = Pose(x, hallway.middle[1] + float(rng.uniform(-0.1, 0.1)), wrap(yaw)), HALLWAY
    else:
        home = int(rng.integers(1, len(areas)))
        (x, y), (w, d) = areas[home].middle, areas[home].size
        spread = rng.uniform(-1, 1, 2) * (w / 2 - 0.5, d / 2 - 0.5)
        turn = float(rng.uniform(-math.pi, math.pi))
        start = Pose(x + float(spread[0]), y + float(spread[1]), turn)
    if family == TURN_FAMILY:
        side = "left" if rng.random() < 0.5 else "right"
        out = -doorways[home - 1].side * math.pi / 2
        yaw = wrap(out + (math.pi / 2 if side == "left" else -math.pi / 2))
        return start, f"turn {side} at the hallway", (Destination(yaw=yaw),)
    if family == DOOR_FAMILY:
        side = "left" if rng.random() < 0.5 else "right"
        north = (side == "left") == eastward
        doors = sorted(
            (forward * (d.x - start.x), d.area) for d in doorways if (d.side > 0) == north
        )
        if not doors or doors[0][0] < 1.2:
            return None
        number = int(rng.integers(len(doors)))
        words = f"go through the {ORDINALS[number]} door on the {side}"
        return start, words, (Destination(area=doors[number][1]),)
    here = inside.get(home, [])
    away = [name for i, names in inside.items() if i != home for name in names]
    if family == BACK_FAMILY:
        near = next_doorway(doorways, doorways[home - 1], "left")
        away = inside[near.area] if near is not None else []
        if not here or not away:
            return None
        names = [str(rng.choice(away)), str(rng.choice(here))]
    elif family == THEN_FAMILY:
        if not away or len(things) < 2:
            return None
        first = str(rng.choice(away if rng.random() < 0.7 or not here else here))
        room = next(i for i, names in inside.items() if first in names)
        near = next_doorway(doorways, doorways[room - 1], "left")
        names = [*inside[room], *(inside[near.area] if near is not None else ())]
        others = [name for name in names if name != first]
        if not others:
            return None
        names = [first, str(rng.choice(others))]
    else:
        pool = here if here and rng.random() < 0.2 else away
        if not pool:
            return None
        names = [str(rng.choice(pool))]
    goals = tuple(Destination(thing=name) for name in names)
    phrase = {
        FIND_FAMILY: PHRASINGS[rng.integers(len(PHRASINGS))],
        THEN_FAMILY: "first go to the {}, then go to the {}",
        BACK_FAMILY: "first go to the {}, then go back to the {}",
    }[family]
    return start, phrase.format(*names), goals


def doorway_ahead(doorways: Iterable[Doorway], x: float, heading: int, hand: str) -> Doorway | None:
    """The doorway to take from ``x`` on along the hallway, eastward (1) or westward (-1).

    The nearest in the wall at this hand, or the farthest in the other one; None: none is ahead.
    """
    near_wall = heading if hand == "left" else -heading
    ahead = [door for door in doorways if heading * (door.x - x) > 0.3]
    if near := [door for door in ahead if door.side == near_wall]:
        return min(near, key=lambda door: heading * door.x)
    return max(ahead, key=lambda door: heading * door.x, default=None)


def next_doorway(doorways: tuple[Doorway, ...], left: Doorway, hand: str) -> Doorway | None:
    """The doorway after ``left`` for one who follows the hallway's walls by this hand.

    Who leaves a room turns to that hand, and round where none is ahead.
    """
    # out of a room in the north one heads south: left is east
    forward = left.side if hand == "left" else -left.side
    ways = (doorway_ahead(doorways, left.x, heading, hand) for heading in (forward, -forward))
    return next((door for door in ways if door is not None), None)


def flat_of(room: Room) -> Flat:
    """A room without doorways, in which its target is to be found."""
    w, d = room.size[0] / 2, room.size[1] / 2
    return Flat(room, (Area(-w, -d, w, d),), (), FIND_FAMILY, (Destination(thing=room.target),))
