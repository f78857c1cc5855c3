"""Views of furnished rooms from a robot on its way, with the action that is right at each.

First the expert drives; then the model does, and the expert says what would have been right
(DAgger: Ross, Gordon and Bagnell, AISTATS 2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import REASON_FIRST, action_of, parse_action
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.free_space import MOST_TRIED, FreeSpace
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import STOP_AND_GO, NavigatorSettings
from edge_cloud_spec.pilot.memory import MissionMemory

from ...harness.mission.room_mission import RoomMission
from ...sim.bases import free_space_of, sight_of
from ...sim.camera import Camera, decode_jpeg, encode_jpeg, eye_at
from ...sim.furniture import make_furnished
from ...sim.kinds import THING_KINDS
from ...sim.room import Room
from ...sim.scene import Scene
from ...sim.thing import VisibleThing
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
from ..tiny.language import answer, askable, visible
from .expert import ACTIONS, Reach, RoomExpert

ROOMS_PER_FILE = 20
ROOM_LESSON_S = 75.0  # of a mission
SCAN_CYCLES = 3  # of the base for one scan: a lidar of 7 Hz
SEARCH = ACTIONS.index("search")
ELSEWHERE_SHARE = 0.25  # of the missions begin anywhere
TOLD = load_dialect("around")
"""The dialect in which it is told what lidars show, and where it saw the thing."""

ROOM_ROBOT = NavigatorSettings(obstacles=ObstacleSettings(scan="scan"), drive=STOP_AND_GO)
"""A robot with a lidar that stands while it is decided for."""

COST_SOFTNESS = 0.4  # decisions: the more an action costs, the more seldom it is taught
TRIED_COST = 1.6  # decisions, for each time that an action was tried there
_RANDOM = [f"turn {side} {size}" for side in ("left", "right") for size in ("small", "medium")]
_RANDOM += ["move forward small", "move forward medium", "search"]
_SWAPPED = {"left": "right", "right": "left"}
_MIRRORED = [ACTIONS.index(" ".join(_SWAPPED.get(w, w) for w in a.split())) for a in ACTIONS]


@dataclass(frozen=True)
class RoomViews(Views):
    """Views of furnished rooms: ``goal`` int8 [N], the kind that the robot was sent to, and
    ``costs`` float32 [N, A], decisions to it after each of ACTIONS. What a lidar shows: ``around``
    float32 [N, 18], as FreeSpace has it, m, and ``seen`` [N, 2], rad and m, NaN: not yet.
    ``tried`` int8 [N, MOST_TRIED], indices into ACTIONS or -1: what was tried there, which
    ``costs`` count."""

    goal: np.ndarray
    costs: np.ndarray
    around: np.ndarray
    seen: np.ndarray
    tried: np.ndarray

    def target(self, index: int) -> str:
        """What the robot was sent to."""
        return THING_KINDS[int(self.goal[index])]

    def action(self, index: int, mirrored: bool, rng: np.random.Generator) -> str:
        """One of the actions that are right, the better the more often."""
        costs = self.costs[index].astype(float)
        if mirrored:
            costs = costs[_MIRRORED]
            if costs[SEARCH] > 0.0:  # to the left all the same
                costs[SEARCH] = costs[ACTIONS.index("turn left large")]
        weights = np.exp((costs.min() - costs) / COST_SOFTNESS)
        return ACTIONS[int(rng.choice(len(ACTIONS), p=weights / weights.sum()))]

    def told(self, index: int, mirrored: bool) -> str:
        """What a prompt tells of the lidar."""
        around, (bearing, distance) = self.around[index], self.seen[index].tolist()
        if mirrored:
            around, bearing = np.concatenate([around[-2::-1], around[-1:]]), -bearing
        seen = None if math.isnan(bearing) else (bearing, distance)
        tried = [_MIRRORED[k] if mirrored else k for k in self.tried[index].tolist() if k >= 0]
        space = FreeSpace(
            around=tuple(around.tolist()), seen=seen, tried=tuple(ACTIONS[k] for k in tried)
        )
        return space.say(TOLD.free_space)


def together(parts: Sequence[RoomViews]) -> RoomViews:
    """All of these views."""
    names = [field.name for field in fields(RoomViews)]
    return RoomViews(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


class Decider:
    """A model that decides by one frame and what it is told."""

    def __init__(self, vlm: Vlm) -> None:
        self._vlm, self._spec = vlm, vlm.spec(ANSWER_TOKENS)

    def answer(self, image: np.ndarray, instruction: str, told: str) -> str:
        """Its greedy answer, the reason first."""
        request = TOLD.request(instruction, encode_jpeg(image, 95), REASON_FIRST, free_space=told)
        (ids,) = greedy_answers(self._vlm, [request], self._spec)
        return str(self._vlm.tokenizer.decode(ids, skip_special_tokens=True))


class Driver(ExitStack):
    """Decides for a robot in one room: a model, or without one the expert; both err with a
    ``share`` of random actions or are helped by that share of the expert's.

    ``rows``: of RoomViews' arrays, of what was seen where the thing can be asked for.
    """

    def __init__(
        self,
        room: Room,
        painter: Camera,
        rng: np.random.Generator,
        decider: Decider | None = None,
        expert: RoomExpert | None = None,
        share: float = 0.0,
    ) -> None:
        super().__init__()
        self.room, self.rows = room, list[dict[str, np.ndarray]]()
        self._rng, self._decider, self._share, self._expert = rng, decider, share, expert
        self._painter = self.enter_context(painter)
        measurer = Camera(painter.scene, "rays", SEGMENTED_PX, shadows=False)
        self._measurer, self._world = self.enter_context(measurer), World(painter.scene)
        self._memory = MissionMemory()

    def __call__(self, pose: Pose) -> str:
        """The action that is taken at a pose."""
        rng, name = self._rng, self.room.target
        pitch, roll = (float(v) for v in np.clip(rng.normal(0, 0.02, 2), -0.06, 0.06))
        eye = eye_at(pose, pitch, roll, float(rng.normal(0, 0.005)))
        sight = sight_of(pose, self._world, ROOM_ROBOT)
        space = self._memory.tell(name, free_space_of(pose, sight, ROOM_ROBOT))
        tried = [ACTIONS.index(action) for action in space.tried]
        image = expose(self._painter.render(eye), rng)
        image = halved(decode_jpeg(encode_jpeg(image, int(rng.integers(70, 96)))))
        right, things = "", tuple[VisibleThing, ...]()
        if self._expert is not None:
            segmented = self._measurer.segment(eye)
            things = tuple(visible_things(self.room, eye, segmented))
            reach = Reach.of_sight(sight, ROOM_ROBOT)
            costs = self._expert.costs(pose, name, visible(things), reach)
            np.add.at(costs, tried, TRIED_COST)
            right = ACTIONS[int(costs.argmin())]
            if name in askable(things):
                self.rows.append(
                    row_of(self.room, image, segmented, things)
                    | {
                        "costs": costs.astype(np.float32),
                        "around": np.array(space.around, np.float32),
                        "seen": np.array(space.seen or (math.nan, math.nan), np.float32),
                        "tried": np.array((tried + [-1] * MOST_TRIED)[:MOST_TRIED], np.int8),
                    }
                )
        if self._decider is not None:
            text = self._decider.answer(image, self.room.instruction, space.say(TOLD.free_space))
            taken = str(action_of(text) or "")
        else:
            text = answer(things, name, REASON_FIRST) if name in askable(things) else ""
            taken = right
        taken = self._err(taken, right)
        if (action := parse_action(taken)) is not None:
            self._memory.act(name, space, action, TOLD.place(text))
        return taken

    def _err(self, taken: str, right: str) -> str:
        """The action that is taken, where it would be this one."""
        if self._expert is None or self._rng.random() >= self._share:
            return taken
        wrong = self._decider is None and right != "stop"
        return str(self._rng.choice(_RANDOM)) if wrong else right


def row_of(
    room: Room, image: np.ndarray, segmented: np.ndarray, things: Sequence[VisibleThing]
) -> dict[str, np.ndarray]:
    """A row of the arrays that all views have, and the goal's."""
    row = {
        "images": image,
        "classes": class_grid(room, segmented),
        "pixels": np.zeros(len(THING_KINDS), np.int32),
        "bearing": np.full(len(THING_KINDS), np.nan, np.float32),
        "distance": np.full(len(THING_KINDS), np.nan, np.float32),
        "goal": np.array(THING_KINDS.index(room.target), np.int8),
    }
    for thing in things:
        k = THING_KINDS.index(thing.name)
        row["pixels"][k], row["bearing"][k] = thing.pixels, thing.bearing
        row["distance"][k] = thing.distance
    return row


def write_room_views(
    path: Path, seed: int, count: int, renderer: str, model: Path | None = None
) -> None:
    """Views of ``count`` missions in furnished rooms that no benchmark has, as one npz file.

    model: the checkpoint that decides; None: the expert does. ``arrived`` counts missions.
    """
    decider = None if model is None else Decider(load(str(model), threads=1))
    shares = RANDOM_ACTION_SHARES if decider is None else EXPERT_ANSWER_SHARES
    rows: list[dict[str, np.ndarray]] = []
    arrived = 0
    context = open_gl(renderer)
    for number in range(count):
        rng = np.random.default_rng((seed, number, 0xF0E5))
        room = make_furnished(2**31 + seed * 1000 + number)
        if rng.random() < ELSEWHERE_SHARE:
            room = replace(room, start=sample_pose(room, rng))
        scene, shadows = Scene(room), bool(rng.random() < 0.7)
        if context is not None and (renderer == "egl" or rng.random() < 0.75):
            painter = Camera(scene, "egl", 2 * VIEW_PX, shadows, context)
        else:
            painter = Camera(scene, "rays", VIEW_PX, shadows)
        share = float(rng.choice(shares))
        with Driver(room, painter, rng, decider, RoomExpert(room), share) as driver:
            mission = RoomMission(room, driver, ROOM_ROBOT, ROOM_LESSON_S, SCAN_CYCLES)
            arrived += mission.run().arrived
            rows += driver.rows
    if context is not None:
        context.close()
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    np.savez(path, arrived=np.array([arrived, count]), **arrays)  # type: ignore[arg-type]


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
