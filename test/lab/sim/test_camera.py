"""The camera: two renderers, one picture; what is said about a view is true of it."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from edge_cloud_spec.errors import UserError
from edge_cloud_spec_lab.sim.camera import Camera, Eye, decode_jpeg, encode_jpeg, eye_at
from edge_cloud_spec_lab.sim.engine import no_gl_because
from edge_cloud_spec_lab.sim.kinds import THING_KINDS
from edge_cloud_spec_lab.sim.room import Pose, Room, make_room
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.view import pack, sample_views, visible_things, write_views

needs_gl = pytest.mark.skipif(no_gl_because is not None, reason=str(no_gl_because))


def facing_target(room: Room, beside: float = 0.0) -> Pose:
    target = room.thing(room.target)
    yaw = math.atan2(target.y - room.start.y, target.x - room.start.x) - beside
    return Pose(room.start.x, room.start.y, yaw)


def shrink(image: np.ndarray) -> np.ndarray:
    """Means of 8 x 8 blocks of a 128 x 128 picture: edges do not matter, colours do."""
    return image.reshape(16, 8, 16, 8, 3).mean((1, 3))


@needs_gl
@pytest.mark.parametrize("seed", range(6))
def test_both_renderers_draw_the_same_picture(seed: int) -> None:
    room = make_room(seed)
    eye = eye_at(facing_target(room), pitch=0.03, roll=-0.05)
    scene = Scene(room)
    with Camera(scene, "egl", 128) as egl, Camera(scene, "rays", 128) as rays:
        one, other = egl.render(eye), rays.render(eye)
        assert one.shape == other.shape == (128, 128, 3)
        assert one.dtype == other.dtype == np.uint8
        assert np.abs(shrink(one) - shrink(other)).mean() < 6
        turned = rays.render(eye_at(facing_target(room, 0.3)))
        assert np.abs(shrink(one) - shrink(turned)).mean() > 6, "the measure sees nothing"


@needs_gl
def test_segmentation_fits_the_picture_of_either_renderer() -> None:
    room = make_room(2, "red box")
    eye = eye_at(facing_target(room), roll=0.06)
    scene = Scene(room)
    with Camera(scene, "egl", 128) as egl, Camera(scene, "rays", 128) as rays:
        assert (egl.segment(eye) == rays.segment(eye)).all()
        mask = egl.segment(eye) == room.things.index(room.thing("red box"))
        for image in (egl.render(eye).astype(int), rays.render(eye).astype(int)):
            red = (image[..., 0] > 2 * image[..., 1]) & (image[..., 0] > 2 * image[..., 2])
            assert mask.sum() > 100
            assert (mask & red).sum() / (mask & ~red | red & mask).sum() > 0.9


# Neither a screen nor a choice of the user: MuJoCo then takes GLFW.
HIDDEN = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
HEADLESS = {key: value for key, value in os.environ.items() if key not in HIDDEN}
NO_GL = {"MUJOCO_GL": "disable", "PATH": "", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("before", "renderer", "env", "said"),
    [
        ("", "auto", NO_GL, "rays (128, 128, 3)\nUserError renderer egl cannot be had: "),
        pytest.param("import mujoco", "egl", HEADLESS, "egl (256, 256, 3)\n", marks=needs_gl),
    ],
    ids=["rays need no GL", "EGL draws where other code imported MuJoCo before"],
)
def test_a_process_draws_with_what_it_has(
    before: str, renderer: str, env: dict[str, str], said: str
) -> None:
    code = f"""{before}
from edge_cloud_spec_lab.sim.camera import Camera, eye_at
from edge_cloud_spec_lab.sim.scene import Scene
from edge_cloud_spec_lab.sim.room import make_room
room = make_room(0)
camera = Camera(Scene(room), {renderer!r})
print(camera.renderer, camera.render(eye_at(room.start)).shape)
try: Camera(Scene(room), 'egl')
except Exception as error: print(type(error).__name__, error)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout.startswith(said), done.stderr


def test_an_unknown_renderer_or_size_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="'vulkan'"):
        Camera(Scene(make_room(0)), "vulkan")
    with pytest.raises(UserError, match="4096 pixels"):
        Camera(Scene(make_room(0)), "rays", 4096)


@pytest.mark.parametrize("seed", range(8))
def test_bearing_and_distance_are_what_geometry_says(seed: int) -> None:
    room = make_room(seed, "yellow ball")
    ball = room.thing("yellow ball")
    pose = facing_target(room, beside=math.radians(12))
    eye = eye_at(pose, pitch=0.05, roll=0.08)
    with Camera(Scene(room), "rays", 128) as camera:
        seen = {s.name: s for s in visible_things(room, eye, camera.segment(eye))}["yellow ball"]
    assert seen.bearing == pytest.approx(math.degrees(ball.bearing(eye.x, eye.y, eye.yaw)), abs=0.7)
    assert seen.distance == pytest.approx(ball.distance(eye.x, eye.y))
    assert seen.pixels >= 40


def test_left_is_left_and_up_is_up() -> None:
    room = make_room(0, "red box")
    scene = Scene(room)
    target = room.things.index(room.thing("red box"))
    with Camera(scene, "rays", 128) as camera:
        level = camera.segment(eye_at(facing_target(room))) == target
        to_left = camera.segment(eye_at(facing_target(room, beside=0.3))) == target
        pitched = camera.segment(eye_at(facing_target(room), pitch=0.1)) == target
        rolled = camera.segment(eye_at(facing_target(room, beside=0.3), roll=0.2)) == target
    rows, columns = (axis.mean() for axis in np.nonzero(level))
    assert np.nonzero(to_left)[1].mean() < columns - 20
    assert np.nonzero(pitched)[0].mean() > rows + 8, "nose up: things sink in the picture"
    rolled_row, row = np.nonzero(rolled)[0].mean(), np.nonzero(to_left)[0].mean()
    assert rolled_row > row + 5, "head tilted to the right: what is on the left sinks"


def test_views_are_the_same_for_a_seed_and_differ_by_seed() -> None:
    first, again, other = (pack(sample_views(seed, 14, "rays"), 14) for seed in (4, 4, 5))
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
    assert (first["images"] != other["images"]).any()


def test_what_a_view_says_agrees_with_itself(tmp_path) -> None:
    count = 60
    with np.load(write_views(tmp_path / "views.npz", 9, count, "rays")) as shard:
        views = dict(shard)
    assert views["images"].shape == (count, 128, 128, 3)
    unseen = views["pixels"] == 0
    assert np.isnan(views["bearing"][unseen]).all()
    assert np.isfinite(views["bearing"][~unseen]).all()
    assert np.abs(views["bearing"][~unseen]).max() < 45
    assert views["distance"][~unseen].min() > 0.05
    for k in range(len(THING_KINDS)):
        cells = (views["classes"] == k + 1).sum((1, 2))
        assert (cells[unseen[:, k]] == 0).all()
        assert (cells[views["pixels"][:, k] >= 100] > 0).all()


def test_jpeg_goes_there_and_back_and_garbage_is_refused() -> None:
    room = make_room(0)
    with Camera(Scene(room), "rays", 64) as camera:
        image = camera.render(Eye(room.start.x, room.start.y, 0.35, 0.3))
    back = decode_jpeg(encode_jpeg(image, 95))
    assert np.abs(back.astype(int) - image).mean() < 4
    with pytest.raises(ValueError, match="not a JPEG"):
        decode_jpeg(b"\xff\xd8 nothing")
