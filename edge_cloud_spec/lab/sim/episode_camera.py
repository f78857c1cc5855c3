"""Pictures of a robot's way through flats and rooms, and the true things in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .camera import Camera, encode_jpeg, eye_at
from .flat import Flat, Sight, flat_of, make_flat, sight_of
from .room import Pose, make_room
from .scene import Scene
from .view import SIZE, expose, halved, open_gl

if TYPE_CHECKING:
    from typing_extensions import Self

_SEGMENTED = 64  # pixels a side: rays cost most of the time


class EpisodeCamera:
    """One camera for many flats in turn; used and closed by the thread that made it."""

    def __init__(self, renderer: str) -> None:
        self._renderer, self._context = renderer, open_gl(renderer)
        self._cameras: list[Camera] = []

    def open(self, number: int, rng: np.random.Generator, one_room: bool) -> Flat:
        """The flat of this number, or the room; its pictures follow."""
        self._close_scene()
        self._flat = flat = flat_of(make_room(number)) if one_room else make_flat(number)
        scene, shadows = Scene(flat.room), bool(rng.random() < 0.7)
        caster = Camera(scene, "rays", _SEGMENTED, shadows)
        if self._context is not None and (self._renderer == "egl" or rng.random() < 0.75):
            painter = Camera(scene, "egl", 2 * SIZE, shadows, self._context)
        else:
            painter = Camera(scene, "rays", SIZE, shadows)
        self._cameras = [painter, caster]
        return flat

    def look(self, pose: Pose, rng: np.random.Generator) -> tuple[bytes, Sight]:
        """The picture that a robot at ``pose`` takes, with a camera's errors, and what it shows.

        JPEG, SIZE pixels a side.
        """
        painter, caster = self._cameras
        pitch, roll = (float(v) for v in np.clip(rng.normal(0, 0.015, 2), -0.05, 0.05))
        eye = eye_at(pose, pitch, roll, float(rng.normal(0, 0.004)))
        sight = sight_of(self._flat, pose, eye, caster.segment(eye))
        image = halved(expose(painter.render(eye), rng), SIZE)
        return encode_jpeg(image, int(rng.integers(80, 97))), sight

    def _close_scene(self) -> None:
        for camera in self._cameras:
            camera.close()
        self._cameras = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_scene()
        if self._context is not None:
            self._context.close()
