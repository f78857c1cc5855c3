"""The robot's front camera: 60 degrees, square, 0.35 m above the floor, shaken by the gait."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from edge_cloud_spec.errors import UserError

from .engine import mujoco, no_gl_because
from .gl import GlContext, GlPainter
from .room import Pose
from .scene import MAX_SIZE, ROBOT_GROUPS, Scene

_SHADOW_MARGIN_M = 0.01  # metres by which rounding may put a surface behind itself without shadow


def cast(
    model: Any,
    data: Any,
    origin: np.ndarray,
    directions: np.ndarray,
    hidden: tuple[int, ...] = (),
    normals: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Cast rays: geom ids [N] and distances [N] in units of the directions [N, 3], from ``origin``
    [3].

    Both are -1 if nothing is met; ``normals`` [N, 3] are filled in. Rays pass through geoms of the
    groups ``hidden``.
    """
    n = len(directions)
    groups = np.ones((6, 1), np.uint8)
    groups[list(hidden)] = 0
    geoms, distances = np.empty((n, 1), np.int32), np.empty((n, 1))
    mujoco.mj_multiRay(
        model,
        data,
        np.ascontiguousarray(origin).reshape(3, 1),
        np.ascontiguousarray(directions).reshape(-1, 1),
        groups,
        True,
        -1,
        geoms,
        distances,
        None if normals is None else normals.reshape(-1, 1),
        n,
        1e10,
    )
    return geoms[:, 0], distances[:, 0]


class RayCaster:
    """Renders pictures of one scene by casting rays; ``directions`` fixes [H, W]."""

    def __init__(
        self, scene: Scene, data: mujoco.MjData, shadows: bool, hidden: tuple[int, ...]
    ) -> None:
        model, light = scene.model, scene.room.light
        self.model, self.data, self.shadows, self.hidden = model, data, shadows, hidden
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
        """As ``camera.cast``, for this scene; -1 is the sky."""
        return cast(self.model, self.data, origin, directions, self.hidden, normals)

    def shade(self, origin: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The colours uint8 [N, 3] and geom ids [N] met by unit ``directions`` [N, 3]."""
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
        """Set ``toward`` to 0 if something is between the lamp and the point."""
        lit = np.flatnonzero(toward > 0)
        if not len(lit):
            return
        beams = (points[lit] - self.at) / reach[lit, None]
        _, first = self.cast(self.at, beams)
        hidden = (first >= 0) & (first < reach[lit] - _SHADOW_MARGIN_M)
        toward[lit[hidden]] = 0


FIELD_OF_VIEW = math.radians(60)
CAMERA_HEIGHT_M = 0.35
CAMERA_FORWARD_M = 0.30
"""Metres of the camera above the floor and in front of the middle of the body."""

log = logging.getLogger(__name__)

RENDERERS = ("auto", "egl", "rays")


@dataclass(frozen=True)
class Eye:
    """The camera's position (m) and direction (rad): yaw as the body's, pitch up, roll to the
    right."""

    x: float
    y: float
    z: float
    yaw: float
    pitch: float = 0.0
    roll: float = 0.0

    @property
    def position(self) -> np.ndarray:
        """The camera's position [3]."""
        return np.array([self.x, self.y, self.z])

    @property
    def axes(self) -> np.ndarray:
        """Columns [3, 3]: forward, left and up of the camera in the room's frame."""
        cy, sy = math.cos(self.yaw), math.sin(self.yaw)
        cp, sp = math.cos(self.pitch), math.sin(self.pitch)
        cr, sr = math.cos(self.roll), math.sin(self.roll)
        yaw = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
        pitch = np.array([[cp, 0, -sp], [0, 1, 0], [sp, 0, cp]])
        roll = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
        return np.asarray(yaw @ pitch @ roll)


def eye_at(pose: Pose, pitch: float = 0.0, roll: float = 0.0, heave: float = 0.0) -> Eye:
    """The camera's pose for a robot at ``pose``; pitch and roll in rad, heave in m."""
    return Eye(
        pose.x + CAMERA_FORWARD_M * math.cos(pose.yaw),
        pose.y + CAMERA_FORWARD_M * math.sin(pose.yaw),
        CAMERA_HEIGHT_M + heave,
        pose.yaw,
        pitch,
        roll,
    )


class Camera(ExitStack):
    """Renders one scene; used and closed by the thread that made it, as GL contexts must be.

    ``renderer`` is "egl", "rays" or "auto" (EGL if it works, else rays and a warning); ``size`` is
    the side of the square picture in pixels, by default 256 with EGL and 128 with rays. For many
    scenes in turn share one ``context``, which outlives the camera. Geoms of the groups ``hidden``
    are not drawn. UserError: the renderer or the size is not available.
    """

    def __init__(
        self,
        scene: Scene,
        renderer: str = "auto",
        size: int | None = None,
        shadows: bool = True,
        context: GlContext | None = None,
        hidden: tuple[int, ...] = ROBOT_GROUPS,
    ) -> None:
        super().__init__()
        if renderer not in RENDERERS:
            raise UserError(
                f"renderer {renderer!r} is not known; choose one of {', '.join(RENDERERS)}"
            )
        if size is not None and not 16 <= size <= MAX_SIZE:
            raise UserError(
                f"a picture of {size} pixels a side cannot be had; give 16 to {MAX_SIZE}"
            )
        if renderer == "egl" and no_gl_because:
            raise UserError(
                f"renderer egl cannot be had: {no_gl_because}; use rays, which needs no GL"
            )
        self.scene = scene
        self.renderer = "rays" if renderer == "rays" or no_gl_because else "egl"
        self._data = mujoco.MjData(scene.model)
        mujoco.mj_forward(scene.model, self._data)
        self._painter: GlPainter | None = None
        if self.renderer == "egl":
            try:
                if context is None:
                    context = self.enter_context(closing(GlContext(size or 256)))
                painter = GlPainter(scene, self._data, context, shadows, hidden)
                self.callback(painter.close)
                if not context.has_drawn:
                    start = eye_at(scene.room.start)
                    painter.paint(start.position, start.axes, 16, FIELD_OF_VIEW)
                self._painter = painter
            except Exception as error:  # whatever a GL driver may raise
                self.close()
                if renderer == "egl":
                    raise UserError(f"renderer egl failed to start ({error}); use rays") from error
                warn_of_rays(str(error))
                self.renderer = "rays"
        self.size = size or (256 if self.renderer == "egl" else 128)
        self._directions = pixel_rays(self.size)
        self._caster = RayCaster(scene, self._data, shadows, hidden)

    def place(self, posture: Sequence[float]) -> None:
        """Set people, and a robot with legs, to a ``posture_of`` another simulation."""
        data, people = self._data, self._data.mocap_pos.shape[0]
        moved = np.reshape(posture[: 7 * people], (people, 7))
        data.mocap_pos[:], data.mocap_quat[:] = moved[:, :3], moved[:, 3:]
        joints = posture[7 * people :]
        if len(joints) == len(data.qpos):
            data.qpos[:] = joints
        mujoco.mj_forward(self.scene.model, data)
        if self._painter is not None:
            self._painter.update()

    def render(self, eye: Eye) -> np.ndarray:
        """The picture uint8 [size, size, 3], RGB."""
        if self._painter is not None:
            return self._painter.paint(eye.position, eye.axes, self.size, FIELD_OF_VIEW)
        return self.look(eye)[0]

    def segment(self, eye: Eye) -> np.ndarray:
        """The index into ``room.things`` of each pixel, or -1: int32 [size, size]; always by
        rays."""
        geoms = self._caster.cast(eye.position, self._directions @ eye.axes.T)[0]
        return self._things(geoms)

    def look(self, eye: Eye) -> tuple[np.ndarray, np.ndarray]:
        """Picture and segmentation together, which by rays cost no more than the picture."""
        if self._painter is not None:
            return self.render(eye), self.segment(eye)
        image, geoms = self._caster.shade(eye.position, self._directions @ eye.axes.T)
        return image.reshape(self.size, self.size, 3), self._things(geoms)

    def _things(self, geoms: np.ndarray) -> np.ndarray:
        things = np.where(geoms >= 0, self.scene.thing_of_geom[geoms], -1)
        return things.astype(np.int32).reshape(self.size, self.size)


def posture_of(data: Any) -> list[float]:
    """The positions and orientations of all people, then the robot's joints."""
    people = np.concatenate([data.mocap_pos, data.mocap_quat], 1).ravel()
    return [*people.tolist(), *data.qpos.tolist()]


@lru_cache(maxsize=8)
def warn_of_rays(reason: str) -> None:
    """Log once per process that pictures are ray cast, and why."""
    log.warning("EGL opens but cannot draw (%s); pictures are ray cast, which is slower", reason)


def pixel_rays(size: int) -> np.ndarray:
    """Unit directions [size * size, 3] of the pixels' centres, as (forward, left, up)."""
    step = (np.arange(size) + 0.5) / size * 2 - 1
    across, down = np.meshgrid(step, step)
    half = math.tan(FIELD_OF_VIEW / 2)
    rays = np.stack([np.ones_like(across), -half * across, -half * down], -1).reshape(-1, 3)
    return np.asarray(rays / np.linalg.norm(rays, axis=1, keepdims=True))


def encode_jpeg(image: np.ndarray, quality: int = 85) -> bytes:
    """Encode an RGB picture uint8 [H, W, 3] as JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def decode_jpeg(jpeg: bytes) -> np.ndarray:
    """Decode a JPEG to RGB uint8 [H, W, 3]; ValueError if it is not one."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
            return np.array(image.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError("the bytes are not a JPEG picture") from error
