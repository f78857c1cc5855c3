"""An expert for furnished rooms: straight on to a thing in view, where the path leads straight
there, else along the path that the robot is told.

It knows no more than the model that it teaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_cloud_spec.nav.answer import every_action
from edge_cloud_spec.nav.pose import Velocity, wrap
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.sight import LidarSight
from edge_cloud_spec.nav.steps import Goal, Steps, goal_of

from ...sim.thing import VisibleThing
from ..tiny.language import SLIGHT_DEG, STOP_M, best_action

_STEPS = Steps()
ACTIONS = tuple(str(action) for action in every_action())
GOALS: dict[str, Goal] = {
    str(action): goal_of(action, _STEPS) for action in every_action() if action.verb != "stop"
}
# In decisions: a size's cost, moving backward, what is cut short, or nothing; what was tried there.
SIZE_COST = {"small": 1.0, "medium": 1.1, "large": 1.3, "search": 1.3}
BACKWARD_COST, CUT_SHORT_COST, SHUT_COST, TRIED_COST = 1.0, 1.0, 10.0, 1.6
AIM_COST, AIMED_RAD = 0.6, math.radians(5)  # of any turn, and what needs none
NEVER = 60.0  # decisions of what leads nowhere
NEARLY = 0.03  # m or rad by which a goal may be missed
BARELY_M, BARELY_RAD = 0.05, 0.08  # of motion; less is none
LEG_M, THERE_M = 1.2, 0.08  # of a leg that counts; a shorter one has no direction
STRAIGHT_RAD, SHORT_M = math.radians(12), 0.5  # by which a path to a thing may differ from straight

Leg = tuple[float, float]
"""Bearing (rad) and length (m) of the first straight leg of a path."""


@dataclass(frozen=True)
class Reach:
    """How far the navigator lets the base go from where it stands: ``ahead`` and ``behind``, m,
    and turn to the ``left`` and ``right``, rad."""

    ahead: float
    behind: float
    left: float
    right: float

    @classmethod
    def of_sight(cls, sight: LidarSight, settings: NavigatorSettings) -> Reach:
        """By what a lidar shows."""
        body, margin = settings.obstacles, np.full(len(sight.points), settings.obstacles.margin)

        def most(velocity: Velocity) -> float:
            rate, keeps, _ = body.stopping(velocity, settings.limits, 0.0)
            seconds = body.seconds_to(sight.points, velocity, margin)
            return max(0.0, float(seconds.min(initial=math.inf)) - keeps / rate)

        ways = Velocity(1.0), Velocity(-1.0), Velocity(wz=1.0), Velocity(wz=-1.0)
        return cls(*map(most, ways))

    def of(self, goal: Goal) -> tuple[float, float]:
        """How far it gets of this goal: m, and rad; as far as meant, if nearly."""
        ends = []
        for meant, forth, back in (
            (goal.distance, self.ahead, self.behind),
            (goal.angle, self.left, self.right),
        ):
            most = min(abs(meant), forth if meant > 0.0 else back)
            ends.append(meant if most > abs(meant) - NEARLY else math.copysign(most, meant))
        return ends[0], ends[1]


def costs_of(
    thing: VisibleThing | None, path: Leg | None, reach: Reach, tried: Sequence[str]
) -> np.ndarray:
    """Decisions [A] that each of ACTIONS costs: towards a thing that is in view, along the path to
    it if one is known; None: along a path to look for it."""
    plain, found = best_action(thing), np.full(len(ACTIONS), NEVER)
    if plain == "stop" or (plain in tried and _is_beside(thing) and not _is_made(plain, reach)):
        found[ACTIONS.index("stop")] = 0.0
        return found
    if path is not None:
        for action, goal in GOALS.items():
            found[ACTIONS.index(action)] = _cost(action, reach.of(goal), goal, path)
    straight = thing is not None and _leads_straight(thing, path)
    if path is None or (straight and _is_made(plain, reach)):
        found[ACTIONS.index(plain)] = 0.0
    np.add.at(found, [ACTIONS.index(action) for action in tried], TRIED_COST)
    return found


def _is_beside(thing: VisibleThing | None) -> bool:
    """Whether it stands at the thing, but for a turn."""
    return thing is not None and thing.distance < STOP_M and abs(thing.bearing) <= SLIGHT_DEG


def _leads_straight(thing: VisibleThing, path: Leg | None) -> bool:
    if path is None or thing.distance < STOP_M:
        return True
    aside = abs(wrap(math.radians(thing.bearing) - path[0]))
    return aside <= STRAIGHT_RAD and path[1] >= thing.distance - STOP_M - SHORT_M


def _is_made(action: str, reach: Reach) -> bool:
    """Whether the navigator lets the base do it as far as meant."""
    goal = GOALS[action]
    return reach.of(goal) == (goal.distance, goal.angle)


def _cost(action: str, made: tuple[float, float], goal: Goal, path: Leg) -> float:
    """Decisions to the end of the leg by way of this action, of which so much is made."""
    far, turn = made
    cost = SIZE_COST[action.split()[-1]] + BACKWARD_COST * ("backward" in action)
    cost += CUT_SHORT_COST * (made != (goal.distance, goal.angle))
    cost += SHUT_COST * (abs(far) / BARELY_M + abs(turn) / BARELY_RAD < 1.0)
    length = min(path[1], LEG_M)
    x, y = length * math.cos(path[0]) - far, length * math.sin(path[0])
    left, aside = math.hypot(x, y), abs(wrap(math.atan2(y, x) - turn))
    if left > THERE_M:
        cost += SIZE_COST["large"] * aside / GOALS["turn left large"].angle
        cost += AIM_COST * (aside > AIMED_RAD)
    return cost + SIZE_COST["large"] * left / GOALS["move forward large"].distance
