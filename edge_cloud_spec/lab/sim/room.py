"""A furnished room by seed: what is to be found, what resembles it, and all the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...nav.pose import Pose
from .decoration import decorate, pale
from .furniture import FURNITURE
from .kinds import KINDS, LOOKALIKES
from .layout import Layout
from .thing import Rgb, Thing, as_rgb

__all__ = ["PHRASINGS", "Light", "Pose", "Room", "make_room"]

PHRASINGS = (
    "find the {}",
    "go to the {}",
    "walk to the {}",
    "look for the {}",
    "drive to the {}",
    "where is the {}",
)
"""How an operator asks; ``{}`` is a name of KINDS."""


@dataclass(frozen=True)
class Light:
    """A lamp that casts shadows, and a fill from the camera; intensities per colour, 0 to 1."""

    at: tuple[float, float, float]
    lamp: Rgb
    ambient: Rgb
    fill: float


@dataclass(frozen=True)
class Room:
    """A room of ``size`` metres around the origin.

    ``things`` are what can be asked for and what resembles the target; furniture is in the way;
    decoration is neither solid nor high.
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

    def thing(self, name: str) -> Thing:
        """The thing of that name; KeyError when the room has none."""
        for thing in self.things:
            if thing.name == name:
                return thing
        raise KeyError(f"room {self.seed} has no {name}")

    @property
    def lookalikes(self) -> tuple[Thing, ...]:
        """The things that share the target's colour or shape."""
        return tuple(t for t in self.things if t.name in LOOKALIKES[self.target])


def make_room(seed: int, target: str | None = None) -> Room:
    """The room of a seed, always the same; ``target`` names another thing to find than its own.

    ValueError: there is no such thing, or the seed is negative.
    """
    if target is not None and target not in KINDS:
        raise ValueError(f"no room has a {target!r}; choose one of: {', '.join(KINDS)}")
    if seed < 0:
        raise ValueError(f"rooms have seeds from 0 on, not {seed}")
    for attempt in range(1000):
        rng = np.random.default_rng((seed, attempt, 0x607))
        room = _try_room(seed, rng, target)
        if room is not None:
            return room
    raise RuntimeError(f"no room could be furnished from seed {seed}")


def _try_room(seed: int, rng: np.random.Generator, wanted: str | None) -> Room | None:
    size = (float(rng.uniform(5, 7)), float(rng.uniform(5, 7)))
    drawn = KINDS[rng.integers(len(KINDS))]
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
    others = [k for k in KINDS if k != target_name and k not in names]
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
        light=_light(size, rng),
        wall=pale(rng, 0.5, 0.92, 0.09),
        floor=pale(rng, 0.22, 0.75, 0.07),
        sky=pale(rng, 0.7, 0.95, 0.03),
    )


def _light(size: tuple[float, float], rng: np.random.Generator) -> Light:
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
