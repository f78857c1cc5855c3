"""Renders a run's legged robot from outside, afterwards, from its topics."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..sim.camera import Camera, Eye, cast
from ..sim.engine import mujoco
from ..sim.legs import legged_model
from ..sim.room import Room
from ..sim.scene import ROBOT_GROUP, ROBOT_GROUPS, Scene

_BODY = 0.35  # m above the floor: what is looked at
_LENGTH, _RISE = 1.5, 0.5  # from the body to the eye: m over ground, m up for each of them
_SIDES = (0.5, -0.5, 1.0, -1.0, 1.5, -1.5)  # rad that the eye may be off the line from the target
_ENOUGH = 0.85  # of that length, in the mean: the first side that has it is taken
_FREE = 0.15  # m that the eye stays before what is in its way
_TOWARD = 0.15  # share of the way to the target, from the body, of what is looked at
_CALM = 41  # samples that the eye's place is the mean of
_HIDDEN = (3, ROBOT_GROUP)  # the shapes of legs that collide are not those that are seen


@contextmanager
def outside_view(
    room: Room, outcomes: list[tuple[float, dict[str, Any]]], size: int
) -> Iterator[Callable[[float], np.ndarray]]:
    """A context with a function from time to a picture uint8 [size, size, 3]: from behind, towards
    the target.

    ``outcomes`` are a run log's, with the postures of legs. For one thread.
    """
    people = len(outcomes[0][1]["posture"]) // 7 - 2  # beside the 19 numbers of the robot
    model, target = legged_model(room, people), room.thing(room.target)
    times = [at for at, _ in outcomes]
    bodies = np.array([(o["x"], o["y"], _BODY) for _, o in outcomes])
    way = (target.x, target.y, _BODY) - bodies
    eyes = _calmed(bodies + _booms(model, bodies, np.arctan2(way[:, 1], way[:, 0])))
    looked_at = _calmed(bodies + _TOWARD * way)
    with Camera(Scene(room, people, model), size=size, hidden=_HIDDEN) as camera:

        def picture(at: float) -> np.ndarray:
            index = min(bisect_left(times, at), len(times) - 1)
            camera.place(outcomes[index][1]["posture"])
            (x, y, z), (ahead, aside, up) = eyes[index], looked_at[index] - eyes[index]
            yaw, pitch = math.atan2(aside, ahead), math.atan2(up, math.hypot(ahead, aside))
            return camera.render(Eye(float(x), float(y), float(z), yaw, pitch))

        yield picture


def _booms(model: Any, bodies: np.ndarray, yaws: np.ndarray) -> np.ndarray:
    """From each body [N, 3] to the camera behind it, as far as the view is free: [N, 3]."""
    data, booms = mujoco.MjData(model), []
    mujoco.mj_forward(model, data)
    for side in _SIDES:
        angles = yaws + side
        back = np.stack([-np.cos(angles), -np.sin(angles), np.full(len(angles), _RISE)], 1)
        rays = zip(bodies, back, strict=True)
        met = np.array([cast(model, data, a, b[None], ROBOT_GROUPS)[1][0] for a, b in rays])
        free = np.where(met < 0, _LENGTH, np.minimum(_LENGTH, met - _FREE))
        booms.append(back * free[:, None])
    return max(booms, key=lambda b: min(_ENOUGH * _LENGTH, np.hypot(b[:, 0], b[:, 1]).mean()))


def _calmed(points: np.ndarray) -> np.ndarray:
    """Points [N, 3] smoothed over time."""
    padded = np.pad(points, ((_CALM // 2, _CALM // 2), (0, 0)), mode="edge")
    return np.stack([np.convolve(one, np.ones(_CALM), "valid") for one in padded.T], 1) / _CALM
