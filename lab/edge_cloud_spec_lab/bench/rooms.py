"""``bench rooms``: furnished rooms in virtual time, by who decides and whether a move goes around.

The simulated robot with a lidar and the real navigator carry out what a player says who knows where
the thing is, deciding while the robot drives: ``straight`` goes towards it whatever is in the way,
``astar`` takes the shortest way around on a grid.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from edge_cloud_spec.nav.answer import CLAUSES, parse_action
from edge_cloud_spec.nav.events import Instruction, Words
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.mission import Mission, MissionSettings
from edge_cloud_spec.nav.pose import Pose, wrap
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import FOLLOWING, GoalStatus

from ..harness.mission.virtual_base import VirtualBase, stamp_of
from ..harness.virtual_time import Timeline
from ..sim.camera import eye_at
from ..sim.furniture import AT_TARGET_M, WAY_M, make_furnished
from ..sim.reach import REACH_M, faces
from ..sim.room import Room
from ..sim.scene import Scene
from ..sim.ways import Ways
from ..sim.world import World
from ..training.flats.expert import steer, turn_by
from .command import Options, Row
from .options import missions_by_player

ROOM_DECISION_S = 0.35  # from a frame to the action
ROOM_MISSION_S = 150.0  # of a mission
AIMED_DEG = 6.0  # that the thing may be aside of ahead
STANDS_M_S = 0.05  # speed below which whoever touches the robot has walked into it
BODY = ObstacleSettings(scan="scan")

Player = Callable[[Pose], str]
"""Says an action to where the robot is."""


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


@dataclass(frozen=True)
class RoomResult:
    """A mission: how it ended, contacts that the robot made, and its least distance (m) to what
    its lidar saw."""

    state: str
    arrived: bool
    seconds: float
    decisions: int
    ways: int
    contacts: int
    clearance: float


class RoomMission:
    """One room in which ``player`` decides, ``ROOM_DECISION_S`` after each frame."""

    def __init__(self, room: Room, player: Player, around: bool) -> None:
        self._room, self._player, self._timeline = room, player, Timeline()
        self._mission, self._deciding = Mission(), False
        self._decisions = self._contacts = 0
        self._touched, self._clearance = False, math.inf
        settings = NavigatorSettings(obstacles=BODY, around=around)
        world = World(Scene(room))
        self._base = VirtualBase(
            self._timeline, world, settings, self._mission.on_status, self._on_cycle
        )
        goal = GoalStatus(FOLLOWING, room.instruction, goal_id=room.instruction)
        self._mission.follow(room.instruction, 0.0, goal.goal_id)
        for event in (Instruction(room.instruction), goal):
            self._base.on(event)

    def run(self) -> RoomResult:
        """Run the mission to its end."""
        end = None
        while end is None and self._timeline.now < ROOM_MISSION_S:
            self._timeline.step(math.inf)
            end = self._mission.end(MissionSettings(), self._timeline.now)
        self._base.close()
        state = "time" if end is None else end.state
        there = faces(self._room.thing(self._room.target), self._base.world.pose)
        return RoomResult(
            state,
            state == "done" and there,
            self._timeline.now,
            self._decisions,
            self._base.ways,
            self._contacts,
            self._clearance,
        )

    def _on_cycle(self) -> None:
        world, now = self._base.world, self._timeline.now
        speed = math.hypot(*world.velocity[:2]) + abs(wrap(world.velocity[2]))
        self._contacts += world.contact and not self._touched and speed > STANDS_M_S
        self._touched = world.contact
        seen = self._base.navigator.obstacles.around(now)
        if seen is not None:
            self._clearance = min(self._clearance, float(BODY.beyond(seen[0]).min(initial=9.0)))
        if not self._deciding and self._base.navigator.status.welcomes_decision:
            self._deciding, request = True, f"{self._decisions}"
            self._decisions += 1
            self._mission.begin(request)
            action, stops = self._player(world.pose), self._base.navigator.stops
            self._timeline.after(ROOM_DECISION_S, lambda: self._say(request, action, now, stops))

    def _say(self, request: str, action: str, taken: float, stops: int) -> None:
        self._deciding = False
        self._mission.conclude(request, parse_action(action))
        text, told = f"action: {action};", self._room.instruction
        words = Words(
            request,
            0,
            (0,),
            text,
            True,
            True,
            stamp_of(taken),
            self._timeline.now - taken,
            goal_id=told,
            instruction=told,
            stops=stops,
            answer=text,
            reading=CLAUSES.read(text),
        )
        self._base.on(words)


OPTIONS: Options = {
    "--scenes": {"type": int, "default": 60, "help": "rooms (default %(default)s)"},
    "--players": {
        "nargs": "+",
        "choices": list(ROOM_PLAYERS),
        "default": list(ROOM_PLAYERS),
        "help": "who decide (default all)",
    },
    "--people": {"type": int, "default": 0, "help": "who walk in each (default none)"},
    "--processes": {"type": int, "default": 2, "help": "rooms side by side"},
}

COLUMNS = {
    name: name.replace("_", " ")
    for name in (
        "player",
        "around",
        "people",
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
    players = [(name, around, args.people) for name in args.players for around in (False, True)]
    return [
        {"player": name, "around": around, "people": people, **row_of(results)}
        for (name, around, people), results in missions_by_player(args, players, work)
    ]


def work(job: tuple[str, bool, int, int]) -> RoomResult:
    """One mission."""
    player, around, people, seed = job
    room = make_furnished(seed, people=people)
    return RoomMission(room, ROOM_PLAYERS[player](room), around).run()


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
