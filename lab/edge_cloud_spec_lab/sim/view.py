"""Views for training and evaluation: a camera's picture and the things that are really in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.pose import wrap

from .camera import FIELD_OF_VIEW, Camera, Eye, decode_jpeg, encode_jpeg, eye_at, warn_of_rays
from .engine import no_gl_because
from .gl import GlContext
from .kinds import THING_KINDS
from .room import Pose, Room, make_room
from .scene import Scene
from .thing import Thing, VisibleThing

VIEW_PX = 128
"""Pixels a side at which things are counted, whatever the size of the picture."""

VIEW_GRID = 16
_MIN_CELL = 4  # pixels of a 8 x 8 cell from which on the cell belongs to a thing
_VIEWS_PER_ROOM = 12


@dataclass(frozen=True)
class View:
    """A picture uint8 [128, 128, 3], the nameable things in view, and classes int8 [16, 16].

    A cell's class is 0 for nothing nameable, else 1 + the index in THING_KINDS of what fills most
    of it.
    """

    image: np.ndarray
    things: tuple[VisibleThing, ...]
    classes: np.ndarray


def visible_things(room: Room, eye: Eye, things: np.ndarray) -> tuple[VisibleThing, ...]:
    """The nameable things in a segmentation int [n, n] (indices into ``room.things``, or -1)."""
    seen = visible_parts(room.things, eye, things)
    return tuple(part for part in seen.values() if part.name in THING_KINDS)


def visible_parts(
    things: tuple[Thing, ...], eye: Eye, segmentation: np.ndarray
) -> dict[int, VisibleThing]:
    """What a segmentation int [n, n] shows of each thing, by its index."""
    size = len(segmentation)
    seen = {}
    for i, thing in enumerate(things):
        rows, columns = np.nonzero(segmentation == i)
        if not len(rows):
            continue
        half = math.tan(FIELD_OF_VIEW / 2)
        across = (1 - (2 * columns.mean() + 1) / size) * half
        up = (1 - (2 * rows.mean() + 1) / size) * half
        x, y, _ = eye.axes @ np.array([1.0, across, up])
        seen[i] = VisibleThing(
            thing.name,
            max(1, round(len(rows) * (VIEW_PX / size) ** 2)),
            math.degrees(wrap(math.atan2(y, x) - eye.yaw)),
            thing.distance(eye.x, eye.y),
        )
    return seen


def class_grid(room: Room, things: np.ndarray) -> np.ndarray:
    """Classes int8 [16, 16] of a segmentation int [n, n]."""
    size = len(things)
    cell = size // VIEW_GRID
    kinds = np.array(
        [THING_KINDS.index(t.name) + 1 if t.name in THING_KINDS else 0 for t in room.things] + [0]
    )
    classes = (
        kinds[things]
        .reshape(VIEW_GRID, cell, VIEW_GRID, cell)
        .swapaxes(1, 2)
        .reshape(VIEW_GRID, VIEW_GRID, -1)
    )
    counts = np.stack([(classes == k).sum(-1) for k in range(1, len(THING_KINDS) + 1)], -1)
    enough = counts.max(-1) >= _MIN_CELL * (size / VIEW_PX) ** 2
    return np.where(enough, counts.argmax(-1) + 1, 0).astype(np.int8)


def sample_views(seed: int, count: int, renderer: str = "mixed") -> Iterator[View]:
    """``count`` views of many rooms as a walking robot's camera sees them; determined by the seed.

    ``renderer`` is "egl", "rays" or "mixed" (EGL for three of four rooms, if it works). Poses are
    biased so that every nameable thing is seen near, midway and far, on both sides and ahead.
    Pictures differ in shadows, exposure, contrast, sensor noise and JPEG quality (60 to 95, at the
    published size).
    """
    rng = np.random.default_rng((seed, 0x71E3))
    context = open_gl(renderer)
    with closing(context) if context is not None else nullcontext():
        for start in range(0, count, _VIEWS_PER_ROOM):
            # rooms of episodes have seeds below 2**31; training has others
            room = make_room(int(rng.integers(2**31, 2**32)))
            use_gl = context is not None and (renderer == "egl" or rng.random() < 0.75)
            shadows = bool(rng.random() < 0.7)
            scene = Scene(room)
            caster = Camera(scene, "rays", VIEW_PX, shadows)
            with Camera(scene, "egl", 256, shadows, context) if use_gl else caster as painter:
                for _ in range(min(_VIEWS_PER_ROOM, count - start)):
                    yield _one_view(room, caster, painter, rng)


def open_gl(renderer: str) -> GlContext | None:
    """A working GL context; None for rays, and for "mixed" without one."""
    if renderer not in ("egl", "mixed") or (renderer == "mixed" and no_gl_because):
        return None
    try:
        # known before the first draw from the seed: without GL the views are those of "rays"
        Camera(Scene(make_room(0)), "egl").close()
    except UserError as error:
        if renderer == "egl":
            raise
        warn_of_rays(str(error.__cause__ or error))
        return None
    return GlContext(256)


def _one_view(room: Room, caster: Camera, painter: Camera, rng: np.random.Generator) -> View:
    pitch, roll = (float(v) for v in np.clip(rng.normal(0, math.radians(1.6), 2), -0.09, 0.09))
    eye = eye_at(sample_pose(room, rng), pitch, roll, float(rng.normal(0, 0.006)))
    if painter is caster:
        image, things = caster.look(eye)
    else:
        image, things = painter.render(eye), caster.segment(eye)
    image = decode_jpeg(encode_jpeg(expose(image, rng), int(rng.integers(60, 96))))
    return View(halved(image), visible_things(room, eye, things), class_grid(room, things))


def halved(image: np.ndarray) -> np.ndarray:
    """A picture uint8 [n, n, 3] with VIEW_PX pixels a side."""
    return np.array(Image.fromarray(image).resize((VIEW_PX, VIEW_PX), Image.Resampling.BOX))


def expose(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The picture as a camera of another exposure, contrast, colour and noise takes it."""
    gain = float(rng.uniform(0.8, 1.2))
    gamma = float(rng.uniform(0.85, 1.15))
    balance = rng.uniform(0.96, 1.04, 3)
    scale = np.linspace(0, 1, 256)
    table = np.clip(255 * gain * balance[:, None] * scale**gamma, 0, 255).astype(np.uint8)
    image = np.array(Image.fromarray(image).point(table.ravel().tolist()))
    if rng.random() < 0.4:
        noise = rng.standard_normal(image.shape, np.float32) * float(rng.uniform(1, 5))
        image = np.clip(image + noise, 0, 255).astype(np.uint8)
    return image


def sample_pose(room: Room, rng: np.random.Generator) -> Pose:
    """A random free pose: one in six anywhere, else at a random distance and bearing from a random
    thing."""
    if rng.random() < 1 / 6:
        return _free_pose(room, rng, toward=False)
    poses = [_free_pose(room, rng, toward=True) for _ in range(2)]
    # half of them the fuller of two, so that several things in one picture are not rare
    return max(poses, key=lambda p: _in_front(room, p)) if rng.random() < 0.5 else poses[0]


def _free_pose(room: Room, rng: np.random.Generator, toward: bool) -> Pose:
    for _ in range(60):
        if toward:
            pose = _pose_toward(room, rng)
        else:
            x, y = (float(rng.uniform(-0.5, 0.5)) * side for side in room.size)
            pose = Pose(x, y, float(rng.uniform(-math.pi, math.pi)))
        if _is_free(room, pose):
            return pose
    return room.start


def _in_front(room: Room, pose: Pose) -> int:
    eye = eye_at(pose)
    return sum(abs(t.bearing(eye.x, eye.y, eye.yaw)) < math.radians(28) for t in room.things)


def _pose_toward(room: Room, rng: np.random.Generator) -> Pose:
    named = [t for t in room.things if t.name in THING_KINDS]
    thing = named[rng.integers(len(named))]
    low, high = ((0.3, 1.3), (1.3, 2.4), (2.4, 4.6))[rng.integers(3)]
    distance = float(rng.uniform(low, high)) + min(thing.half)
    if thing.name.endswith("door"):
        angle = thing.yaw + float(rng.uniform(-1.1, 1.1))
    else:
        angle = float(rng.uniform(-math.pi, math.pi))
    bearing = math.radians(
        float(rng.uniform(-7, 7) if rng.random() < 0.2 else rng.uniform(-32, 32))
    )
    eye = (thing.x + distance * math.cos(angle), thing.y + distance * math.sin(angle))
    yaw = angle + math.pi - bearing
    middle = eye_at(Pose(0, 0, yaw))
    return Pose(eye[0] - middle.x, eye[1] - middle.y, yaw)


def _is_free(room: Room, pose: Pose) -> bool:
    """Whether body and camera are clear of walls, things, and people where they begin."""
    eye = eye_at(pose)
    solid = (*room.things, *room.furniture, *(walker.shape for walker in room.walkers))
    for x, y, gap in ((pose.x, pose.y, 0.2), (eye.x, eye.y, 0.1)):
        if abs(x) > room.size[0] / 2 - gap or abs(y) > room.size[1] / 2 - gap:
            return False
        if any(t.distance(x, y) < gap for t in solid):
            return False
    return True


def pack(views: Iterator[View], count: int) -> dict[str, np.ndarray]:
    """``count`` views as arrays: images uint8 [n, 128, 128, 3], classes int8 [n, 16, 16], pixels
    int32, bearing (degrees) and distance (m) float32 [n, kinds]; 0 and NaN where not in view."""
    arrays: dict[str, np.ndarray] = {
        "images": np.empty((count, VIEW_PX, VIEW_PX, 3), np.uint8),
        "classes": np.empty((count, VIEW_GRID, VIEW_GRID), np.int8),
        "pixels": np.zeros((count, len(THING_KINDS)), np.int32),
        "bearing": np.full((count, len(THING_KINDS)), np.nan, np.float32),
        "distance": np.full((count, len(THING_KINDS)), np.nan, np.float32),
    }
    for i, view in enumerate(views):
        arrays["images"][i], arrays["classes"][i] = view.image, view.classes
        for seen in view.things:
            k = THING_KINDS.index(seen.name)
            arrays["pixels"][i, k] = seen.pixels
            arrays["bearing"][i, k] = seen.bearing
            arrays["distance"][i, k] = seen.distance
    return arrays


def write_views(path: Path, seed: int, count: int, renderer: str) -> Path:
    """Sample views into one npz file of ``pack``'s arrays."""
    arrays = pack(sample_views(seed, count, renderer), count)
    # savez types its one option, allow_pickle, as if it were any keyword
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
