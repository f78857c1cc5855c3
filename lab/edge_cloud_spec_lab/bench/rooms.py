"""``bench rooms``: furnished rooms in virtual time, by who decides and whether a move goes around.

The simulated robot with a lidar and the real navigator carry out what a player says who knows where
the thing is, deciding while the robot drives: ``straight`` goes towards it whatever is in the way,
``astar`` takes the shortest way around on a grid. A ``--target`` decides by pictures, standing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, median

import numpy as np

from edge_cloud_spec.errors import refuse
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import CONTINUOUS
from edge_cloud_spec.share import path_of

from ..harness.mission.room_mission import Player, RoomMission, RoomResult
from ..sim.bases import BASES, IDEAL_BASE, make_base
from ..sim.camera import Camera, eye_at
from ..sim.furniture import AT_TARGET_M, WAY_M, make_furnished
from ..sim.reach import REACH_M, faces
from ..sim.room import Room
from ..sim.scene import Scene
from ..sim.view import VIEW_PX
from ..sim.ways import Ways
from ..training.flats.expert import steer, turn_by
from ..training.rooms.driver import ROOM_ROBOT, Decider, Driver
from .command import Options, Row
from .options import missions_by_player

AIMED_DEG = 6.0  # that the thing may be aside of ahead


def straight(room: Room) -> Player:
    """Goes towards the thing, whatever is in the way."""
    thing = room.thing(room.target)

    def play(pose: Pose) -> str:
        eye = eye_at(pose)
        bearing = math.degrees(thing.bearing(eye.x, eye.y, eye.yaw))
        left = thing.distance(eye.x, eye.y) - REACH_M / 2
        if abs(bearing) > AIMED_DEG and not (left <= 0.0 and faces(thing, pose)):
            return turn_by(bearing)
        size = "large" if left > 0.8 else "medium" if left > 0.35 else "small"
        return "stop" if left <= 0.0 else f"move forward {size}"

    return play


def astar(room: Room) -> Player:
    """Decides around what is in the way."""
    thing, ahead = room.thing(room.target), straight(room)
    others = [*(other for other in room.things if other is not thing), *room.furniture]
    ways = Ways(room.size, others, WAY_M)
    field = ways.field(ways.distances(thing) <= AT_TARGET_M)

    def play(pose: Pose) -> str:
        at_target = thing.distance(pose.x, pose.y) <= AT_TARGET_M + REACH_M / 2
        return ahead(pose) if at_target else steer(ways, pose, field)

    return play


ROOM_PLAYERS = {"straight": straight, "astar": astar}


OPTIONS: Options = {
    "--scenes": {"type": int, "default": 60, "help": "rooms (default %(default)s)"},
    "--players": {
        "nargs": "*",
        "choices": list(ROOM_PLAYERS),
        "default": list(ROOM_PLAYERS),
        "help": "who decide (default all)",
    },
    "--target": {
        "type": path_of,
        "help": "a checkpoint that decides, too, by the pictures and the dialect around, standing",
    },
    "--people": {"type": int, "default": 0, "help": "who walk in each (default none)"},
    "--base": {"choices": BASES, "default": IDEAL_BASE, "help": "what drives (%(default)s)"},
    "--processes": {"type": int, "default": 2, "help": "rooms side by side"},
}

COLUMNS = {
    name: name.replace("_", " ")
    for name in (
        "player",
        "around",
        "people",
        "base",
        "rooms",
        "arrived",
        "blocked",
        "contacts",
        "clearance_m",
        "ways",
        "decisions",
        "mission_s",
    )
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row of each player, without and with going around."""
    names = [*args.players, *(["target"] if args.target else [])]
    refuse((not names, "give --players who decide, or a --target"))
    players = [
        (name, around, args.people, args.target, args.base)
        for name in names
        for around in (False, True)
    ]
    return [
        {"player": name, "around": around, "people": people, "base": base, **row_of(results)}
        for (name, around, people, _, base), results in missions_by_player(args, players, work)
    ]


def work(job: tuple[str, bool, int, Path | None, str, int]) -> RoomResult:
    """One mission."""
    player, around, people, target, base_name, seed = job
    room = make_furnished(seed, people=people)
    base = make_base(base_name, room)
    if player in ROOM_PLAYERS:
        settings = replace(ROOM_ROBOT, around=around, drive=CONTINUOUS)
        return RoomMission(room, base, ROOM_PLAYERS[player](room), settings).run()
    assert target is not None
    painter = Camera(Scene(room), "rays", VIEW_PX)
    with Driver(room, base, np.random.default_rng(seed), painter, decider(target)) as driver:
        return RoomMission(room, base, driver, replace(ROOM_ROBOT, around=around)).run()


@cache
def decider(target: Path) -> Decider:
    """The model of this checkpoint."""
    return Decider(load(str(target), threads=1))


def row_of(results: Sequence[RoomResult]) -> Row:
    """What these missions came to."""
    return {
        "rooms": len(results),
        "arrived": mean(r.arrived for r in results),
        "blocked": mean(r.state == "blocked" for r in results),
        "contacts": sum(r.contacts for r in results),
        "clearance_m": min(r.clearance for r in results),
        "ways": mean(r.ways for r in results),
        "decisions": mean(r.decisions for r in results),
        "mission_s": median(r.seconds for r in results),
    }
