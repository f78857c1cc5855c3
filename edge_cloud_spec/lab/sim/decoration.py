"""Skirting boards, rugs and pictures: what makes rooms look different and is no obstacle."""

from __future__ import annotations

import math

import numpy as np

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
        half, z = (
            (float(v) for v in rng.uniform(0.2, 0.4, 2)),
            float(rng.uniform(1.2, 1.7)),
        )
        b, h = half
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
    """A tone between ``low`` and ``high``, each colour off it by up to ``spread``."""
    return as_rgb(np.clip(rng.uniform(low, high) + rng.uniform(-spread, spread, 3), 0.05, 0.97))
