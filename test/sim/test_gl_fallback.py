"""EGL that opens and does not draw: "auto" says so once and casts rays, "egl" is refused."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.sim import camera as camera_module
from edge_cloud_spec.lab.sim import gl
from edge_cloud_spec.lab.sim import view as view_module
from edge_cloud_spec.lab.sim.camera import Camera, eye_at, warn_of_rays
from edge_cloud_spec.lab.sim.engine import mujoco, no_gl_because
from edge_cloud_spec.lab.sim.room import make_room
from edge_cloud_spec.lab.sim.scene import Scene
from edge_cloud_spec.lab.sim.view import pack, sample_views

needs_gl = pytest.mark.skipif(no_gl_because is not None, reason=str(no_gl_because))

Break = Callable[[pytest.MonkeyPatch], str]


def no_context(patch: pytest.MonkeyPatch) -> str:
    def broken(*_: int) -> None:
        raise RuntimeError("no context")

    patch.setattr(gl, "gl_context_class", broken)
    return "no context"


def no_functions(patch: pytest.MonkeyPatch) -> str:
    def broken(*_: Any) -> None:
        raise mujoco.FatalError("gladLoadGL error")

    patch.setattr(mujoco, "MjrContext", broken)
    return "gladLoadGL error"


def no_picture(patch: pytest.MonkeyPatch) -> str:
    def broken(*_: Any) -> None:
        raise mujoco.FatalError("the driver gave up")

    patch.setattr(mujoco, "mjr_render", broken)
    return "the driver gave up"


def black_picture(patch: pytest.MonkeyPatch) -> str:
    def broken(image: np.ndarray, *_: Any) -> None:
        image[:] = 0

    patch.setattr(mujoco, "mjr_readPixels", broken)
    return "without light"


broken_gl = pytest.mark.parametrize(
    "break_gl",
    [
        no_context,
        pytest.param(no_functions, marks=needs_gl),
        pytest.param(no_picture, marks=needs_gl),
        pytest.param(black_picture, marks=needs_gl),
    ],
)


@pytest.fixture(autouse=True)
def egl_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (camera_module, view_module):
        monkeypatch.setattr(module, "no_gl_because", None)
    warn_of_rays.cache_clear()


@broken_gl
def test_auto_casts_rays_and_says_why_once(
    break_gl: Break, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reason = break_gl(monkeypatch)
    room = make_room(0)
    for _ in range(2):
        with Camera(Scene(room), "auto") as camera:
            assert camera.renderer == "rays"
            assert camera.render(eye_at(room.start)).shape == (128, 128, 3)
    (said,) = caplog.messages
    assert reason in said and "ray cast" in said


@broken_gl
def test_a_chosen_egl_that_does_not_draw_is_refused(
    break_gl: Break, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = break_gl(monkeypatch)
    with pytest.raises(UserError, match=reason):
        Camera(Scene(make_room(0)), "egl")
    with pytest.raises(UserError, match=reason):
        next(sample_views(4, 1, "egl"))
    assert not caplog.messages


@broken_gl
def test_mixed_views_are_then_those_of_rays(
    break_gl: Break, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = break_gl(monkeypatch)
    mixed, rays = (pack(sample_views(4, 3, renderer), 3) for renderer in ("mixed", "rays"))
    assert all(np.array_equal(mixed[k], rays[k], equal_nan=True) for k in rays if k != "classes")
    (said,) = caplog.messages
    assert reason in said


@needs_gl
def test_egl_draws_where_other_code_imported_mujoco_before() -> None:
    code = (
        "import mujoco\n"
        "from edge_cloud_spec.lab.sim.camera import Camera, eye_at\n"
        "from edge_cloud_spec.lab.sim.scene import Scene\n"
        "from edge_cloud_spec.lab.sim.room import make_room\n"
        "room = make_room(0)\n"
        "camera = Camera(Scene(room), 'egl')\n"
        "print(camera.renderer, camera.render(eye_at(room.start)).shape)\n"
    )
    # neither a screen nor a choice of the user: MuJoCo then takes GLFW
    hidden = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={k: v for k, v in os.environ.items() if k not in hidden},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "egl (256, 256, 3)\n", done.stderr
