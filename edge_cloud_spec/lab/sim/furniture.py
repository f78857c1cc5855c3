"""Furniture without a name: neutral in colour, mostly along walls, hiding what is behind."""

from __future__ import annotations

import math

import numpy as np

from .thing import Part, Rgb, Shape, Thing, as_rgb

_NEUTRALS = (
    (0.88, 0.87, 0.84),
    (0.30, 0.30, 0.31),
    (0.66, 0.55, 0.40),
    (0.52, 0.52, 0.50),
    (0.12, 0.12, 0.13),
)

FURNITURE = ("table", "shelf", "plinth", "sofa", "bench")


def furnish(name: str, rng: np.random.Generator, x: float, y: float, yaw: float) -> Thing:
    """One piece of furniture whose back, at -x of its own frame, is at (x, y)."""
    base = np.array(_NEUTRALS[rng.integers(len(_NEUTRALS))]) + rng.uniform(-0.05, 0.05)
    half, is_round, parts = _SHAPES[name](rng, as_rgb(np.clip(base, 0.04, 0.95)))
    forward = half[0] + 0.01
    x, y = x + forward * math.cos(yaw), y + forward * math.sin(yaw)
    return Thing(name, x, y, yaw, half, is_round, parts)


def _legs(a: float, b: float, h: float, thick: float, rgb: Rgb) -> tuple[Part, ...]:
    return tuple(
        Part("box", (thick, thick, h / 2), (i * (a - thick), j * (b - thick), h / 2), rgb)
        for i in (-1, 1)
        for j in (-1, 1)
    )


def _darker(rgb: Rgb) -> Rgb:
    return (rgb[0] * 0.7, rgb[1] * 0.7, rgb[2] * 0.7)


def _table(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = rng.uniform(0.28, 0.4), rng.uniform(0.4, 0.7), rng.uniform(0.5, 0.75)
    top = Part("box", (a, b, 0.02), (0, 0, h), rgb)
    return (a, b), False, (*_legs(a, b, h, 0.025, _darker(rgb)), top)


def _shelf(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = 0.16, rng.uniform(0.35, 0.6), rng.uniform(1.0, 1.9)
    boards = tuple(
        Part("box", (a, b, 0.015), (0, 0, 0.05 + share * (h - 0.07)), rgb)
        for share in np.linspace(0, 1, 4)
    )
    sides = tuple(Part("box", (a, 0.015, h / 2), (0, j * b, h / 2), rgb) for j in (-1, 1))
    back = Part("box", (0.01, b, h / 2), (-a + 0.01, 0, h / 2), _darker(rgb))
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
            Part("box", (0.36, 0.08, 0.1), (0, b - 0.08, 0.5), _darker(rgb)),
            Part("box", (0.36, 0.08, 0.1), (0, -b + 0.08, 0.5), _darker(rgb)),
        ),
    )


def _bench(rng: np.random.Generator, rgb: Rgb) -> Shape:
    a, b, h = 0.18, rng.uniform(0.35, 0.55), rng.uniform(0.38, 0.46)
    top = Part("box", (a, b, 0.03), (0, 0, h), rgb)
    return (a, b), False, (*_legs(a, b, h, 0.03, _darker(rgb)), top)


_SHAPES = {
    "table": _table,
    "shelf": _shelf,
    "plinth": _plinth,
    "sofa": _sofa,
    "bench": _bench,
}
