"""EGL that opens and does not draw: "auto" says so once and casts rays, "egl" is refused."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edge_cloud_spec.errors import UserError
from edge_cloud_spec_lab.sim import camera as camera_module
from edge_cloud_spec_lab.sim import gl
from edge_cloud_spec_lab.sim import view as view_module
from edge_cloud_spec_lab.sim.camera import Camera, eye_at, warn_of_rays
from edge_cloud_spec_lab.sim.engine import mujoco, no_gl_because
from edge_cloud_spec_lab.sim.room import make_room
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.view import pack, sample_views

needs_gl = pytest.mark.skipif(no_gl_because is not None, reason=str(no_gl_because))


def black(image: np.ndarray, *_: Any) -> None:
    image[:] = 0


BROKEN: dict[str, tuple[Any, str, Any]] = {  # what the driver's user reads, and what does not work
    "no context": (gl, "gl_context_class", RuntimeError("no context")),
    "gladLoadGL error": (mujoco, "MjrContext", mujoco.FatalError("gladLoadGL error")),
    "gave up": (mujoco, "mjr_render", mujoco.FatalError("the driver gave up")),
    "without light": (mujoco, "mjr_readPixels", black),
}


@pytest.fixture(params=["no context", *(pytest.param(b, marks=needs_gl) for b in [*BROKEN][1:])])
def reason(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """EGL opens, and then this is broken."""
    for module in (camera_module, view_module):
        monkeypatch.setattr(module, "no_gl_because", None)
    warn_of_rays.cache_clear()
    where, name, broken = BROKEN[request.param]
    monkeypatch.setattr(where, name, Mock(side_effect=broken))
    return str(request.param)


def test_auto_and_mixed_views_are_of_rays_and_say_why_once(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    room = make_room(0)
    for _ in range(2):
        with Camera(Scene(room), "auto") as camera:
            assert camera.renderer == "rays"
            assert camera.render(eye_at(room.start)).shape == (128, 128, 3)
    mixed, rays = (pack(sample_views(4, 3, renderer), 3) for renderer in ("mixed", "rays"))
    for name, values in rays.items():
        np.testing.assert_array_equal(mixed[name], values)
    (said,) = caplog.messages
    assert reason in said and "ray cast" in said


def test_a_chosen_egl_that_does_not_draw_is_refused(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match=reason):
        Camera(Scene(make_room(0)), "egl")
    with pytest.raises(UserError, match=reason):
        next(sample_views(4, 1, "egl"))
    assert not caplog.messages
