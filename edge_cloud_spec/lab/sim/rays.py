"""A renderer that needs no GL: MuJoCo's ray caster and numpy, with the light of MuJoCo's GL."""

from __future__ import annotations

import numpy as np

from .engine import mujoco
from .scene import ROBOT_GROUP, Scene

_MARGIN = 0.01  # metres by which rounding may put a surface behind itself without shadow


class RayCaster:
    """Pictures of one scene through given rays; [H, W] is fixed by ``directions``."""

    def __init__(self, scene: Scene, data: mujoco.MjData, shadows: bool) -> None:
        model, light = scene.model, scene.room.light
        self.model, self.data, self.shadows = model, data, shadows
        self.groups = np.ones((6, 1), np.uint8)
        self.groups[ROBOT_GROUP] = 0
        # one row more than geoms: index -1 is the sky
        self.albedo = np.zeros((model.ngeom + 1, 3), np.float32)
        self.albedo[:-1] = model.geom_rgba[:, :3]
        self.metal = np.zeros(model.ngeom + 1, bool)
        self.metal[:-1] = model.geom_matid == model.material("metal").id
        self.sky = np.array(scene.room.sky, np.float32)
        self.at = np.array(light.at)
        self.lamp = np.array(light.lamp, np.float32)
        self.ambient = np.array(light.ambient, np.float32)
        self.fill = np.float32(light.fill)

    def cast(
        self,
        origin: np.ndarray,
        directions: np.ndarray,
        normals: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Geom ids [N] (-1: sky) and distances [N] in units of the directions [N, 3]."""
        n = len(directions)
        geoms, distances = np.empty((n, 1), np.int32), np.empty((n, 1))
        flat = None if normals is None else normals.reshape(-1, 1)
        mujoco.mj_multiRay(
            self.model,
            self.data,
            np.ascontiguousarray(origin).reshape(3, 1),
            np.ascontiguousarray(directions).reshape(-1, 1),
            self.groups,
            True,
            -1,
            geoms,
            distances,
            flat,
            n,
            1e10,
        )
        return geoms[:, 0], distances[:, 0]

    def shade(self, origin: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Colours uint8 [N, 3] and geom ids [N] that unit ``directions`` [N, 3] meet."""
        normals = np.empty((len(directions), 3))
        geoms, distances = self.cast(origin, directions, normals)
        points = origin + distances[:, None] * directions
        to_lamp = self.at - points
        reach = np.sqrt(np.einsum("ij,ij->i", to_lamp, to_lamp))
        toward = (np.einsum("ij,ij->i", normals, to_lamp) / reach).astype(np.float32)
        toward[geoms < 0] = 0
        toward = np.maximum(toward, 0)
        if self.shadows:
            self._darken(points, reach, toward)
        facing = np.abs(np.einsum("ij,ij->i", normals, directions)).astype(np.float32)
        lit = self.ambient + (self.fill * facing)[:, None] + toward[:, None] * self.lamp
        colour = self.albedo[geoms] * lit
        shiny = np.flatnonzero(self.metal[geoms])
        if len(shiny):
            half = to_lamp[shiny] / reach[shiny, None] - directions[shiny]
            half /= np.linalg.norm(half, axis=1, keepdims=True)
            gleam = np.maximum(0, np.einsum("ij,ij->i", normals[shiny], half)) ** 38.4
            colour[shiny] += (0.24 * gleam * (toward[shiny] > 0))[:, None].astype(np.float32)
        colour[geoms < 0] = self.sky
        return (np.minimum(colour, 1) * 255).astype(np.uint8), geoms

    def _darken(self, points: np.ndarray, reach: np.ndarray, toward: np.ndarray) -> None:
        """Set ``toward`` to 0 where something is between the lamp and the point."""
        lit = np.flatnonzero(toward > 0)
        if not len(lit):
            return
        beams = (points[lit] - self.at) / reach[lit, None]
        _, first = self.cast(self.at, beams)
        hidden = (first >= 0) & (first < reach[lit] - _MARGIN)
        toward[lit[hidden]] = 0
