"""A furnished room in virtual time: the simulated robot with a lidar and the real navigator, and
who decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from edge_cloud_spec.nav.answer import CLAUSES, parse_action
from edge_cloud_spec.nav.events import Instruction, Words
from edge_cloud_spec.nav.mission import Mission, MissionSettings
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import FOLLOWING, GoalStatus

from ...sim.bases import Base
from ...sim.reach import faces
from ...sim.room import Room
from ..virtual_time import Timeline
from .virtual_base import VirtualBase, stamp_of

ROOM_DECISION_S = 0.35  # from a frame to the action
ROOM_MISSION_S = 150.0  # of a mission

Player = Callable[[Pose], str]
"""Says an action to where the robot is."""


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
    """One room in which ``player`` decides, ``ROOM_DECISION_S`` after each frame.

    ``base``: in that room; ``settings``: with a lidar; ``seconds``: of the mission, at most;
    ``scan_cycles``: of the base for one scan.
    """

    def __init__(
        self,
        room: Room,
        base: Base,
        player: Player,
        settings: NavigatorSettings,
        seconds: float = ROOM_MISSION_S,
        scan_cycles: int = 1,
    ) -> None:
        self._room, self._player, self._timeline = room, player, Timeline()
        self._mission, self._deciding = Mission(), False
        self._decisions = self._contacts = 0
        self._touched, self._clearance, self._seconds = False, math.inf, seconds
        self._base = VirtualBase(
            self._timeline,
            base,
            settings,
            self._mission.on_status,
            self._on_cycle,
            scan_cycles,
        )
        goal = GoalStatus(FOLLOWING, room.instruction, goal_id=room.instruction)
        self._mission.follow(room.instruction, 0.0, goal.goal_id)
        for event in (Instruction(room.instruction), goal):
            self._base.on(event)

    def run(self) -> RoomResult:
        """Run the mission to its end."""
        end = None
        while end is None and self._timeline.now < self._seconds:
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
        # whoever touches a robot that stands has walked into it
        self._contacts += world.contact and not self._touched and not world.standing
        self._touched = world.contact
        seen = self._base.navigator.obstacles.around(now)
        if seen is not None:
            body = self._base.navigator.settings.obstacles
            self._clearance = min(self._clearance, float(body.beyond(seen[0]).min(initial=9.0)))
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
