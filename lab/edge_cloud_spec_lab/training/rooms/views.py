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

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.free_space import MOST_TRIED, FreeSpace

from ...harness.mission.room_mission import RoomMission
from ...sim.camera import Camera
from ...sim.furniture import make_furnished
from ...sim.kinds import THING_KINDS
from ...sim.scene import Scene
from ...sim.view import (
    VIEW_PX,
    class_grid,
    open_gl,
    sample_pose,
)
from ...sim.world import World
from ..flats.episodes import EXPERT_ANSWER_SHARES, RANDOM_ACTION_SHARES
from ..rendered import make_files
from ..tiny.data import Views
from .driver import NO_IMAGE, ROOM_ROBOT, TOLD, Decider, Driver, drive
from .expert import ACTIONS, NEVER

ROOMS_PER_FILE = 20
ROOM_LESSON_S = 75.0  # of a mission
SCAN_CYCLES = 3  # of the base for one scan: a lidar of 7 Hz
SEARCH = ACTIONS.index("search")
ELSEWHERE_SHARE = 0.25  # of the missions begin anywhere
MOST_PEOPLE = 2  # who walk in a room
DRIVES_A_ROOM = 4  # in a room where no picture is painted: its own, and others anywhere
COST_SOFTNESS = 0.4  # decisions: the more an action costs, the more seldom it is taught
_SWAPPED = {"left": "right", "right": "left"}
_MIRRORED = [ACTIONS.index(" ".join(_SWAPPED.get(w, w) for w in a.split())) for a in ACTIONS]


@dataclass(frozen=True)
class RoomViews(Views):
    """Views of furnished rooms: ``goal`` int8 [N], the kind that the robot was sent to, and
    ``costs`` float32 [N, A], decisions to it after each of ACTIONS. What a lidar shows: ``around``
    float32 [N, 18], as FreeSpace has it, m, ``seen`` and ``path`` [N, 2], rad and m, NaN: none.
    ``tried`` int8 [N, MOST_TRIED], indices into ACTIONS or -1: what was tried there, which
    ``costs`` count."""

    goal: np.ndarray
    costs: np.ndarray
    around: np.ndarray
    seen: np.ndarray
    path: np.ndarray
    tried: np.ndarray

    def target(self, index: int) -> str:
        """What the robot was sent to."""
        return THING_KINDS[int(self.goal[index])]

    def action(self, index: int, mirrored: bool, rng: np.random.Generator) -> str:
        """One of the actions that are right, the better the more often."""
        costs = self.costs[index].astype(float)
        if mirrored:
            costs = costs[_MIRRORED]
            left = costs[ACTIONS.index("turn left large")]
            if costs[SEARCH] > 0.0 and left < NEVER:  # to the left all the same
                costs[SEARCH] = left
        weights = np.exp((costs.min() - costs) / COST_SOFTNESS)
        return ACTIONS[int(rng.choice(len(ACTIONS), p=weights / weights.sum()))]

    def told(self, index: int, mirrored: bool) -> str:
        """What a prompt tells of the lidar."""
        around, sign = self.around[index], -1.0 if mirrored else 1.0
        if mirrored:
            around = np.concatenate([around[-2::-1], around[-1:]])
        seen, path = (
            None if math.isnan(bearing) else (sign * bearing, distance)
            for bearing, distance in (self.seen[index].tolist(), self.path[index].tolist())
        )
        tried = [_MIRRORED[k] if mirrored else k for k in self.tried[index].tolist() if k >= 0]
        names = tuple(ACTIONS[k] for k in tried)
        space = FreeSpace(around=tuple(around.tolist()), seen=seen, path=path, tried=names)
        return space.say(TOLD.free_space)


def together(parts: Sequence[RoomViews]) -> RoomViews:
    """All of these views."""
    names = [field.name for field in fields(RoomViews)]
    return RoomViews(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def rows_of(driver: Driver) -> list[dict[str, np.ndarray]]:
    """Rows of RoomViews' arrays, of where the thing can be asked for."""
    rows = []
    for look, segmented in driver.looks:
        pictured = look.image.size > 0
        row = {
            "images": look.image,
            "classes": class_grid(driver.room, segmented) if pictured else NO_IMAGE[..., 0],
            "pixels": np.zeros(len(THING_KINDS), np.int32),
            "bearing": np.full(len(THING_KINDS), np.nan, np.float32),
            "distance": np.full(len(THING_KINDS), np.nan, np.float32),
            "goal": np.array(THING_KINDS.index(driver.room.target), np.int8),
            "costs": look.costs.astype(np.float32),
            "around": np.array(look.space.around, np.float32),
            "seen": np.array(look.space.seen or (math.nan, math.nan), np.float32),
            "path": np.array(look.space.path or (math.nan, math.nan), np.float32),
            "tried": np.full(MOST_TRIED, -1, np.int8),
        }
        for n, action in enumerate(look.space.tried):
            row["tried"][n] = ACTIONS.index(action)
        for thing in look.things:
            k = THING_KINDS.index(thing.name)
            row["pixels"][k], row["bearing"][k] = thing.pixels, thing.bearing
            row["distance"][k] = thing.distance
        rows.append(row)
    return rows


def draw_people(rng: np.random.Generator) -> int:
    """How many walk in a room."""
    return int(rng.integers(MOST_PEOPLE + 1))


def write_room_views(path: Path, seed: int, count: int, renderer: str) -> None:
    """Views of the expert's missions in ``count`` furnished rooms that no benchmark has, as one npz
    file; ``arrived`` counts missions."""
    rows: list[dict[str, np.ndarray]] = []
    arrived = 0
    context = open_gl(renderer)
    for number in range(count):
        rng = np.random.default_rng((seed, number, 0xF0E5))
        room = make_furnished(2**31 + seed * 1000 + number, people=draw_people(rng))
        if rng.random() < ELSEWHERE_SHARE:
            room = replace(room, start=sample_pose(room, rng))
        scene, shadows = Scene(room), bool(rng.random() < 0.7)
        if context is not None and (renderer == "egl" or rng.random() < 0.75):
            painter = Camera(scene, "egl", 2 * VIEW_PX, shadows, context)
        else:
            painter = Camera(scene, "rays", VIEW_PX, shadows)
        share = float(rng.choice(RANDOM_ACTION_SHARES))
        world = World(scene)
        with Driver(room, world, rng, painter, share=share) as driver:
            mission = RoomMission(room, world, driver, ROOM_ROBOT, ROOM_LESSON_S, SCAN_CYCLES)
            arrived += mission.run().arrived
            rows += rows_of(driver)
    if context is not None:
        context.close()
    _save(path, rows, arrived, count)


def write_told_views(
    path: Path, seed: int, count: int, renderer: str, model: Path | None = None
) -> None:
    """What is told and seen, without pictures, on DRIVES_A_ROOM drives through each of ``count``
    furnished rooms that no benchmark has, as one npz file.

    model: the checkpoint that decides, by the right reason; None: the expert does.
    """
    decider = None if model is None else Decider(load(str(model), threads=1))
    shares = RANDOM_ACTION_SHARES if decider is None else EXPERT_ANSWER_SHARES
    drivers = []
    with ExitStack() as stack:
        for number in range(count):
            rng = np.random.default_rng((seed, number, 0x701D))
            room = make_furnished(2**31 + 2**30 + seed * 1000 + number, people=draw_people(rng))
            scene = Scene(room)
            starts = [sample_pose(room, rng) for _ in range(DRIVES_A_ROOM - 1)]
            for start in (room.start, *starts):
                there, share = replace(room, start=start), float(rng.choice(shares))
                driver = Driver(there, World(scene), rng, None, decider, taught=True, share=share)
                drivers.append(stack.enter_context(driver))
        arrived = drive(drivers, np.random.default_rng((seed, 0x701D)), decider)
    _save(path, [row for driver in drivers for row in rows_of(driver)], arrived, len(drivers))


def _save(path: Path, rows: Sequence[dict[str, np.ndarray]], arrived: int, missions: int) -> None:
    if not rows:
        raise UserError("no view of this seed can be asked about: choose another --seed")
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    np.savez(path, arrived=np.array([arrived, missions]), **arrays)  # type: ignore[arg-type]


def make_room_views(folder: Path, seed: int, count: int, processes: int) -> RoomViews:
    """Views of the expert's missions in ``count`` rooms, rendered into files in ``folder`` unless
    they exist."""
    files = make_files(
        write_room_views, folder, "expert", seed, count, ROOMS_PER_FILE, "mixed", processes
    )
    return _read(f"expert {seed}", files)


def make_told_views(
    folder: Path, seed: int, count: int, processes: int, model: Path | None = None
) -> RoomViews:
    """Views without pictures of drives in ``count`` rooms, of the expert or a model, written into
    files in ``folder`` unless they exist."""
    kind = "told" if model is None else "driven"
    write = partial(write_told_views, model=model)
    files = make_files(write, folder, kind, seed, count, ROOMS_PER_FILE, "none", processes)
    return _read(f"{kind} {seed}", files)


def _read(name: str, files: Sequence[Path]) -> RoomViews:
    parts, counts = [], np.zeros(2, int)
    for file in files:
        with np.load(file) as stored:
            if missing := {field.name for field in fields(RoomViews)} - set(stored):
                raise UserError(f"{file} has no {min(missing)}: remove it, to have it made again")
            parts.append(RoomViews(*(stored[field.name] for field in fields(RoomViews))))
            counts += stored["arrived"]
    views = together(parts)
    print(f"{name}: {counts[0]} of {counts[1]} arrived, {len(views)} views", flush=True)
    return views
