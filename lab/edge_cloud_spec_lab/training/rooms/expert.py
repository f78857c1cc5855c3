"""An expert for furnished rooms: the action that leads around what is in the way.

It knows the room, and drives only where the navigator lets it. But a model of one frame has one
picture to decide by, so the expert is the best policy that keeps to this: where neither the thing
nor something to go around is in the picture, it searches. It follows from the shortest ways through
all poses of a grid (value iteration: Bellman, 1957), most of which end in view of the thing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_cloud_spec.nav.answer import every_action
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.pose import Pose, Velocity, ahead_of
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.sight import LidarSight
from edge_cloud_spec.nav.steps import Goal, Steps, goal_of

from ...sim.camera import CAMERA_FORWARD_M, eye_at
from ...sim.room import Room
from ...sim.thing import Thing, VisibleThing
from ...sim.ways import CELL, Ways
from ..tiny.language import AHEAD_DEG, STOP_M, best_action

_BODY, _STEPS = ObstacleSettings(), Steps()
ACTIONS = tuple(str(action) for action in every_action())
GOALS: dict[str, Goal] = {
    str(action): goal_of(action, _STEPS) for action in every_action() if action.verb != "stop"
}
HEADINGS = 45  # of 8 degrees, of which the turns' sizes are nearly multiples
_STEP_RAD = 2 * math.pi / HEADINGS
SLACK_M = 0.02  # metres that it keeps beyond the navigator's margin
DISCS_M = (-0.19, 0.0, 0.14, 0.27)  # middles of those that cover the body with its margin, ahead
FITS_M = 0.25  # from each of them to what is solid, where the body fits
PINCHED_M, PINCHED_COST = (0.25, 0.33), 2.0  # where it does, but barely
SWEPT_DEG = 8  # between two headings at which a turn is checked
IN_VIEW_DEG = 27.0  # that the thing may be aside and still be seen
MOST_SWEEPS = 120  # of the value iteration
ROOMY_M, TIGHT_COST = (0.225, 0.45), 3.0  # from the body's middle, between which turns get shut
# In decisions: a size's cost, moving backward, a thing out of view, what is cut short, or nothing.
SIZE_COST = {"small": 1.0, "medium": 1.1, "large": 1.3, "search": 1.3}
BACKWARD_COST, UNSEEN_COST, CUT_SHORT_COST, SHUT_COST = 1.0, 0.5, 1.0, 10.0
NEVER = 60.0  # decisions from where there is no way
SETTLED = 0.05  # decisions of change
CLEAR_COST = 2.5  # decisions, of what does not lead straight to a thing that is clear
NEARLY = 0.03  # m or rad by which a goal may be missed
BARELY_M, BARELY_RAD = 0.05, 0.08  # of motion; less is none
_WALL_STEP_M = 0.1


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


class RoomExpert:
    """Decides in one room."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._plans: dict[str, _Plan] = {}

    def costs(
        self, pose: Pose, name: str, seen: Mapping[str, VisibleThing], reach: Reach
    ) -> np.ndarray:
        """Decisions [A] to the thing of this name after each of ACTIONS, where ``seen`` are in the
        picture; where the way straight to it is clear, anything else costs more."""
        plain, plan = best_action(seen.get(name)), self._plan(name)
        chosen = ACTIONS.index(plain)
        if plain == "stop":
            found = np.full(len(ACTIONS), NEVER)
            found[chosen] = 0.0
            return found
        found, goal = plan.costs(pose, reach), GOALS[plain]
        cut = reach.of(goal) != (goal.distance, goal.angle)
        if name in seen and not cut and plan.is_clear(pose, seen[name]):
            best = found.min()
            found += CLEAR_COST
            found[chosen] = best
        return found

    def gets_there(self, pose: Pose, name: str) -> bool:
        """Whether there is a way to the thing of this name."""
        return self._plan(name).at(pose) < NEVER / 2

    def _plan(self, name: str) -> _Plan:
        if name not in self._plans:
            self._plans[name] = _Plan(self.room, self.room.thing(name))
        return self._plans[name]


class _Plan:
    """How many decisions it takes to a thing, from every pose; all the others are in the way."""

    def __init__(self, room: Room, thing: Thing) -> None:
        self.thing = thing
        others = [other for other in (*room.things, *room.furniture) if other is not thing]
        self.points = _points(room, others)
        self.ways = Ways(room.size, others)
        self._headings = np.arange(HEADINGS) * _STEP_RAD
        self.cost = self._iterate(self._moves())

    # The grid of poses [HEADINGS, W, D]

    def _ahead(self, metres: float, aside: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """The cells so far ahead of each pose, ``aside`` (rad) of its heading."""
        w, d = self.ways.gap.shape
        angle = self._headings + aside
        i = np.arange(w)[:, None] + metres * np.cos(angle)[:, None, None] / CELL
        j = np.arange(d)[None] + metres * np.sin(angle)[:, None, None] / CELL
        i, j = np.broadcast_arrays(np.rint(i).astype(int), np.rint(j).astype(int))
        return i, j

    def _gap(self, gap: np.ndarray, metres: float, aside: float = 0.0) -> np.ndarray:
        """What a map [W, D], or one of each heading, has at the cells ahead; outside of it 0."""
        i, j = self._ahead(metres, aside)
        w, d = gap.shape[-2:]
        inside = (i >= 0) & (i < w) & (j >= 0) & (j < d)
        here = (np.clip(i, 0, w - 1), np.clip(j, 0, d - 1))
        found = (
            gap[here]
            if gap.ndim == 2
            else gap[np.arange(HEADINGS)[:, None, None], here[0], here[1]]
        )
        return np.where(inside, found, 0)

    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Degrees that the thing is aside of each pose's picture, and metres to it."""
        at = self.ways.points[None] + CAMERA_FORWARD_M * np.stack(
            [np.cos(self._headings), np.sin(self._headings)], -1
        ).reshape(-1, 1, 1, 2)
        off = np.array([self.thing.x, self.thing.y]) - at
        aside = np.arctan2(off[..., 1], off[..., 0]) - self._headings[:, None, None]
        away = np.hypot(off[..., 0], off[..., 1]) - float(np.mean(self.thing.half))
        return np.abs(np.degrees((aside + math.pi) % (2 * math.pi) - math.pi)), away

    def _moves(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each action: the pose that each leads to, and its cost."""
        gap = self.ways.gap
        unseen = UNSEEN_COST * (self._seen()[0] > IN_VIEW_DEG)
        covered = np.min([self._gap(gap, metres) for metres in DISCS_M], axis=0)
        self.free = covered >= FITS_M
        ends = unseen + PINCHED_COST * _lacks(covered, PINCHED_M)
        tight = TIGHT_COST * _lacks(gap, ROOMY_M)
        count = np.arange(self.free.size).reshape(self.free.shape)
        found = []
        for action, goal in GOALS.items():
            size = action.split()[-1]
            cost = SIZE_COST[size] + BACKWARD_COST * ("backward" in action)
            if goal.angle:
                turns = round(goal.angle / _STEP_RAD)
                sign = 1 if turns > 0 else -1
                able = np.all([np.roll(self.free, -sign * n, 0) for n in range(abs(turns) + 1)], 0)
                to, costs = np.roll(count, -turns, 0), np.full(self.free.shape, cost)
            else:
                sign = 1 if goal.distance > 0 else -1
                able = self.free.copy()
                for metres in np.arange(0.1, abs(goal.distance) + _BODY.clearance, 0.1):
                    able &= self._gap(self.free, float(sign * metres)) > 0
                i, j = self._ahead(goal.distance)
                w, d = gap.shape
                i, j = np.clip(i, 0, w - 1), np.clip(j, 0, d - 1)
                to = count[np.arange(HEADINGS)[:, None, None], i, j]
                costs = cost + tight[i, j]
            costs = costs + ends.ravel()[to]
            found.append((to, np.where(able, costs, np.inf)))
        return found

    def _iterate(self, moves: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        aside, away = self._seen()
        # a thing that is hidden behind something is not reached
        line = np.zeros(aside.shape[1:], bool)
        for i, j in np.argwhere(away.min(0) <= STOP_M + 0.1):
            place = (float(self.ways.points[i, j, 0]), float(self.ways.points[i, j, 1]))
            line[i, j] = self.ways.clear(place, _toward(self.thing, place))
        there = (aside <= AHEAD_DEG + 2) & (away <= STOP_M) & line & self.free
        cost = np.where(there, 0.0, NEVER).astype(np.float32)
        free = np.flatnonzero(self.free & ~there)
        leads = [(to.ravel()[free], costs.ravel()[free].astype(np.float32)) for to, costs in moves]
        for _ in range(MOST_SWEEPS):
            expected = _blurred(cost).ravel()
            better = np.min([costs + expected[to] for to, costs in leads], axis=0)
            better = np.minimum(better, NEVER)
            change = np.abs(better - cost.ravel()[free]).max()
            cost.ravel()[free] = better
            if change < SETTLED:
                break
        return _blurred(cost)

    # At a pose

    def at(self, pose: Pose) -> float:
        """Decisions that it takes from a pose: a mean of those of the grid around it."""
        w, d = self.ways.gap.shape
        x = (pose.x + w * CELL / 2) / CELL - 0.5
        y = (pose.y + d * CELL / 2) / CELL - 0.5
        a = (pose.yaw / _STEP_RAD) % HEADINGS
        total = 0.0
        for k, u in _between(a):
            for i, v in _between(x):
                for j, t in _between(y):
                    inside = 0 <= i < w and 0 <= j < d
                    total += u * v * t * float(self.cost[k % HEADINGS, i, j] if inside else NEVER)
        return total

    def aside(self, pose: Pose) -> float:
        """Degrees that the thing is aside of the middle of the picture."""
        eye = eye_at(pose)
        return abs(math.degrees(self.thing.bearing(eye.x, eye.y, eye.yaw)))

    def is_clear(self, pose: Pose, seen: VisibleThing) -> bool:
        """Whether nothing is in the way straight to the thing."""
        margin = _BODY.margin + SLACK_M
        around = _at(self.points, pose)
        if _turn_free(around, margin, seen.bearing) < abs(seen.bearing):
            return False
        turned = Pose(pose.x, pose.y, pose.yaw + math.radians(seen.bearing))
        return _free_ahead(_at(self.points, turned), margin) >= seen.distance - STOP_M + 0.1

    def costs(self, pose: Pose, reach: Reach) -> np.ndarray:
        """Decisions [A] that each of ACTIONS leads to; NEVER: one that is not for going around."""
        found = np.full(len(ACTIONS), NEVER)
        for action, goal in GOALS.items():
            way, turn = reach.of(goal)
            cost = SIZE_COST[action.split()[-1]] + BACKWARD_COST * ("backward" in action)
            cost += CUT_SHORT_COST * ((way, turn) != (goal.distance, goal.angle))
            cost += SHUT_COST * (abs(way) / BARELY_M + abs(turn) / BARELY_RAD < 1.0)
            end = ahead_of(replace(pose, yaw=pose.yaw + turn), way)
            if way:
                gap = np.array(self.ways.gap_at(end.x, end.y))
                cost += TIGHT_COST * float(_lacks(gap, ROOMY_M))
            cost += self.at(end) + UNSEEN_COST * (self.aside(end) > IN_VIEW_DEG)
            found[ACTIONS.index(action)] = cost
        return found


def _lacks(gap: np.ndarray, between: tuple[float, float]) -> np.ndarray:
    """1 where a gap is the narrow one of these or less, 0 from the wide one on."""
    narrow, wide = between
    return np.asarray(np.clip((wide - gap) / (wide - narrow), 0.0, 1.0))


def _blurred(cost: np.ndarray) -> np.ndarray:
    """The mean [HEADINGS, W, D] over what a motion's errors may lead to."""
    wide = np.pad(cost, ((0, 0), (1, 1), (1, 1)), mode="edge")
    near = 2 * wide[:, 1:-1, 1:-1] + wide[:, 2:, 1:-1] + wide[:, :-2, 1:-1]
    near = (near + wide[:, 1:-1, 2:] + wide[:, 1:-1, :-2]) / 6
    return np.asarray((2 * near + np.roll(near, 1, 0) + np.roll(near, -1, 0)) / 4)


def _between(value: float) -> tuple[tuple[int, float], tuple[int, float]]:
    low = math.floor(value)
    return (low, 1 - (value - low)), (low + 1, value - low)


def _toward(thing: Thing, place: tuple[float, float]) -> tuple[float, float]:
    """The point of the way from ``place`` to a thing at which a robot stands at it."""
    away = math.dist(place, (thing.x, thing.y))
    share = min(1.0, (max(thing.half) + 0.3) / max(away, 1e-6))
    return thing.x + share * (place[0] - thing.x), thing.y + share * (place[1] - thing.y)


def _points(room: Room, solid: list[Thing]) -> np.ndarray:
    """Points [n, 2] on all that is solid, walls first."""
    w, d = room.size[0] / 2, room.size[1] / 2
    walls = []
    for half, other, across in ((w, d, False), (d, w, True)):
        along = np.arange(-half, half + _WALL_STEP_M, _WALL_STEP_M)
        for sign in (-1, 1):
            line = np.stack([along, np.full(len(along), sign * other)], 1)
            walls.append(line[:, ::-1] if across else line)
    things = [thing.outline() for thing in solid if any(part.solid for part in thing.parts)]
    return np.concatenate([*walls, *things])


def _at(points: np.ndarray, pose: Pose) -> np.ndarray:
    """Points [n, 2] as seen from a pose: metres ahead, and to the left."""
    off = points - (pose.x, pose.y)
    cos, sin = math.cos(pose.yaw), math.sin(pose.yaw)
    return np.asarray(off @ np.array([[cos, -sin], [sin, cos]]))


def _free_ahead(points: np.ndarray, margin: float) -> float:
    """Metres that a robot among these points may move straight on; 0 if it touches one."""
    ahead = points[(np.abs(points[:, 1]) < _BODY.side + margin) & (points[:, 0] > -_BODY.rear)]
    free = ahead[:, 0].min(initial=math.inf) - _BODY.front - margin - _BODY.clearance
    return max(0.0, float(free))


def _turn_free(points: np.ndarray, margin: float, to: float) -> float:
    """Degrees that a robot among these points may turn towards ``to`` degrees."""
    near = points[np.hypot(*points.T) < _BODY.reach + 0.1]
    free, count = 0.0, max(1, math.ceil(abs(to) / SWEPT_DEG))
    inside = _BODY.beyond(near) < margin
    for turn in np.linspace(0, to, count + 1)[1:]:
        angle = math.radians(turn)
        cos, sin = math.cos(angle), math.sin(angle)
        turned = near @ np.array([[cos, -sin], [sin, cos]])
        if np.any((_BODY.beyond(turned) < margin) & ~inside):
            break
        free = abs(float(turn))
    return free
