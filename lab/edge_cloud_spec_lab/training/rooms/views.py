"""Views of furnished rooms from a robot on its way, with the action that is right at each.

First the expert drives; then the model does, and the expert says what would have been right
(DAgger: Ross, Gordon and Bagnell, AISTATS 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from edge_cloud_spec.dialects import ours
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import (
    FREE_SPACE_PLACE,
    INSTRUCTION_PLACE,
    ORDER_PLACE,
    ORDERS,
    action_of,
)
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.free_space import FreeSpace
from edge_cloud_spec.nav.mission import MissionSettings
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import WAYS

from ...sim.bases import free_space_of
from ...sim.camera import Camera, decode_jpeg, encode_jpeg, eye_at
from ...sim.furniture import make_furnished
from ...sim.kinds import THING_KINDS
from ...sim.reach import thing_in_front
from ...sim.room import Room
from ...sim.scene import Scene
from ...sim.view import (
    VIEW_PX,
    class_grid,
    expose,
    halved,
    open_gl,
    sample_pose,
    visible_things,
)
from ...sim.world import World
from ...tokens import ANSWER_TOKENS
from ..flats.episodes import EXPERT_ANSWER_SHARES, RANDOM_ACTION_SHARES, SEGMENTED_PX
from ..rendered import make_files
from ..tiny.data import Views
from ..tiny.evaluation import greedy_answers
from ..tiny.language import askable, visible
from .expert import ACTIONS, RoomExpert, carried_out

ROOMS_PER_FILE = 20
MOST_ROOM_FRAMES = 45  # of a mission
ELSEWHERE_SHARE = 0.25  # of the missions begin anywhere
TOLD = replace(ours(), user_text=f"{INSTRUCTION_PLACE}\n{FREE_SPACE_PLACE}\n{ORDER_PLACE}")
"""The dialect in which it is told how far a lidar sees free space."""

_LIDAR = NavigatorSettings(obstacles=ObstacleSettings(scan="scan"))
_RANDOM = [f"turn {side} {size}" for side in ("left", "right") for size in ("small", "medium")]
_RANDOM += ["move forward small", "move forward medium", "search"]


@dataclass(frozen=True)
class RoomViews(Views):
    """Views of furnished rooms: ``goal`` int8 [N], the kind that the robot was sent to, and
    ``actions`` int8 [N], an index into ACTIONS of the one that is right there. ``spaces`` float64
    [N, 4]: how far a lidar says that it may go, m, as FreeSpace has it."""

    goal: np.ndarray
    actions: np.ndarray
    spaces: np.ndarray

    def target(self, index: int) -> str:
        """What the robot was sent to."""
        return THING_KINDS[int(self.goal[index])]

    def action(self, index: int, mirrored: bool) -> str:
        """The action that is right."""
        action = ACTIONS[int(self.actions[index])]
        if not mirrored:
            return action
        swapped = {"left": "right", "right": "left"}
        return " ".join(swapped.get(word, word) for word in action.split())

    def space(self, index: int, mirrored: bool) -> str:
        """What a prompt tells of the free space."""
        return _words_of(self.spaces[index][[0, 2, 1, 3] if mirrored else slice(None)])


def _words_of(space: np.ndarray) -> str:
    ahead, left, right, behind = (float(metres) for metres in space)
    return FreeSpace(ahead, left, right, behind).words


def together(parts: Sequence[RoomViews]) -> RoomViews:
    """All of these views."""
    names = [field.name for field in fields(RoomViews)]
    return RoomViews(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


class _Eyes(ExitStack):
    """The cameras of one room, what paints and what measures; and a lidar."""

    def __init__(self, room: Room, painter: Camera, measurer: Camera) -> None:
        super().__init__()
        self.room, self._world = room, World(measurer.scene)
        self.painter, self.measurer = self.enter_context(painter), self.enter_context(measurer)

    def look(
        self, pose: Pose, expert: RoomExpert, rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], bool]:
        """A row of RoomViews' arrays, and whether the target can be asked for there."""
        pitch, roll = (float(v) for v in np.clip(rng.normal(0, 0.02, 2), -0.06, 0.06))
        eye = eye_at(pose, pitch, roll, float(rng.normal(0, 0.005)))
        segmented = self.measurer.segment(eye)
        image = expose(self.painter.render(eye), rng)
        image = halved(decode_jpeg(encode_jpeg(image, int(rng.integers(70, 96)))))
        things = visible_things(self.room, eye, segmented)
        row = {
            "images": image,
            "classes": class_grid(self.room, segmented),
            "pixels": np.zeros(len(THING_KINDS), np.int32),
            "bearing": np.full(len(THING_KINDS), np.nan, np.float32),
            "distance": np.full(len(THING_KINDS), np.nan, np.float32),
            "goal": np.array(THING_KINDS.index(self.room.target), np.int8),
        }
        for thing in things:
            k = THING_KINDS.index(thing.name)
            row["pixels"][k], row["bearing"][k] = thing.pixels, thing.bearing
            row["distance"][k] = thing.distance
        action = expert.decide(pose, self.room.target, visible(things))
        row["actions"] = np.array(ACTIONS.index(action), np.int8)
        space = free_space_of(pose, self._world, _LIDAR)
        row["spaces"] = np.array([getattr(space, way) for way in WAYS])
        return row, self.room.target in askable(things)


class _Decider:
    """A model that decides by one frame."""

    def __init__(self, vlm: Vlm) -> None:
        self._vlm, self._spec = vlm, vlm.spec(ANSWER_TOKENS)

    def action(self, image: np.ndarray, instruction: str, space: str) -> str:
        """The action of its greedy answer; empty: it has none."""
        jpeg = encode_jpeg(image, 95)
        request = TOLD.request(instruction, jpeg, ORDERS[0], free_space=space)
        (ids,) = greedy_answers(self._vlm, [request], self._spec)
        said = str(self._vlm.tokenizer.decode(ids, skip_special_tokens=True))
        return str(action_of(said) or "")


def write_room_views(
    path: Path, seed: int, count: int, renderer: str, model: Path | None = None
) -> None:
    """Views of ``count`` missions in furnished rooms that no benchmark has, as one npz file.

    model: the checkpoint that decides; None: the expert does. ``arrived`` counts missions.
    """
    decider = None if model is None else _Decider(load(str(model), threads=1))
    rows: list[dict[str, np.ndarray]] = []
    arrived = 0
    context = open_gl(renderer)
    for number in range(count):
        rng = np.random.default_rng((seed, number, 0xF0E5))
        room = make_furnished(2**31 + seed * 1000 + number)
        scene, shadows = Scene(room), bool(rng.random() < 0.7)
        if context is not None and (renderer == "egl" or rng.random() < 0.75):
            painter = Camera(scene, "egl", 2 * VIEW_PX, shadows, context)
        else:
            painter = Camera(scene, "rays", VIEW_PX, shadows)
        with _Eyes(room, painter, Camera(scene, "rays", SEGMENTED_PX, shadows)) as eyes:
            arrived += _drive(eyes, decider, rng, rows)
    if context is not None:
        context.close()
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    np.savez(path, arrived=np.array([arrived, count]), **arrays)  # type: ignore[arg-type]


def _drive(
    eyes: _Eyes,
    decider: _Decider | None,
    rng: np.random.Generator,
    rows: list[dict[str, np.ndarray]],
) -> bool:
    """Drive to the target of a room, and append what is seen; returns whether it was reached."""
    room, limits = eyes.room, MissionSettings()
    expert = RoomExpert(room)
    pose = sample_pose(room, rng) if rng.random() < ELSEWHERE_SHARE else room.start
    shares = RANDOM_ACTION_SHARES if decider is None else EXPERT_ANSWER_SHARES
    share = float(rng.choice(shares))
    blocked = searched = 0
    for _ in range(MOST_ROOM_FRAMES):
        row, clear = eyes.look(pose, expert, rng)
        right = ACTIONS[int(row["actions"])]
        if clear:
            rows.append(row)
        if decider is None:
            taken = right
            if right != "stop" and rng.random() < share:
                taken = str(rng.choice(_RANDOM))
        elif rng.random() < share:
            taken = right
        else:
            taken = decider.action(row["images"], room.instruction, _words_of(row["spaces"]))
        if taken in ("stop", ""):
            return taken == "stop" and thing_in_front(room, pose) == room.target
        pose, arrived = carried_out(expert, pose, room.target, taken, rng)
        blocked = 0 if arrived else blocked + 1
        searched = searched + 1 if taken == "search" else 0
        if blocked >= limits.blocked_after or searched >= limits.search_frames:
            break
    return False


def make_room_views(
    folder: Path, seed: int, count: int, processes: int, model: Path | None = None
) -> RoomViews:
    """Views of ``count`` missions, rendered into files in ``folder`` unless they exist."""
    kind = "expert" if model is None else "driven"
    write = partial(write_room_views, model=model)
    files = make_files(write, folder, kind, seed, count, ROOMS_PER_FILE, "mixed", processes)
    parts, counts = [], np.zeros(2, int)
    for file in files:
        with np.load(file) as stored:
            parts.append(RoomViews(*(stored[field.name] for field in fields(RoomViews))))
            counts += stored["arrived"]
    views = together(parts)
    print(f"{kind} {seed}: {counts[0]} of {counts[1]} arrived, {len(views)} views", flush=True)
    return views
