"""``bench flats``: flats in virtual time, with players that need no model.

The simulated robot and the real navigator carry out what a player says, standing for each decision.
The oracle takes the shortest way; the expert finds its way as the embedded pair is taught to.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from ...nav.events import Words
from ...nav.pose import wrap
from ...nav.settings import STOP_AND_GO, Settings
from ..harness.mission.virtual_base import VirtualBase, stamp_of
from ..harness.virtual_time import Timeline
from ..sim.camera import Camera
from ..sim.flat import FAMILIES, Flat, Judgement, Sight, judge, make_flat, sight_of
from ..sim.scene import Scene
from ..sim.world import World
from ..training.tiny.expert import decide, first_memory, steer, turn_by
from .command import Options, Row
from .options import check_counts

ORACLE, EXPERT = "oracle", "expert"
MOST_DECISIONS = 150  # of a mission
DECISION_S = 0.5  # from a frame to the action
_SEGMENTED = 64  # pixels a side


@dataclass(frozen=True)
class FlatResult:
    """One flat and player; ``hidden``: the first thing to find was not in view at the start."""

    seed: int
    family: str
    hidden: bool
    judgement: Judgement
    decisions: int
    seconds: float
    collisions: int


def walk(flat: Flat, say: Callable[[Sight], str]) -> FlatResult:
    """A mission of the flat in which ``say`` decides each action on what is in view."""
    timeline = Timeline()
    base: VirtualBase
    poses = [flat.room.start]

    def on_cycle() -> None:
        poses.append(world.pose)

    scene = Scene(flat.room)
    world = World(scene)
    settings = Settings(drive=STOP_AND_GO)
    base = VirtualBase(timeline, world, settings, lambda _: None, on_cycle)
    camera = Camera(scene, "rays", _SEGMENTED)
    hidden, action, decisions = False, "", 0
    while action != "stop" and decisions < MOST_DECISIONS:
        sight = sight_of(flat, world.pose, world.eye, camera.segment(world.eye))
        if not decisions and flat.goals[0].thing:
            hidden = flat.goals[0].thing not in {thing.name for thing in sight.things}
        action, taken = say(sight), timeline.now
        timeline.sleep(DECISION_S)
        text = f"action: {action};"
        words = Words(
            f"{decisions}", 0, (0,), text, True, True, stamp_of(taken), DECISION_S, answer=text
        )
        base.on(words)
        decisions += 1
        while not (base.resting and base.navigator.status.state == "idle"):
            timeline.step(math.inf)
    base.close()
    camera.close()
    return FlatResult(
        flat.room.seed,
        flat.family,
        hidden,
        judge(flat, poses, action == "stop"),
        decisions,
        timeline.now,
        base.contacts,
    )


def expert(flat: Flat) -> Callable[[Sight], str]:
    """Says what an expert does."""
    memory = first_memory(flat)

    def say(sight: Sight) -> str:
        nonlocal memory
        decision = decide(flat, memory, sight)
        memory = decision.memory
        return decision.action

    return say


def oracle(flat: Flat) -> Callable[[Sight], str]:
    """Says what follows the shortest way through the goals."""
    left = list(flat.goals)

    def say(sight: Sight) -> str:
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

    return say


PLAYERS = {ORACLE: oracle, EXPERT: expert}

OPTIONS: Options = {
    "--scenes": {"type": int, "default": 100, "help": "flats (default %(default)s)"},
    "--players": {"nargs": "+", "choices": PLAYERS, "default": list(PLAYERS), "help": "who decide"},
    "--processes": {"type": int, "default": 2, "help": "flats side by side"},
}

COLUMNS = {
    name: name.replace("_", " ")
    for name in (
        "player",
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
    check_counts(args, "scenes", "processes")
    seeds = [args.seed * 1_000_003 + number for number in range(args.scenes)]
    jobs = [(player, seed) for player in args.players for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(min(args.processes, len(jobs))) as pool:
        results = pool.starmap(work, jobs, chunksize=5)
    rows: list[Row] = []
    for number, player in enumerate(args.players):
        own = results[number * len(seeds) : (number + 1) * len(seeds)]
        rows += rows_of(player, own)
    return rows


def work(player: str, seed: int) -> FlatResult:
    """One mission."""
    flat = make_flat(seed)
    return walk(flat, PLAYERS[player](flat))


def rows_of(player: str, results: Sequence[FlatResult]) -> list[Row]:
    """A row of all, of those whose thing is not in view at the start, and of each family."""
    groups = {"all": list(results), "not in view": [r for r in results if r.hidden]}
    groups |= {family: [r for r in results if r.family == family] for family in FAMILIES}
    return [
        {
            "player": player,
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
