"""``bench flats``: flats in virtual time, by who decides and by how many frames it remembers.

The simulated robot and the real navigator carry out what a player says, standing for each decision.
The oracle takes the shortest way, the expert finds it as the pair is taught to, a model of the pair
says its own greedy answer, and a preset decodes over gRPC.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from edge_cloud_spec.models import FLATS
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import CLAUSES, ORDERS, action_of
from edge_cloud_spec.nav.events import Words
from edge_cloud_spec.nav.history import HistorySpec
from edge_cloud_spec.nav.pose import wrap
from edge_cloud_spec.nav.settings import STOP_AND_GO, NavigatorSettings
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.share import path_of

from ..harness.grpc_robot import remembering_robot
from ..harness.mission.virtual_base import VirtualBase, stamp_of
from ..harness.virtual_time import Timeline
from ..sim.camera import Camera, encode_jpeg
from ..sim.flat import INSTRUCTION_FAMILIES, Flat, FlatJudgement, Sight, judge, make_flat, sight_of
from ..sim.scene import Scene
from ..sim.world import World
from ..tokens import ANSWER_TOKENS
from ..training.flats.episodes import SEGMENTED_PX, ModelPlayer
from ..training.flats.expert import decide, first_memory, steer, turn_by
from .command import Options, Row
from .options import missions_by_player

ORACLE, EXPERT = "oracle", "expert"
FLAT_MAX_DECISIONS = 150  # of a mission
DECISION_S = 0.5  # from a frame to the action


@dataclass(frozen=True)
class FlatResult:
    """One flat and player; ``hidden``: the first thing to find was not in view at the start."""

    family: str
    hidden: bool
    judgement: FlatJudgement
    decisions: int
    seconds: float
    collisions: int


Player = Callable[[Sight, Callable[[], bytes]], str]
"""Says an action (or nothing that is one) to what is in view and to the camera's frame as JPEG."""


def walk(flat: Flat, play: Player) -> FlatResult:
    """A mission of the flat in which ``play`` decides each action."""
    timeline = Timeline()
    poses = [flat.room.start]
    scene = Scene(flat.room)
    world = World(scene)
    settings = NavigatorSettings(drive=STOP_AND_GO)
    base = VirtualBase(timeline, world, settings, lambda _: None, lambda: poses.append(world.pose))
    caster, camera = Camera(scene, "rays", SEGMENTED_PX), Camera(scene)

    def frame() -> bytes:
        return encode_jpeg(camera.render(world.eye))

    hidden, action, decisions = False, "", 0
    while action != "stop" and decisions < FLAT_MAX_DECISIONS:
        sight = sight_of(flat, world.pose, world.eye, caster.segment(world.eye))
        if not decisions and flat.goals[0].thing:
            hidden = flat.goals[0].thing not in {thing.name for thing in sight.things}
        action, taken = play(sight, frame), timeline.now
        timeline.sleep(DECISION_S)
        text = f"action: {action};"
        words = Words(
            f"{decisions}",
            0,
            (0,),
            text,
            True,
            True,
            stamp_of(taken),
            DECISION_S,
            answer=text,
            reading=CLAUSES.read(text),
        )
        base.on(words)
        decisions += 1
        while not (base.world.resting and base.navigator.status.state == "idle"):
            timeline.step(math.inf)
    base.close()
    camera.close()
    caster.close()
    return FlatResult(
        flat.family,
        hidden,
        judge(flat, poses, action == "stop"),
        decisions,
        timeline.now,
        base.contacts,
    )


def expert(flat: Flat) -> Player:
    """Says what an expert does."""
    memory = first_memory(flat)

    def play(sight: Sight, _: Callable[[], bytes]) -> str:
        nonlocal memory
        decision = decide(flat, memory, sight)
        memory = decision.memory
        return decision.action

    return play


def oracle(flat: Flat) -> Player:
    """Says what follows the shortest way through the goals."""
    left = list(flat.goals)

    def play(sight: Sight, _: Callable[[], bytes]) -> str:
        pose = sight.pose
        while left and flat.reached(left[0], pose):
            del left[0]
        if not left:
            return "stop"
        goal, field = left[0], flat.field(left[0])
        if field[flat.ways.cell(pose.x, pose.y)] > 0.0:
            return steer(flat.ways, pose, field)
        yaw = goal.yaw if goal.yaw is not None else pose.yaw
        if goal.thing:
            thing = flat.room.thing(goal.thing)
            yaw = math.atan2(thing.y - pose.y, thing.x - pose.x)
        bearing = math.degrees(wrap(yaw - pose.yaw))
        return turn_by(bearing) if abs(bearing) > 6 else "move forward small"

    return play


def model(flat: Flat, vlm: Vlm, frames: int, order: str) -> Player:
    """Says what a model answers that remembers so many frames, and its whole answers to them."""
    player = ModelPlayer(vlm, flat.room.instruction, order, frames)

    def play(_: Sight, frame: Callable[[], bytes]) -> str:
        jpeg = frame()
        text = player.answer(jpeg)
        player.remember(jpeg, text)
        return str(action_of(text) or "")

    return play


@contextmanager
def decoded(flat: Flat, preset: str, pair: Path, frames: int, order: str) -> Iterator[Player]:
    """Says what robot and verifier decode by a preset, which remember so many frames."""
    target, drafter = (_loaded(pair / name) for name in MODELS)
    spec = target.spec(ANSWER_TOKENS)
    with remembering_robot(target, drafter, spec, preset, HistorySpec(frames)) as decide:

        def play(_: Sight, frame: Callable[[], bytes]) -> str:
            text = decide("", flat.room.instruction, frame(), order)[2]
            return str(action_of(text) or "")

        yield play


PLAYERS = {ORACLE: oracle, EXPERT: expert}
MODELS = ("target", "drafter")

OPTIONS: Options = {
    "--scenes": {"type": int, "default": 100, "help": "flats (default %(default)s)"},
    "--players": {
        "nargs": "+",
        "default": list(PLAYERS),
        "help": f"who decide: {', '.join((*PLAYERS, *MODELS))} or presets (%(default)s)",
    },
    "--pair": {"type": path_of, "default": FLATS, "help": "folder of target and drafter"},
    "--frames": {"type": int, "nargs": "+", "default": [8], "help": "that they remember"},
    "--order": {"choices": ORDERS, "default": ORDERS[1], "help": "of an answer (%(default)s)"},
    "--processes": {"type": int, "default": 2, "help": "flats side by side"},
}

COLUMNS = {
    name: name.replace("_", " ")
    for name in (
        "player",
        "frames",
        "instructions",
        "flats",
        "success",
        "spl",
        "decisions",
        "mission_s",
        "walked_m",
        "shortest_m",
        "collisions",
    )
}


def run(args: argparse.Namespace) -> list[Row]:
    """Rows of each player: all flats, those whose thing is not in view at first, each family."""
    for name in set(args.players) - {*PLAYERS, *MODELS}:
        load_preset(name)
    players = [
        (name, frames, args.order, args.pair)
        for name in args.players
        for frames in ([None] if name in PLAYERS else args.frames)
    ]
    return [
        {"player": name, "frames": frames, **row}
        for (name, frames, *_), results in missions_by_player(args, players, work)
        for row in rows_of(results)
    ]


def work(job: tuple[str, int | None, str, Path, int]) -> FlatResult:
    """One mission."""
    player, frames, order, pair, seed = job
    flat = make_flat(seed)
    if frames is None:
        return walk(flat, PLAYERS[player](flat))
    if player in MODELS:
        return walk(flat, model(flat, _loaded(pair / player), frames, order))
    with decoded(flat, player, pair, frames, order) as play:
        return walk(flat, play)


@cache
def _loaded(folder: Path) -> Vlm:
    return load(str(folder), threads=1)


def rows_of(results: Sequence[FlatResult]) -> list[Row]:
    """A row of all, of those whose thing is not in view at the start, and of each family."""
    groups = {"all": list(results), "not in view": [r for r in results if r.hidden]}
    groups |= {
        family: [r for r in results if r.family == family] for family in INSTRUCTION_FAMILIES
    }
    return [
        {
            "instructions": name,
            "flats": len(some),
            "success": mean(r.judgement.success for r in some),
            "spl": mean(r.judgement.spl for r in some),
            "decisions": mean(r.decisions for r in some),
            "mission_s": mean(r.seconds for r in some),
            "walked_m": mean(r.judgement.walked for r in some),
            "shortest_m": mean(r.judgement.shortest for r in some),
            "collisions": mean(r.collisions for r in some),
        }
        for name, some in groups.items()
        if some
    ]
