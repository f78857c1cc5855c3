"""Makes a furnished room from a seed: the target, its look-alikes, and everything else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge_cloud_spec.nav.pose import Pose

from .kinds import FURNITURE, LOOKALIKES, THING_KINDS, build, furnish
from .thing import Part, Rgb, Thing, as_rgb


def decorate(
    size: tuple[float, float], things: list[Thing], rng: np.random.Generator
) -> tuple[Thing, ...]:
    """Rugs on the floor and pictures on the walls of a room of ``size`` metres."""
    w, d = size[0] / 2, size[1] / 2
    items = []
    if rng.random() < 0.6:
        tone = float(rng.uniform(0.2, 0.9))
        for x, y, a, b in (
            (w, 0, 0.012, d),
            (-w, 0, 0.012, d),
            (0, d, w, 0.012),
            (0, -d, w, 0.012),
        ):
            part = Part("box", (a, b, 0.05), (0, 0, 0.05), (tone, tone, tone), solid=False)
            items.append(Thing("skirting", x, y, 0.0, (a, b), False, (part,)))
    if rng.random() < 0.5:
        a, b = (float(v) for v in rng.uniform(0.5, 1.3, 2))
        colour = pale(rng, 0.25, 0.7, 0.12)
        part = Part("box", (a, b, 0.004), (0, 0, 0.004), colour, solid=False)
        x, y = (float(rng.uniform(-0.5, 0.5)) for _ in range(2))
        items.append(Thing("rug", x, y, float(rng.uniform(0, math.pi)), (a, b), False, (part,)))
    doors = [t for t in things if t.name.endswith("door")]
    for _ in range(rng.integers(0, 5)):
        side = int(rng.integers(4))
        along = float(rng.uniform(-0.8, 0.8))
        b, h = (float(v) for v in rng.uniform(0.2, 0.4, 2))
        z = float(rng.uniform(1.2, 1.7))
        x, y = ((1 - side) * w, along * d) if side % 2 == 0 else (along * w, (2 - side) * d)
        if any(door.distance(x, y) < b + 0.1 for door in doors):
            continue
        frame = Part("box", (0.02, b, h), (0, 0, z), (0.15, 0.14, 0.13), solid=False)
        sheet = Part(
            "box",
            (0.025, b - 0.04, h - 0.04),
            (0, 0, z),
            pale(rng, 0.3, 0.9, 0.2),
            solid=False,
        )
        items.append(
            Thing(
                "picture",
                x,
                y,
                (side % 2) * math.pi / 2,
                (0.025, b),
                False,
                (frame, sheet),
            )
        )
    return tuple(items)


def pale(rng: np.random.Generator, low: float, high: float, spread: float) -> Rgb:
    """A random pale colour: a tone between ``low`` and ``high``, each channel varied by
    ``spread``."""
    return as_rgb(np.clip(rng.uniform(low, high) + rng.uniform(-spread, spread, 3), 0.05, 0.97))


START_DISTANCE = (1.6, 3.4)
"""Metres from the start to the target's nearest point."""

THINGS_APART_M = 0.7
"""Metres at least between two ``things``, so that "stopped at the wrong one" has one meaning."""

CLEARANCE = 0.4
"""Metres at least from the line between start and target to anything else."""


class Layout:
    """Places things in a room; a piece that does not fit after some attempts is left out."""

    def __init__(self, size: tuple[float, float], start: Pose, rng: np.random.Generator) -> None:
        self.size, self.start, self.rng = size, start, rng
        self.things: list[Thing] = []
        self.furniture: list[Thing] = []

    def place_target(self, name: str) -> Thing | None:
        """Place the target, START_DISTANCE from the start; None if it does not fit."""
        for _ in range(60):
            thing = build(name, self.rng, *self._spot(name))
            distance = thing.distance(self.start.x, self.start.y)
            if not START_DISTANCE[0] <= distance <= START_DISTANCE[1] or not self._inside(thing):
                continue
            if name.endswith("door"):  # from the side it is a line
                slant = thing.bearing(self.start.x, self.start.y, thing.yaw + math.pi)
                if abs(slant) > math.radians(50):
                    continue
            self.things.append(thing)
            return thing
        return None

    def place_thing(self, name: str) -> bool:
        """Place another nameable thing or look-alike, THINGS_APART_M from the rest; returns whether
        it fits."""
        for _ in range(40):
            thing = build(name, self.rng, *self._spot(name))
            if self._fits(thing, THINGS_APART_M):
                self.things.append(thing)
                return True
        return False

    def place_furniture(self, name: str) -> None:
        """Place a piece of furniture, mostly at a wall, if it fits."""
        for _ in range(15):
            x, y, yaw = self._wall_spot(0.0) if self.rng.random() < 0.75 else self._floor_spot()
            piece = furnish(name, self.rng, x, y, yaw)
            if self._fits(piece, 0.3):
                self.furniture.append(piece)
                return

    def _spot(self, name: str) -> tuple[float, float, float]:
        return self._wall_spot(0.03) if name.endswith("door") else self._floor_spot()

    def _floor_spot(self) -> tuple[float, float, float]:
        x, y = (float(self.rng.uniform(-1, 1)) * (side / 2 - 0.35) for side in self.size)
        return x, y, float(self.rng.uniform(-math.pi, math.pi))

    def _wall_spot(self, depth: float) -> tuple[float, float, float]:
        """A random place with its back to a wall, ``depth`` metres in front of it."""
        side = int(self.rng.integers(4))
        along = float(self.rng.uniform(-1, 1))
        w, d = self.size[0] / 2, self.size[1] / 2
        yaw = (side + 2) * math.pi / 2
        if side % 2 == 0:
            sign = 1 - side
            return sign * (w - depth), along * (d - 0.6), yaw
        sign = 2 - side
        return along * (w - 0.6), sign * (d - depth), yaw

    def _inside(self, thing: Thing) -> bool:
        points = np.abs(thing.outline())
        return bool(np.all(points <= np.array(self.size) / 2 + 1e-6))

    def _fits(self, thing: Thing, gap: float) -> bool:
        points = thing.outline()
        if not self._inside(thing) or thing.distance(self.start.x, self.start.y) < 0.7:
            return False
        target = self.things[0]
        line = np.linspace((self.start.x, self.start.y), (target.x, target.y), 40)
        away = np.linalg.norm(points[:, None] - line[None], axis=-1).min()
        if away < CLEARANCE + 0.02:
            return False
        for other in self.things:
            if min(other.distance(x, y) for x, y in points) < max(
                gap, THINGS_APART_M if other is target else gap
            ):
                return False
        return all(min(f.distance(x, y) for x, y in points) >= 0.1 for f in self.furniture)


PHRASINGS = (
    "find the {}",
    "go to the {}",
    "walk to the {}",
    "look for the {}",
    "drive to the {}",
    "where is the {}",
)
"""How an operator asks; ``{}`` is a name of THING_KINDS."""


@dataclass(frozen=True)
class Light:
    """A lamp that casts shadows, and a fill light from the camera; intensities per colour, 0 to
    1."""

    at: tuple[float, float, float]
    lamp: Rgb
    ambient: Rgb
    fill: float


@dataclass(frozen=True)
class Walker:
    """Somebody who walks to and fro between two places (m), at ``speed`` (m/s), first towards the
    second; ``shape`` stands at the first."""

    shape: Thing
    to: tuple[float, float]
    speed: float


@dataclass(frozen=True)
class Room:
    """A room of ``size`` metres around the origin.

    ``things``: the target, other things that can be asked for, and look-alikes; ``furniture``:
    obstacles; ``decoration``: flat, and not solid; ``walkers``: people.
    """

    seed: int
    target: str
    instruction: str
    things: tuple[Thing, ...]
    furniture: tuple[Thing, ...]
    decoration: tuple[Thing, ...]
    size: tuple[float, float]
    start: Pose
    light: Light
    wall: Rgb
    floor: Rgb
    sky: Rgb
    walkers: tuple[Walker, ...] = ()

    def thing(self, name: str) -> Thing:
        """The thing with this name; KeyError if the room has none."""
        return {thing.name: thing for thing in self.things}[name]


def make_room(seed: int, target: str | None = None) -> Room:
    """The room of a seed, always the same; ``target``: the thing to find, by default the seed's.

    ValueError: an unknown thing, or a negative seed.
    """
    return first_that_fits(_try_room, seed, target, 0x607)[0]


def first_that_fits(
    attempt: Callable[[int, np.random.Generator, str | None], Room | None],
    seed: int,
    target: str | None,
    kind: int,
) -> tuple[Room, np.random.Generator]:
    """The first room of this ``kind`` of room and seed that an attempt makes, and the generator
    that it has drawn from. ValueError: an unknown target, or a negative seed."""
    if target is not None and target not in THING_KINDS:
        raise ValueError(f"no room has a {target!r}; choose one of: {', '.join(THING_KINDS)}")
    if seed < 0:
        raise ValueError(f"rooms have seeds from 0 on, not {seed}")
    for number in range(1000):
        rng = np.random.default_rng((seed, number, kind))
        room = attempt(seed, rng, target)
        if room is not None:
            return room, rng
    raise RuntimeError(f"no room could be furnished from seed {seed}")


def _try_room(seed: int, rng: np.random.Generator, wanted: str | None) -> Room | None:
    size = (float(rng.uniform(5, 7)), float(rng.uniform(5, 7)))
    drawn = THING_KINDS[rng.integers(len(THING_KINDS))]
    target_name = wanted or drawn
    start = Pose(
        float(rng.uniform(-1, 1)) * (size[0] / 2 - 0.7),
        float(rng.uniform(-1, 1)) * (size[1] / 2 - 0.7),
        float(rng.uniform(-math.pi, math.pi)),
    )
    layout = Layout(size, start, rng)
    target = layout.place_target(target_name)
    if target is None:
        return None
    names = list(LOOKALIKES[target_name])
    names = names[: 1 + int(rng.integers(len(names)))] if rng.random() < 0.5 else names[::-1][:1]
    others = [k for k in THING_KINDS if k != target_name and k not in names]
    names += [str(k) for k in rng.permutation(others)[: rng.integers(2, 5)]]
    for name in names:
        if not layout.place_thing(name) and name in LOOKALIKES[target_name]:
            return None
    if len(layout.things) < 4:
        return None
    for _ in range(rng.integers(3, 7)):
        layout.place_furniture(FURNITURE[rng.integers(len(FURNITURE))])
    return Room(
        seed=seed,
        target=target_name,
        instruction=PHRASINGS[rng.integers(len(PHRASINGS))].format(target_name),
        things=tuple(layout.things),
        furniture=tuple(layout.furniture),
        decoration=decorate(size, layout.things, rng),
        size=size,
        start=start,
        light=light_of(size, rng),
        wall=pale(rng, 0.5, 0.92, 0.09),
        floor=pale(rng, 0.22, 0.75, 0.07),
        sky=pale(rng, 0.7, 0.95, 0.03),
    )


def light_of(size: tuple[float, float], rng: np.random.Generator) -> Light:
    """A lamp somewhere above a room of ``size`` metres."""
    warmth = rng.uniform(-0.06, 0.06)
    tone = np.array([1 + warmth, 1.0, 1 - warmth])
    ambient = rng.uniform(0.34, 0.52)
    lamp = rng.uniform(0.4, 0.62)
    return Light(
        at=(
            float(rng.uniform(-0.4, 0.4)) * size[0],
            float(rng.uniform(-0.4, 0.4)) * size[1],
            float(rng.uniform(6.0, 8.0)),  # high enough that its cone holds the whole room
        ),
        lamp=as_rgb(lamp * tone),
        ambient=as_rgb(ambient * tone),
        fill=float(rng.uniform(0.08, 0.25)),
    )


__all__ = ["PHRASINGS", "Light", "Pose", "Room", "Walker", "make_room"]
