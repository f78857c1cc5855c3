"""The contents of rooms: the kinds that can be named, their look-alikes, and furniture.

Every thing consists of a few primitive shapes, so that both renderers draw it from the same
numbers. Small things are slightly enlarged: at 3.2 m a bottle must cover some 50 of 128 x 128
pixels.
"""

from __future__ import annotations

import math

import numpy as np

from .thing import Part, Rgb, Shape, Thing, as_rgb

THING_KINDS = (
    "silver bottle",
    "silver can",
    "green bottle",
    "red chair",
    "red box",
    "blue box",
    "yellow ball",
    "brown door",
)
"""The nameable kinds; class ``i + 1`` of a view's grid is ``THING_KINDS[i]``."""

LOOKALIKES = {
    "silver bottle": ("silver can", "green bottle"),
    "silver can": ("silver bottle",),
    "green bottle": ("silver bottle",),
    "red chair": ("red box",),
    "red box": ("blue box", "red chair"),
    "blue box": ("red box",),
    "yellow ball": ("yellow crate",),
    "brown door": ("brown cabinet",),
}
"""What shares a kind's shape or colour; the last two look-alikes are never asked for."""

_COLOURS: dict[str, Rgb] = {
    "silver": (0.76, 0.78, 0.82),
    "green": (0.10, 0.48, 0.18),
    "red": (0.78, 0.09, 0.08),
    "blue": (0.10, 0.20, 0.72),
    "yellow": (0.93, 0.78, 0.06),
    "brown": (0.40, 0.22, 0.09),
}


def tint(rng: np.random.Generator, colour: str) -> Rgb:
    """A random variation of the named colour: a little lighter or darker, a little off in hue."""
    base = np.array(_COLOURS[colour]) * rng.uniform(0.82, 1.12) + rng.uniform(-0.03, 0.03, 3)
    return _rgb(base)


def _rgb(values: np.ndarray) -> Rgb:
    return as_rgb(np.clip(values, 0.02, 0.98))


def _shade(rgb: Rgb, factor: float) -> Rgb:
    return _rgb(np.array(rgb) * factor)


def build(name: str, rng: np.random.Generator, x: float, y: float, yaw: float) -> Thing:
    """One instance of a kind that can be named, or of a look-alike that is never asked for."""
    colour, noun = name.split()
    half, is_round, parts = _BUILDERS[noun](rng, tint(rng, colour))
    return Thing(name, x, y, yaw, half, is_round, parts)


def _bottle(rng: np.random.Generator, rgb: Rgb) -> Shape:
    r, h = 0.065 * rng.uniform(0.95, 1.1), 0.34 * rng.uniform(0.94, 1.08)
    metal = rgb[2] > 0.4
    cap = _shade(rgb, 0.35) if metal else (0.85, 0.83, 0.75)
    body = 0.58 * h
    return (
        (r, r),
        True,
        (
            Part("cylinder", (r, body / 2), (0, 0, body / 2), rgb, metal),
            Part("ellipsoid", (r, r, 0.16 * h), (0, 0, body), rgb, metal),
            Part("cylinder", (0.38 * r, 0.17 * h), (0, 0, 0.78 * h), rgb, metal),
            Part("cylinder", (0.46 * r, 0.035 * h), (0, 0, 0.965 * h), cap),
        ),
    )


def _can(rng: np.random.Generator, rgb: Rgb) -> Shape:
    r, h = 0.09 * rng.uniform(0.94, 1.08), 0.20 * rng.uniform(0.92, 1.08)
    rim = _shade(rgb, 0.6)
    return (
        (r, r),
        True,
        (
            Part("cylinder", (r, 0.42 * h), (0, 0, 0.5 * h), rgb, True),
            Part("cylinder", (0.93 * r, 0.04 * h), (0, 0, 0.04 * h), rim, True),
            Part("cylinder", (0.93 * r, 0.04 * h), (0, 0, 0.96 * h), rim, True),
        ),
    )


def _chair(rng: np.random.Generator, rgb: Rgb) -> Shape:
    w, seat, top = 0.21 * rng.uniform(0.95, 1.08), 0.42, 0.82 * rng.uniform(0.95, 1.05)
    leg = _shade(rgb, 0.75)
    legs = tuple(
        Part(
            "box",
            (0.022, 0.022, seat / 2),
            (i * (w - 0.03), j * (w - 0.03), seat / 2),
            leg,
        )
        for i in (-1, 1)
        for j in (-1, 1)
    )
    posts = tuple(
        Part(
            "box",
            (0.02, 0.025, (top - seat) / 2),
            (-w + 0.02, j * (w - 0.03), (top + seat) / 2),
            rgb,
        )
        for j in (-1, 1)
    )
    slats = tuple(
        Part("box", (0.015, w, 0.055), (-w + 0.02, 0, seat + share * (top - seat)), rgb)
        for share in (0.5, 0.88)
    )
    plate = Part("box", (w, w, 0.025), (0, 0, seat), rgb)
    return (w, w), False, (*legs, plate, *posts, *slats)


def _box(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = (0.15 * rng.uniform(0.92, 1.12) for _ in range(3))
    tape = _shade(rgb, 1.35) if max(rgb) < 0.7 else _shade(rgb, 0.7)
    return (
        (a, b),
        False,
        (
            Part("box", (a, b, h), (0, 0, h), rgb),
            Part("box", (a + 0.002, 0.02, h + 0.002), (0, 0, h), tape),
        ),
    )


def _ball(rng: np.random.Generator, rgb: Rgb) -> Shape:
    r = 0.14 * rng.uniform(0.93, 1.1)
    return (r, r), True, (Part("sphere", (r,), (0, 0, r), rgb),)


def _door(rng: np.random.Generator, rgb: Rgb) -> Shape:
    """A closed door in its frame; its back is the wall, its front looks along +x."""
    w, h, frame = 0.43, 1.92, _rgb(np.full(3, rng.uniform(0.75, 0.93)))
    panel = _shade(rgb, rng.choice([0.78, 1.25]))
    side = float(rng.choice([-1.0, 1.0]))
    return (
        (0.03, w + 0.06),
        False,
        (
            Part("box", (0.02, w, h / 2), (0, 0, h / 2), rgb),
            Part("box", (0.03, 0.03, h / 2 + 0.03), (0, w + 0.03, h / 2 + 0.03), frame),
            Part("box", (0.03, 0.03, h / 2 + 0.03), (0, -w - 0.03, h / 2 + 0.03), frame),
            Part("box", (0.03, w, 0.03), (0, 0, h + 0.03), frame),
            Part("box", (0.008, 0.30, 0.28), (0.02, 0, 0.45), panel),
            Part("box", (0.008, 0.30, 0.38), (0.02, 0, 1.35), panel),
            Part(
                "sphere",
                (0.035,),
                (0.05, side * (w - 0.07), 0.95),
                (0.75, 0.73, 0.65),
                True,
                False,
            ),
        ),
    )


def _crate(rng: np.random.Generator, rgb: Rgb) -> Shape:
    """As yellow as the ball, but with edges: an open-topped crate."""
    a, h = 0.13 * rng.uniform(0.95, 1.12), 0.12 * rng.uniform(0.9, 1.15)
    return (
        (a, a),
        False,
        (
            Part("box", (a, a, h), (0, 0, h), rgb),
            Part("box", (a - 0.02, a - 0.02, 0.004), (0, 0, 2 * h), _shade(rgb, 0.35)),
        ),
    )


def _cabinet(rng: np.random.Generator, rgb: Rgb) -> Shape:
    """As brown as the door, but low: its top is visible from every place to stop at."""
    w, h = 0.26 * rng.uniform(0.92, 1.08), 0.62 * rng.uniform(0.9, 1.08)
    return (
        (0.17, w),
        False,
        (
            Part("box", (0.17, w, h / 2 - 0.04), (0, 0, h / 2 + 0.04), rgb),
            Part("box", (0.13, w - 0.04, 0.04), (0, 0, 0.04), (0.08, 0.08, 0.08)),
            Part(
                "box",
                (0.002, 0.006, h / 2 - 0.06),
                (0.172, 0, h / 2 + 0.04),
                _shade(rgb, 0.3),
            ),
            Part("box", (0.18, w + 0.01, 0.012), (0, 0, h), _shade(rgb, 1.5)),
        ),
    )


_BUILDERS = {
    "bottle": _bottle,
    "can": _can,
    "chair": _chair,
    "box": _box,
    "ball": _ball,
    "door": _door,
    "crate": _crate,
    "cabinet": _cabinet,
}


# Furniture has no name that is asked for: neutral in colour, mostly along walls, it hides what is
# behind.

_NEUTRALS = (
    (0.88, 0.87, 0.84),
    (0.30, 0.30, 0.31),
    (0.66, 0.55, 0.40),
    (0.52, 0.52, 0.50),
    (0.12, 0.12, 0.13),
)

FURNITURE = ("table", "shelf", "plinth", "sofa", "bench")

OBSTRUCTING_FURNITURE = ("chair", "chair", "table", "sofa", "plant", "carton")
"""What stands in the way in a furnished room; chairs are the most frequent."""


def furnish(name: str, rng: np.random.Generator, x: float, y: float, yaw: float) -> Thing:
    """One piece of furniture whose back, at -x of its own frame, is at (x, y)."""
    base = np.array(_NEUTRALS[rng.integers(len(_NEUTRALS))]) + rng.uniform(-0.05, 0.05)
    half, is_round, parts = _FURNITURE_SHAPES[name](rng, as_rgb(np.clip(base, 0.04, 0.95)))
    forward = half[0] + 0.01
    x, y = x + forward * math.cos(yaw), y + forward * math.sin(yaw)
    return Thing(name, x, y, yaw, half, is_round, parts)


def _legs(a: float, b: float, h: float, thick: float, rgb: Rgb) -> tuple[Part, ...]:
    return tuple(
        Part("box", (thick, thick, h / 2), (i * (a - thick), j * (b - thick), h / 2), rgb)
        for i in (-1, 1)
        for j in (-1, 1)
    )


def _table(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = rng.uniform(0.28, 0.4), rng.uniform(0.4, 0.7), rng.uniform(0.5, 0.75)
    top = Part("box", (a, b, 0.02), (0, 0, h), rgb)
    return (a, b), False, (*_legs(a, b, h, 0.025, _shade(rgb, 0.7)), top)


def _shelf(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = 0.16, rng.uniform(0.35, 0.6), rng.uniform(1.0, 1.9)
    boards = tuple(
        Part("box", (a, b, 0.015), (0, 0, 0.05 + share * (h - 0.07)), rgb)
        for share in np.linspace(0, 1, 4)
    )
    sides = tuple(Part("box", (a, 0.015, h / 2), (0, j * b, h / 2), rgb) for j in (-1, 1))
    back = Part("box", (0.01, b, h / 2), (-a + 0.01, 0, h / 2), _shade(rgb, 0.7))
    return (a, b), False, (*boards, *sides, back)


def _plinth(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, h = rng.uniform(0.14, 0.24), rng.uniform(0.25, 0.5)
    if rng.random() < 0.4:
        return (a, a), True, (Part("cylinder", (a, h), (0, 0, h), rgb),)
    return (a, a), False, (Part("box", (a, a, h), (0, 0, h), rgb),)


def _sofa(rng: np.random.Generator, rgb: Rgb) -> Shape:
    b = rng.uniform(0.6, 0.85)
    return (
        (0.38, b),
        False,
        (
            Part("box", (0.38, b, 0.2), (0, 0, 0.22), rgb),
            Part("box", (0.09, b, 0.2), (-0.29, 0, 0.6), rgb),
            Part("box", (0.36, 0.08, 0.1), (0, b - 0.08, 0.5), _shade(rgb, 0.7)),
            Part("box", (0.36, 0.08, 0.1), (0, -b + 0.08, 0.5), _shade(rgb, 0.7)),
        ),
    )


def _bench(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = 0.18, rng.uniform(0.35, 0.55), rng.uniform(0.38, 0.46)
    top = Part("box", (a, b, 0.03), (0, 0, h), rgb)
    return (a, b), False, (*_legs(a, b, h, 0.03, _shade(rgb, 0.7)), top)


def _plant(rng: np.random.Generator, rgb: Rgb) -> Shape:
    """A pot with leaves, which hang above the robot's back."""
    r, h = rng.uniform(0.12, 0.22), rng.uniform(0.24, 0.36)
    wide, tall = rng.uniform(0.2, 0.34), rng.uniform(0.25, 0.45)
    leaves = _rgb(np.array((0.16, 0.34, 0.12)) * rng.uniform(0.7, 1.3))
    return (
        (r, r),
        True,
        (
            Part("cylinder", (r, h / 2), (0, 0, h / 2), rgb),
            Part("cylinder", (0.03, 0.15), (0, 0, h + 0.15), _shade(leaves, 0.6)),
            Part("ellipsoid", (wide, wide, tall), (0, 0, 0.48 + tall), leaves),
        ),
    )


def person(rng: np.random.Generator, x: float, y: float, yaw: float) -> Thing:
    """Somebody who stands at (x, y) and looks along ``yaw``."""
    coat, trousers = (_rgb(rng.uniform(0.08, 0.75, 3)) for _ in range(2))
    skin = _shade((0.85, 0.65, 0.52), rng.uniform(0.45, 1.1))
    tall = rng.uniform(0.9, 1.08)
    legs = tuple(
        part
        for j in (-1, 1)
        for part in (
            Part("cylinder", (0.07, 0.42 * tall), (0, 0.1 * j, 0.42 * tall), trousers),
            Part("box", (0.13, 0.05, 0.04), (0.05, 0.1 * j, 0.04), (0.1, 0.09, 0.08)),
        )
    )
    body = Part("ellipsoid", (0.15, 0.22, 0.36 * tall), (0, 0, 1.12 * tall), coat)
    head = Part("sphere", (0.11,), (0, 0, 1.6 * tall), skin)
    return Thing("person", x, y, yaw, (0.2, 0.2), True, (*legs, body, head))


def _carton(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = (rng.uniform(0.15, 0.38) for _ in range(3))
    lid = Part("box", (a + 0.004, b + 0.004, 0.02), (0, 0, 2 * h - 0.02), _shade(rgb, 0.8))
    return (a, b), False, (Part("box", (a, b, h), (0, 0, h), rgb), lid)


_FURNITURE_SHAPES = {
    "table": _table,
    "shelf": _shelf,
    "plinth": _plinth,
    "sofa": _sofa,
    "bench": _bench,
    "chair": _chair,
    "plant": _plant,
    "carton": _carton,
}
