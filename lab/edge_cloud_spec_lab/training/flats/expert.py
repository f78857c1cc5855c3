"""An expert for flats: the right answer at each decision, as a conversation can know it.

The map tells it only ways around what it has seen. What to look for where follows from its frames
and from its own earlier words, which therefore carry what has to be remembered::

    action: search; reason: no blue box, look 3, door 2;
    action: move forward large; reason: red chair done, leave door midway 1.6 ahead 2;
    action: turn left small; reason: enter second door far 3.0 left 10;

It looks around where it begins and where it enters a room, leaves by the doorway, turns left in the
hallway (right on the way back), and takes the next doorway in the wall at that hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_cloud_spec.nav.pose import Pose, wrap
from edge_cloud_spec.nav.steps import Steps

from ...sim.flat import (
    BACK_FAMILY,
    DOOR_FAMILY,
    ORDINALS,
    TURN_FAMILY,
    Doorway,
    Flat,
    Sight,
    doorway_ahead,
)
from ...sim.thing import VisibleThing
from ...sim.ways import Ways
from ..tiny.language import (
    AHEAD_DEG,
    STOP_M,
    VISIBLE_PIXELS,
    Piece,
    best_action,
    place,
    reason_of,
    side,
    visible,
)

LOOK_STAGE, LEAVE_STAGE, TURNING_STAGE, ENTER_STAGE, APPROACH_STAGE = (
    "look",
    "leave",
    "turning",
    "enter",
    "approach",
)
LOOKS_AROUND = 8  # once around
ENTERED_LOOKS = 4  # of them that entering saves: what is behind is the wall with the doorway
BEHIND = 5  # looks from which on a doorway seen then is nearer by turning right
LOST_AFTER_DECISIONS = 8  # decisions after which a thing that is hidden is looked for anew
OUT, IN = 0.55, 0.5  # metres beyond a doorway at which it is passed
CONE = 35.0  # degrees off a doorway's middle line from which it is passed straight
BEFORE_DOORWAY_M = 0.6  # m before a doorway where one goes from farther aside
STRAIGHT_DEG = 10.0  # degrees by which a doorway may be aside of who goes there
ALIGNED_DEG = 12.0
WALL_ASIDE_DEG = 4.0  # degrees to the wall at its hand, of which it must see more
IN_VIEW = 30.0  # degrees aside up to which a doorway would be in view
DOORWAY_UNSEEN_M = 0.6  # m from its middle at which it need not be
MISSED_POINT_M = 0.15  # m by which it may miss a point on its way

_STEPS = Steps()


@dataclass(frozen=True)
class Memory:
    """What an expert's words have carried so far.

    ``done`` counts goals. ``looks`` since it came here, and ``door`` the first of them that showed
    a doorway. ``doorway`` is the one that it leaves by or enters, ``side`` where that is, or the
    thing, while it is not seen; ``heading`` (rad) where it turns to, ``round`` whether for the
    second time; ``lost`` counts decisions without the thing.
    """

    done: int = 0
    doing: str = LOOK_STAGE
    looks: int = 0
    door: int = 0
    doorway: int = -1
    side: str = ""
    heading: float = 0.0
    round: bool = False
    lost: int = 0


@dataclass(frozen=True)
class ExpertDecision:
    """An action, why, and what is remembered after it."""

    action: str
    reason: tuple[Piece, ...]
    memory: Memory


def words(text: str, weight: float) -> list[Piece]:
    """Each word of a reason, with this weight."""
    return [Piece(f" {word}", weight) for word in text.split()]


def first_memory(flat: Flat) -> Memory:
    """Before the first decision."""
    if flat.area_at(flat.room.start.x, flat.room.start.y) or not flat.doorways:
        return Memory()
    return Memory(doing=TURNING_STAGE, heading=along(flat.room.start.yaw))


def along(yaw: float) -> float:
    """The direction of the hallway that is nearest to ``yaw``, rad."""
    return 0.0 if abs(wrap(yaw)) < math.pi / 2 else math.pi


def decide(flat: Flat, memory: Memory, sight: Sight) -> ExpertDecision:
    """The answer to a frame."""
    return _Expert(flat, memory, sight).decide()


def hand_of(flat: Flat, memory: Memory) -> str:
    """To which side it turns in the hallway, and whose wall it follows."""
    if flat.family == TURN_FAMILY:
        return flat.room.instruction.split()[1]
    return "right" if flat.family == BACK_FAMILY and memory.done else "left"


def out_of(flat: Flat, memory: Memory) -> float:
    """The heading (rad) to turn to in the hallway, out of the doorway that it leaves by."""
    turn = math.pi / 2 if hand_of(flat, memory) == "left" else -math.pi / 2
    return wrap(turn - flat.doorways[memory.doorway].side * math.pi / 2)


_LOOK, _SIDE = re.compile(r" look (\d)(?:, door (\d))?"), re.compile(r" hidden (left|right)")


def heard(flat: Flat, memory: Memory, sight: Sight, said: str) -> Memory:
    """What an expert remembers whose words these were: a model's, in the place of its own.

    So what it says next fits what stands in the conversation.
    """
    area = flat.area_at(sight.pose.x, sight.pose.y)
    if memory.doing == LOOK_STAGE and (look := _LOOK.search(said)):
        return replace(memory, looks=int(look[1]), door=int(look[2] or 0))
    if memory.doing == LOOK_STAGE and " leave door" in said and area:
        memory = replace(memory, doing=LEAVE_STAGE, doorway=area - 1, side="")
    if memory.doing == LEAVE_STAGE and " hallway" in said and not area:
        memory = replace(memory, doing=TURNING_STAGE, heading=out_of(flat, memory), round=False)
    lost = memory.doing == ENTER_STAGE and memory.doorway not in sight.doorways
    if (lost or memory.doing == TURNING_STAGE) and " enter " in said and sight.doorways:
        nearest = min(sight.doorways, key=lambda index: abs(sight.doorways[index].bearing))
        memory = replace(memory, doing=ENTER_STAGE, doorway=nearest, side="")
    if memory.doing == TURNING_STAGE and " turn round" in said and not memory.round:
        memory = replace(memory, heading=wrap(memory.heading + math.pi), round=True)
    if memory.doing in (LEAVE_STAGE, ENTER_STAGE, APPROACH_STAGE) and (
        hidden := _SIDE.search(said)
    ):
        memory = replace(memory, side=hidden[1])
    return memory


class _Expert:
    """One decision."""

    def __init__(self, flat: Flat, memory: Memory, sight: Sight) -> None:
        self.flat, self.memory, self.sight = flat, memory, sight
        self.pose = sight.pose
        self.place = (self.pose.x, self.pose.y)
        self.area = flat.area_at(*self.place)
        self.seen = visible(sight.things)
        self.doorways = {
            i: door for i, door in sight.doorways.items() if door.pixels >= VISIBLE_PIXELS
        }
        self.hand = hand_of(flat, memory)

    def decide(self) -> ExpertDecision:
        self._settle()
        goal = self.flat.goals[self.memory.done]
        if goal.thing in self.seen:
            return self._approach(self.seen[goal.thing])
        if self.memory.doing == APPROACH_STAGE:
            if self.memory.lost < LOST_AFTER_DECISIONS:
                return self._approach_hidden(goal.thing)
            self.memory = Memory(self.memory.done)
        if self.memory.doing == LEAVE_STAGE and not self.area:
            self._pass_out()
        if self.memory.doing == ENTER_STAGE and self._beyond(self.memory.doorway) >= IN:
            return self._arrive()
        if self.memory.doing == TURNING_STAGE:
            return self._turn()
        if self.memory.doing == ENTER_STAGE:
            return self._enter()
        return self._leave() if self.memory.doing == LEAVE_STAGE else self._look()

    def _settle(self) -> None:
        """Where an action led into another room than was meant, it goes on from there."""
        memory, here = self.memory, self.area - 1
        if (
            not self.area
            or memory.doorway == here
            or memory.doing not in (LEAVE_STAGE, TURNING_STAGE, ENTER_STAGE)
        ):
            return
        doing = (
            ENTER_STAGE
            if memory.doing == ENTER_STAGE and self.flat.family != DOOR_FAMILY
            else LEAVE_STAGE
        )
        self.memory = replace(memory, doing=doing, doorway=here, side="", round=False)

    # A thing in view, or that was

    def _approach(self, thing: VisibleThing) -> ExpertDecision:
        memory, flat = self.memory, self.flat
        goal = flat.goals[memory.done]
        at_it = thing.distance < STOP_M and abs(thing.bearing) <= AHEAD_DEG
        if at_it and memory.done + 1 < len(flat.goals):
            return self._go_on(thing.name)
        reason = reason_of(self.seen, thing.name)
        memory = Memory(memory.done, APPROACH_STAGE, side=side(thing.bearing))
        action = best_action(thing)
        truth = flat.room.thing(thing.name)
        away = math.dist(self.place, (truth.x, truth.y))
        share = max(0.0, 1 - 1.05 / away)
        stop = (
            self.pose.x + share * (truth.x - self.pose.x),
            self.pose.y + share * (truth.y - self.pose.y),
        )
        if not at_it and not flat.ways.clear(self.place, stop):
            action = steer(self.flat.ways, self.pose, flat.field(goal))
        return self._decision(action, reason, memory)

    def _approach_hidden(self, name: str) -> ExpertDecision:
        """It turns on to where the thing was, or goes on around what stands before it."""
        memory, thing = self.memory, self.flat.room.thing(name)
        where = side(math.degrees(thing.bearing(*self.place, self.pose.yaw)))
        where = memory.side if memory.side != "ahead" else where
        action = steer(self.flat.ways, self.pose, self.flat.field(self.flat.goals[memory.done]))
        if action.startswith("turn") and where != "ahead":
            action = f"turn {where} large"
        memory = replace(memory, lost=memory.lost + 1, side=where)
        return self._decision(action, words(f"{name} hidden {where}", 1.0), memory)

    def _go_on(self, name: str) -> ExpertDecision:
        """A goal is reached that is not the last: the next one, from the same frame."""
        memory = Memory(self.memory.done + 1)
        following = self.flat.goals[memory.done]
        if (
            self.flat.family == BACK_FAMILY
            and self.area
            and self.flat.area_of(following) != self.area
        ):
            memory = replace(memory, doing=LEAVE_STAGE, doorway=self.area - 1, side="left")
        return _Expert(self.flat, memory, self.sight).decide()

    # Looking around, and out

    def _look(self) -> ExpertDecision:
        memory, flat = self.memory, self.flat
        looks = min(memory.looks + 1, LOOKS_AROUND)
        own = [d for d in self.doorways if not self.area or d == self.area - 1]
        door = memory.door or (looks if own else 0)
        memory = replace(memory, looks=looks, door=door, doing=LOOK_STAGE)
        name = flat.goals[memory.done].thing
        if door and flat.doorways and (looks == LOOKS_AROUND or not name):
            turn = "right" if BEHIND <= door < LOOKS_AROUND else "left"
            self.memory = replace(memory, doing=LEAVE_STAGE, doorway=self.area - 1, side=turn)
            if not self.area:
                self.memory = replace(
                    self.memory, doing=TURNING_STAGE, heading=along(self.pose.yaw), round=False
                )
                return self._turn()
            return self._leave()
        return self._decision("search", self._looked(memory, name), memory)

    def _looked(self, memory: Memory, name: str) -> list[Piece]:
        first = memory.looks == 1
        if not name:
            reason = words("no door", 0.7)
        else:
            reason = reason_of(self.seen, name) if first else words(f"no {name}", 1.0)
        if not first or memory.door:
            reason += [Piece(",", 0.3), *words(f"look {memory.looks}", 1.0)]
        if memory.door:
            reason += [Piece(",", 0.7), *words(f"door {memory.door}", 1.0)]
        return reason

    def _leave(self) -> ExpertDecision:
        door = self.flat.doorways[self.memory.doorway]
        return self._through(words("leave", 1.0), door, -OUT - 0.2)

    def _through(self, reason: Sequence[Piece], door: Doorway, beyond: float) -> ExpertDecision:
        """Through a doorway. Where it is not in view, it turns on to one side until it is."""
        memory, seen = self.memory, self.doorways.get(self.memory.doorway)
        aim = self._aim(door, beyond)
        action = self._go(aim)
        toward = math.atan2(aim[1] - self.pose.y, aim[0] - self.pose.x)
        off = math.degrees(wrap(toward - self.pose.yaw))
        turn = "" if math.dist(self.place, door.at(0.0)) < DOORWAY_UNSEEN_M else memory.side
        if seen is not None:
            where, turn = place(seen, 0.7, 0.3), ""
        elif action.startswith("turn") and (turn or abs(off) > IN_VIEW):
            turn = turn or side(off)
            action, where = f"turn {turn} large", words(f"hidden {turn}", 0.7)
        else:
            where, turn = words("hidden ahead", 0.7), ""
        reason = [*reason, *words("door", 0.1), *where]
        return self._decision(action, reason, replace(memory, side=turn))

    # In the hallway

    def _pass_out(self) -> None:
        """It is in the hallway if it is far enough out of the doorway."""
        if self._beyond(self.memory.doorway) <= -OUT:
            heading = out_of(self.flat, self.memory)
            self.memory = replace(self.memory, doing=TURNING_STAGE, heading=heading, round=False)

    def _beyond(self, index: int) -> float:
        """Metres that the robot is inside the room behind a doorway; negative: in the hallway."""
        door = self.flat.doorways[index]
        inside = self.area == door.area or not self.area
        return door.side * (self.pose.y - door.y) if inside else -math.inf

    def _turn(self) -> ExpertDecision:
        memory, flat = self.memory, self.flat
        aside = WALL_ASIDE_DEG if self.hand == "left" else -WALL_ASIDE_DEG
        left = math.degrees(wrap(memory.heading + math.radians(aside) - self.pose.yaw))
        if abs(left) > 150:  # the way round is to its hand
            left = abs(left) if self.hand == "left" else -abs(left)
        if abs(left) > ALIGNED_DEG:
            where = "round" if memory.round else self.hand
            return self._decision(turn_by(left), words(f"hallway turn {where}", 1.0), memory)
        if flat.family == TURN_FAMILY:
            return self._decision("stop", words(f"hallway {self.hand} done", 1.0), memory)
        index = self._next_doorway()
        if index < 0 and not memory.round:
            self.memory = replace(memory, heading=wrap(memory.heading + math.pi), round=True)
            return self._turn()
        if index < 0:
            index = self._any_doorway()
        self.memory = replace(memory, doing=ENTER_STAGE, doorway=index, side="")
        return self._enter()

    def _next_doorway(self) -> int:
        """Of those in view: the nearest in the wall at its hand, else the farthest in the other.

        -1: there is none. Where a door by its number is asked for, that one.
        """
        flat, forward = self.flat, 1 if abs(self.memory.heading) < math.pi / 2 else -1
        if flat.family == DOOR_FAMILY:
            return flat.goals[0].area - 1
        seen = [door for i, door in enumerate(flat.doorways) if i in self.doorways]
        door = doorway_ahead(seen, self.pose.x, forward, self.hand)
        return -1 if door is None else door.area - 1

    def _any_doorway(self) -> int:
        """The nearest that it has not just left: nothing in view says more."""
        others = [i for i in range(len(self.flat.doorways)) if i != self.memory.doorway]
        ways = [math.dist(self.flat.doorways[i].at(0), self.place) for i in others]
        return others[int(np.argmin(ways))]

    def _enter(self) -> ExpertDecision:
        flat, index = self.flat, self.memory.doorway
        door, reason = flat.doorways[index], words("enter", 1.0)
        if flat.family == DOOR_FAMILY:
            forward = 1 if abs(self.memory.heading) < math.pi / 2 else -1
            ahead = [
                other
                for other in flat.doorways
                if other.side == door.side
                and forward * (other.x - self.pose.x) > 0.35
                and forward * (door.x - other.x) >= 0
            ]
            reason += words(ORDINALS[max(0, len(ahead) - 1)], 1.0)
        return self._through(reason, door, IN + 0.2)

    def _arrive(self) -> ExpertDecision:
        if self.flat.family == DOOR_FAMILY:
            return self._decision("stop", words("room done", 1.0), self.memory)
        memory = Memory(self.memory.done, LOOK_STAGE, ENTERED_LOOKS, door=2)
        name = self.flat.goals[memory.done].thing
        reason = [*words("room", 1.0), Piece(",", 0.1), *self._looked(memory, name)]
        return self._decision("turn right large", reason, memory)

    # How

    def _aim(self, door: Doorway, beyond: float) -> tuple[float, float]:
        """Where to go on the way through a doorway, to so many metres inside its room."""
        into = 1 if beyond > 0 else -1
        before = -into * door.side * (self.pose.y - door.y)
        if before > 0.3 and abs(self.pose.x - door.x) > before * math.tan(math.radians(CONE)):
            return door.at(-into * BEFORE_DOORWAY_M)
        return door.at(0.0 if before > 0.8 else beyond)

    def _go(self, aim: tuple[float, float]) -> str:
        """The action towards a point. It follows from where the doorway is, as a picture shows it;
        the map is asked only where something stands between."""
        ways = self.flat.ways
        if not ways.clear(self.place, aim):
            return steer(ways, self.pose, ways.field(ways.at(*aim)))
        return straight(ways, self.pose, aim, STRAIGHT_DEG)

    def _decision(self, action: str, reason: Sequence[Piece], memory: Memory) -> ExpertDecision:
        done = [f"{goal.thing} done" for goal in self.flat.goals[: memory.done]]
        before = [*words(done[0], 0.7), Piece(",", 0.1)] if done else []
        return ExpertDecision(action, (*before, *reason), memory)


def steer(ways: Ways, pose: Pose, field: np.ndarray) -> str:
    """The action that follows the way down a field of ``ways`` from ``pose``."""
    return straight(ways, pose, ways.ahead(field, (pose.x, pose.y), 2.5), AHEAD_DEG)


def straight(ways: Ways, pose: Pose, to: tuple[float, float], within: float) -> str:
    """The action that goes straight to a point, which may be ``within`` degrees aside."""
    place = (pose.x, pose.y)
    bearing = math.degrees(wrap(math.atan2(to[1] - place[1], to[0] - place[0]) - pose.yaw))
    away = math.dist(to, place)
    if abs(bearing) > max(within, math.degrees(math.atan2(MISSED_POINT_M, away))):
        return turn_by(bearing)
    for size in ("large", "medium", "small"):
        step: float = getattr(_STEPS, f"move_{size}")
        end = (place[0] + step * math.cos(pose.yaw), place[1] + step * math.sin(pose.yaw))
        if step <= away + 0.15 and ways.clear(place, end):
            return f"move forward {size}"
    return "move forward small"


def turn_by(bearing: float) -> str:
    """The turn that comes nearest to ``bearing`` degrees."""
    size = "large" if abs(bearing) > 36 else "medium" if abs(bearing) > 17 else "small"
    return f"turn {'left' if bearing > 0 else 'right'} {size}"
