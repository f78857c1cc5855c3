"""Renders pictures through OpenGL (EGL), with one GL context for many scenes.

Opening a context takes some 80 ms and uploading a scene 3 ms, so for many rooms in turn the context
is kept. Both belong to the thread that made them.
"""

from __future__ import annotations

import math

import numpy as np

from .engine import gl_context_class, mujoco
from .scene import Scene

_NEAR, _FAR = 0.02, 25.0  # metres
_GEOMS = 1000


class GlContext:
    """An off-screen GL context of this thread for pictures of up to ``size`` x ``size`` pixels."""

    def __init__(self, size: int) -> None:
        self.has_drawn = False
        self._context = gl_context_class(size, size)

    def activate(self) -> None:
        """Make this the thread's current context."""
        self._context.make_current()

    def close(self) -> None:
        """Free the context; close the scenes drawn through it first."""
        self._context.free()


class GlPainter:
    """Draws one scene through a context; ``close`` frees the scene's GL objects."""

    def __init__(
        self,
        scene: Scene,
        data: mujoco.MjData,
        context: GlContext,
        shadows: bool,
        hidden: tuple[int, ...],
    ) -> None:
        context.activate()
        self._model, self._data, self._gl = scene.model, data, context
        self._context = mujoco.MjrContext(scene.model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(scene.model, _GEOMS)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = shadows
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._options = mujoco.MjvOption()
        self._options.geomgroup[:] = 1
        self._options.geomgroup[list(hidden)] = 0
        self.update()

    def update(self) -> None:
        """Draw the simulation's present state from now on."""
        mujoco.mjv_updateScene(
            self._model,
            self._data,
            self._options,
            None,
            mujoco.MjvCamera(),
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )

    def paint(
        self, position: np.ndarray, axes: np.ndarray, size: int, field_of_view: float
    ) -> np.ndarray:
        """The picture uint8 [size, size, 3] from ``position`` [3]; ``axes`` [3, 3] are Eye's."""
        self._gl.activate()
        half = _NEAR * math.tan(field_of_view / 2)
        # MuJoCo's own camera objects know no roll, so its two stereo cameras are set directly
        for camera in self._scene.camera:
            camera.pos[:] = position
            camera.forward[:] = axes[:, 0]
            camera.up[:] = axes[:, 2]
            camera.frustum_near, camera.frustum_far = _NEAR, _FAR
            camera.frustum_center, camera.frustum_width = 0, 0
            camera.frustum_top, camera.frustum_bottom = half, -half
        # the fill light shines from the camera
        for i in range(self._scene.nlight):
            light = self._scene.lights[i]
            if light.headlight:
                light.pos[:] = position
                light.dir[:] = axes[:, 0]
        view = mujoco.MjrRect(0, 0, size, size)
        image = np.empty((size, size, 3), np.uint8)
        mujoco.mjr_render(view, self._scene, self._context)
        mujoco.mjr_readPixels(image, None, view, self._context)
        if not self._gl.has_drawn:
            # the light at the camera leaves no room black from edge to edge
            if not image.any():
                raise RuntimeError("GL drew a picture without light")
            self._gl.has_drawn = True
        return image[::-1].copy()

    def close(self) -> None:
        """Free the scene's GL objects."""
        self._gl.activate()
        self._context.free()
