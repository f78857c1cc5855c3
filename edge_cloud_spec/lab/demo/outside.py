"""The legged robot of a run, seen from outside: drawn afterwards from what its topics told."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sim.camera import Camera, Eye, cast
from ..sim.engine import mujoco
from ..sim.legs import legged_model
from ..sim.room import Room
from ..sim.scene import ROBOT_GROUP, ROBOT_GROUPS, Scene

if TYPE_CHECKING:
    from typing_extensions import Self

_BODY = 0.35  # m above the floor: what is looked at
_LENGTH, _RISE = 1.7, 0.45  # of the boom from the body to the eye: m, rad
_SIDES = (0.5, -0.5, 1.0, -1.0, 1.5, -1.5)  # rad that it may be off the line from the target
_ENOUGH = 0.85  # of that length, in the mean: the first side that has it is taken
_TOWARD = 0.15  # share of the way to the target, from the body, of what is looked at
_FREE = 0.15  # m that the eye stays before what the boom meets
_CALM = 41  # samples that the eye's place is the mean of
_SOLID_ONLY = 3  # group of the robot's shapes for contacts, which are not to be seen


class OutsideView:
    """From behind, with the target before it; a context manager of one thread.

    ``outcomes`` are a run log's, with the postures of legs.
    """

    def __init__(self, room: Room, outcomes: list[tuple[float, dict[str, Any]]], size: int) -> None:
        model = legged_model(room)
        scene, hidden = Scene(room, model=model), (_SOLID_ONLY, ROBOT_GROUP)
        self._camera = Camera(scene, size=size, hidden=hidden)
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self._times = np.array([at for at, _ in outcomes])
        self._postures = [outcome["posture"] for _, outcome in outcomes]
        bodies = np.array([(o["x"], o["y"], _BODY) for _, o in outcomes])
        target = room.thing(room.target)
        way = (target.x, target.y, _BODY) - bodies
        yaws = np.arctan2(way[:, 1], way[:, 0])
        booms = [_booms(model, data, bodies, yaws + side) for side in _SIDES]
        lengths = [min(_ENOUGH * _LENGTH, np.linalg.norm(b, axis=1).mean()) for b in booms]
        self._eyes = _calmed(bodies + booms[int(np.argmax(lengths))])
        self._looked_at = _calmed(bodies + _TOWARD * way)

    def picture(self, at: float) -> np.ndarray:
        """The picture uint8 [size, size, 3] at a time of the run log, s."""
        index = min(int(np.searchsorted(self._times, at)), len(self._times) - 1)
        eye = self._eyes[index]
        ahead, aside, up = self._looked_at[index] - eye
        yaw, pitch = math.atan2(aside, ahead), math.atan2(up, math.hypot(ahead, aside))
        self._camera.place(self._postures[index])
        x, y, z = (float(value) for value in eye)
        return self._camera.render(Eye(x, y, z, yaw, pitch))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._camera.close()


def _booms(model: Any, data: Any, bodies: np.ndarray, yaws: np.ndarray) -> np.ndarray:
    """From each body [N, 3] to the eye behind it, as far as nothing is between them: [N, 3]."""
    level = math.cos(_RISE)
    back = np.stack([-level * np.cos(yaws), -level * np.sin(yaws)], 1)
    back = np.column_stack([back, np.full(len(yaws), math.sin(_RISE))])
    reach = []
    for body, direction in zip(bodies, back, strict=True):
        geoms, distances = cast(model, data, body, direction[None], ROBOT_GROUPS)
        free = float(distances[0]) - _FREE if geoms[0] >= 0 else _LENGTH
        reach.append(min(_LENGTH, free))
    return np.asarray(back * np.array(reach)[:, None])


def _calmed(points: np.ndarray) -> np.ndarray:
    """Points [N, 3], each the mean of those about it in time."""
    padded = np.pad(points, ((_CALM // 2, _CALM // 2), (0, 0)), mode="edge")
    window = np.full(_CALM, 1 / _CALM)
    return np.stack([np.convolve(column, window, "valid") for column in padded.T], 1)
