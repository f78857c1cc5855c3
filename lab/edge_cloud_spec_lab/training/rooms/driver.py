"""Who decides in a furnished room, and what a robot sees and is told there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import REASON_FIRST, action_of, parse_action
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.free_space import MOST_TRIED, FreeSpace
from edge_cloud_spec.nav.pose import Pose, ahead_of
from edge_cloud_spec.nav.settings import STOP_AND_GO, NavigatorSettings
from edge_cloud_spec.pilot.memory import MissionMemory
from edge_cloud_spec.request import Message, Request

from ...sim.bases import Base, free_space_of, sight_of
from ...sim.camera import Camera, decode_jpeg, encode_jpeg, eye_at, posture_of
from ...sim.legs import Legs
from ...sim.reach import faces
from ...sim.room import Room
from ...sim.scene import Scene
from ...sim.thing import VisibleThing
from ...sim.view import expose, halved, visible_things
from ...sim.world import World
from ...tokens import ANSWER_TOKENS
from ..flats.episodes import SEGMENTED_PX
from ..tiny.evaluation import generate, greedy_answers
from ..tiny.language import answer, askable, reason_of, visible
from .expert import ACTIONS, GOALS, Reach, costs_of

TOLD = load_dialect("around")
"""The dialect in which it is told what lidars show, where it saw the thing, and the path there."""

ROOM_ROBOT = NavigatorSettings(obstacles=ObstacleSettings(scan="scan"), drive=STOP_AND_GO)
"""A robot with a lidar that stands while it is decided for."""

DRIVE_ACTIONS = 40  # of a drive without a navigator
DRIVE_ACTION_S = 2.0  # s of each action, in which people walk
WALK_S = 0.2  # s after which people see again where the robot is
MOTION_ERROR_SHARE, HEADING_ERROR_RAD = (
    0.03,
    0.03,
)  # deviations of a motion, and of the heading after it
NO_IMAGE = np.zeros((0, 0, 3), np.uint8)
_RANDOM = [f"turn {side} {size}" for side in ("left", "right") for size in ("small", "medium")]
_RANDOM += ["move forward small", "move forward medium", "search"]


class Decider:
    """A model that decides by one frame and what it is told."""

    def __init__(self, vlm: Vlm) -> None:
        self._vlm, self._spec = vlm, vlm.spec(ANSWER_TOKENS)

    def answer(self, look: Look, instruction: str) -> str:
        """Its greedy answer to a picture, the reason first."""
        jpeg, told = encode_jpeg(look.image, 95), look.space.say(TOLD.free_space)
        request = TOLD.request(instruction, jpeg, REASON_FIRST, free_space=told)
        (ids,) = greedy_answers(self._vlm, [request], self._spec)
        return self._text(ids)

    def completed(self, looks: Sequence[Look], rooms: Sequence[Room]) -> list[str]:
        """Its answers where it is given the right reason in a picture's place, all in one pass."""
        sessions, reasons = [], []
        for look, room in zip(looks, rooms, strict=True):
            told = look.space.say(TOLD.free_space)
            request = TOLD.request(room.instruction, b"", REASON_FIRST, free_space=told)
            words = [Message(message.role, (message.text,)) for message in request.messages]
            session = self._vlm.open(self._vlm.prompt(Request(tuple(words)), self._spec))
            reasons.append(look.reason(room.target))
            session.extend(self._vlm.tokenizer(reasons[-1])["input_ids"])
            sessions.append(session)
        answers = generate(self._vlm, sessions, [GREEDY] * len(sessions), self._spec)
        for session in sessions:
            session.close()
        return [reason + self._text(ids) for reason, ids in zip(reasons, answers, strict=True)]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._vlm.tokenizer.decode(ids, skip_special_tokens=True))


@dataclass(frozen=True)
class Look:
    """What a robot sees and is told at a pose, how far it gets from there, and by the expert, if
    one says it, what costs how much."""

    image: np.ndarray
    things: tuple[VisibleThing, ...]
    space: FreeSpace
    reach: Reach
    costs: np.ndarray

    def reason(self, name: str) -> str:
        """The right one, without what follows from the action."""
        return "reason:" + "".join(piece.text for piece in reason_of(visible(self.things), name))

    @property
    def right(self) -> str:
        """The action that costs least; empty: nobody says it."""
        return ACTIONS[int(self.costs.argmin())] if len(self.costs) else ""


class Driver(ExitStack):
    """Decides for a robot in one room: a model, or without one the expert; both err with a
    ``share`` of random actions or are helped by that share of the expert's.

    ``base``: whose lidar, tilt and people are seen. ``painter``: of the pictures; without one there
    are none. ``taught``: whether the expert says what is right; without a model it does. ``looks``:
    then, of where the thing can be asked for, each with the segmented picture.
    """

    def __init__(
        self,
        room: Room,
        base: Base,
        rng: np.random.Generator,
        painter: Camera | None = None,
        decider: Decider | None = None,
        taught: bool = False,
        share: float = 0.0,
    ) -> None:
        super().__init__()
        self.room, self.looks = room, list[tuple[Look, np.ndarray]]()
        self._rng, self._decider, self._share = rng, decider, share
        self._painter = None if painter is None else self.enter_context(painter)
        self._base, self._measurer = base, None
        if taught or decider is None:
            camera = Camera(Scene(room), "rays", SEGMENTED_PX, shadows=False)
            self._measurer = self.enter_context(camera)
        self._memory = MissionMemory()

    def __call__(self, pose: Pose) -> str:
        """The action that is taken at a pose."""
        look = self.look(pose)
        if self._decider is not None:
            return self.take(look, self._decider.answer(look, self.room.instruction))
        return self.take(look)

    def look(self, pose: Pose) -> Look:
        """What is seen and told there."""
        rng, name = self._rng, self.room.target
        pitch, roll = (float(v) for v in np.clip(rng.normal(0, 0.02, 2), -0.06, 0.06))
        eye = eye_at(pose, pitch, roll, float(rng.normal(0, 0.005)))
        eye = self._base.eye if isinstance(self._base, Legs) else eye
        sight = sight_of(pose, self._base, ROOM_ROBOT)
        space = free_space_of(pose, sight, ROOM_ROBOT)
        space = self._memory.tell(name, space, tells_path=True)
        reach, image = Reach.of_sight(sight, ROOM_ROBOT), NO_IMAGE
        posture = posture_of(self._base.data)
        for camera in filter(None, (self._painter, self._measurer)):
            camera.place(posture)
        if self._painter is not None:
            image = expose(self._painter.render(eye), rng)
            image = halved(decode_jpeg(encode_jpeg(image, int(rng.integers(70, 96)))))
        if self._measurer is None:
            return Look(image, (), space, reach, np.zeros(0))
        segmented = self._measurer.segment(eye)
        things = tuple(visible_things(self.room, eye, segmented))
        thing = visible(things).get(name)
        # before an answer has told the place, the path leads to where it might be
        path = space.path if thing is None or space.seen is not None else None
        costs = costs_of(thing, path, reach, space.tried)
        look = Look(image, things, space, reach, costs)
        if name in askable(things):
            self.looks.append((look, segmented))
        return look

    def wait(self, pose: Pose) -> None:
        """Let people walk for the time of an action, after which the robot is there."""
        assert isinstance(self._base, World), "a drive needs no legs"
        for _ in range(round(DRIVE_ACTION_S / WALK_S)):
            self._base.walk(WALK_S, pose)

    def take(self, look: Look, text: str | None = None) -> str:
        """The action that is taken after this answer; None: the expert's."""
        name, taken = self.room.target, look.right
        if text is not None:
            taken = str(action_of(text) or "")
        else:
            text = answer(look.things, name, REASON_FIRST) if name in askable(look.things) else ""
        if self._measurer is not None and self._rng.random() < self._share:
            wrong = self._decider is None and look.right != "stop"
            taken = str(self._rng.choice(_RANDOM)) if wrong else look.right
        if (action := parse_action(taken)) is not None:
            seen = TOLD.place(text)
            self._memory.act(name, look.space, action, seen, absent=bool(text) and seen is None)
        return taken


def drive(drivers: Sequence[Driver], rng: np.random.Generator, decider: Decider | None) -> int:
    """Drive them until they stop or are stuck, a decision of each at a time; returns how many
    arrived.

    There is no navigator: each gets as far as one would let it, by what the lidar shows, with
    errors. An answer without an action ends a drive, too. ``decider``: decides for all in one pass;
    None: the expert of each.
    """
    poses, arrived = {driver: driver.room.start for driver in drivers}, 0
    for _ in range(DRIVE_ACTIONS):
        if not poses:
            break
        looks = {driver: driver.look(pose) for driver, pose in poses.items()}
        texts: list[str | None] = [None] * len(looks)
        if decider is not None:
            texts[:] = decider.completed(list(looks.values()), [driver.room for driver in looks])
        for (driver, look), text in zip(looks.items(), texts, strict=True):
            action, pose = driver.take(look, text), poses.pop(driver)
            if action == "stop":
                arrived += faces(driver.room.thing(driver.room.target), pose)
            elif action in GOALS and len(look.space.tried) < MOST_TRIED:
                poses[driver] = moved(pose, action, look.reach, rng)
                driver.wait(poses[driver])
    return arrived


def moved(pose: Pose, action: str, reach: Reach, rng: np.random.Generator) -> Pose:
    """Where one of GOALS leads to."""
    way, turn = (
        made * float(rng.normal(1.0, MOTION_ERROR_SHARE)) for made in reach.of(GOALS[action])
    )
    turned = pose.yaw + turn + float(rng.normal(0.0, HEADING_ERROR_RAD))
    return ahead_of(replace(pose, yaw=turned), way)
