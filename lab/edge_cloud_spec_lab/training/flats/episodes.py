"""Episodes in flats and rooms, rendered once and kept: what conversations teach.

Most are the expert's. Its past has noise: some actions are drawn at random, so that it recovers;
its motions err a little. In the others a model answers, and the expert says what would have been
right (DAgger: Ross, Gordon and Bagnell, AISTATS 2011).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from edge_cloud_spec.dialects import ours
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import ORDERS, action_of, parse_action
from edge_cloud_spec.nav.history import HistorySpec, Turn
from edge_cloud_spec.nav.pose import Pose, wrap
from edge_cloud_spec.nav.steps import Steps, goal_of

from ...sim.camera import Camera, encode_jpeg, eye_at
from ...sim.flat import Flat, Sight, flat_of, make_flat, sight_of
from ...sim.room import make_room
from ...sim.scene import Scene
from ...sim.view import VIEW_PX, expose, halved, open_gl
from ...tokens import ANSWER_TOKENS
from ..rendered import make_files
from ..tiny.evaluation import greedy_answers
from ..tiny.language import Piece, assembled
from .expert import ExpertDecision, decide, first_memory, heard

PER_FILE = 10
MOST_FRAMES = 130  # of an expert's episode
MOST_ROLLED = 80  # of a model's
MOST_WRONG = 10  # actions in a row, after which it is lost
ROOM_SHARE = 0.2  # of the episodes are in one room
RANDOM_ACTION_SHARES = (0.0, 0.08, 0.2)  # shares of random actions, one of them an episode
EXPERT_ANSWER_SHARES = (0.0, 0.0, 0.3)  # shares of the expert's answers where a model decides
REMEMBERED_FRAMES = 8  # that a model remembers
SEGMENTED_PX = 64  # pixels a side: rays cost most of the time
_RANDOM = tuple(f"turn {side} {size}" for side in ("left", "right") for size in ("small", "large"))
_RANDOM += ("move forward small", "move forward medium", "search")


@dataclass(frozen=True)
class EpisodeTurn:
    """A frame and what is said of it: the expert's action, the one that was taken, and why.

    ``said``: a model's whole answer, where it was not the expert's.
    """

    action: str
    taken: str
    reason: tuple[Piece, ...]
    said: str = ""

    def pieces(self, order: str) -> list[Piece]:
        """The answer as it stands in the conversation, and what is to be learned of it."""
        right = assembled(self.action, self.reason, order)
        if self.said:
            return corrected(self.said, right)
        taken = assembled(self.taken, self.reason, order)
        return taken if taken == right else corrected("".join(p.text for p in taken), right)


_WORD = re.compile(r" ?[^ ;,]+|[;,]| ")


def corrected(said: str, right: Sequence[Piece]) -> list[Piece]:
    """The words that were said. Action and reason are each learned up to the first word that is not
    the right one, which is learned in its place."""
    parts: list[list[Piece]] = [[]]
    for piece in right:
        words = _WORD.findall(piece.text)
        parts[-1] += [replace(piece, text=word) for word in words]
        if piece.text == ";":
            parts.append([])
    pieces, number, place = [], 0, 0
    for word in _WORD.findall(said):
        due = parts[number][place] if place < len(parts[number]) else Piece(word, 0.0)
        same = due.text == word
        pieces.append(due if same else Piece(word, due.weight, due.text))
        place = place + 1 if same else len(parts[number])
        if word == ";":
            number, place = min(number + 1, len(parts) - 1), 0
    return pieces


@dataclass(frozen=True)
class Episode:
    """``turns[i]`` is about the i-th picture; ``jpegs`` are those. ``order`` of the answers that
    were said; empty: of none."""

    instruction: str
    family: str
    order: str
    turns: tuple[EpisodeTurn, ...]
    jpegs: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.turns)


class ModelPlayer:
    """Answers the frames of a mission with a model's greedy answer. It remembers so many frames,
    and its own answers to them."""

    def __init__(self, vlm: Vlm, instruction: str, order: str, frames: int) -> None:
        self._vlm, self._instruction, self.order = vlm, instruction, order
        self._history, self._spec = HistorySpec(frames), vlm.spec(ANSWER_TOKENS)
        self._turns: tuple[Turn, ...] = ()

    def answer(self, jpeg: bytes) -> str:
        """The answer to the next frame."""
        turns = self._history.chosen(self._turns)
        request = ours().request(self._instruction, jpeg, self.order, turns)
        (ids,) = greedy_answers(self._vlm, [request], self._spec)
        return str(self._vlm.tokenizer.decode(ids, skip_special_tokens=True))

    def remember(self, jpeg: bytes, answer: str) -> None:
        """The turn that the next prompts hold."""
        self._turns = self._history.kept((*self._turns, Turn.of(jpeg, answer)))


Speak = Callable[[bytes, ExpertDecision], tuple[str, str]]
"""Of a frame and the expert's decision: the action that is taken, and the whole answer if a model
gave it."""


def noisy(rng: np.random.Generator) -> Speak:
    """The expert, a share of whose actions is drawn at random."""
    share = float(rng.choice(RANDOM_ACTION_SHARES))

    def speak(_: bytes, decision: ExpertDecision) -> tuple[str, str]:
        random = decision.action != "stop" and rng.random() < share
        return (str(rng.choice(_RANDOM)) if random else decision.action), ""

    return speak


def helped(player: ModelPlayer, rng: np.random.Generator) -> Speak:
    """A model, in whose place the expert gives a share of the answers."""
    share = float(rng.choice(EXPERT_ANSWER_SHARES))

    def speak(jpeg: bytes, decision: ExpertDecision) -> tuple[str, str]:
        if rng.random() < share:
            right = assembled(decision.action, decision.reason, player.order)
            said = "".join(piece.text for piece in right)
        else:
            said = player.answer(jpeg)
        player.remember(jpeg, said)
        return str(action_of(said) or ""), said

    return speak


class EpisodeCamera(ExitStack):
    """One camera for many flats in turn; used and closed by the thread that made it."""

    def __init__(self, renderer: str) -> None:
        super().__init__()
        self._renderer, self._context = renderer, open_gl(renderer)
        if self._context is not None:
            self.callback(self._context.close)
        self._cameras = self.enter_context(ExitStack())

    def open(self, number: int, rng: np.random.Generator, one_room: bool) -> Flat:
        """The flat of this number, or the room; its pictures follow."""
        self._cameras.close()
        self._flat = flat = flat_of(make_room(number)) if one_room else make_flat(number)
        scene, shadows = Scene(flat.room), bool(rng.random() < 0.7)
        caster = Camera(scene, "rays", SEGMENTED_PX, shadows)
        if self._context is not None and (self._renderer == "egl" or rng.random() < 0.75):
            painter = Camera(scene, "egl", 2 * VIEW_PX, shadows, self._context)
        else:
            painter = Camera(scene, "rays", VIEW_PX, shadows)
        self._caster = self._cameras.enter_context(caster)
        self._painter = self._cameras.enter_context(painter)
        return flat

    def look(self, pose: Pose, rng: np.random.Generator) -> tuple[bytes, Sight]:
        """The picture that a robot at ``pose`` takes, with a camera's errors, and what it shows.

        JPEG, VIEW_PX pixels a side.
        """
        pitch, roll = (float(v) for v in np.clip(rng.normal(0, 0.015, 2), -0.05, 0.05))
        eye = eye_at(pose, pitch, roll, float(rng.normal(0, 0.004)))
        sight = sight_of(self._flat, pose, eye, self._caster.segment(eye))
        image = halved(expose(self._painter.render(eye), rng))
        return encode_jpeg(image, int(rng.integers(80, 97))), sight


def write_episodes(
    path: Path, seed: int, count: int, renderer: str, model: Path | None = None
) -> None:
    """``count`` episodes of seeds that no benchmark has, as one npz file.

    model: the checkpoint that decides; None: the expert does.
    """
    vlm = None if model is None else load(str(model), threads=1)
    heads, jpegs = [], []
    with EpisodeCamera(renderer) as camera:
        for number in range(count):
            rng = np.random.default_rng((seed, number, 0xE915))
            flat = camera.open(2**31 + seed * 1000 + number, rng, bool(rng.random() < ROOM_SHARE))
            pose, memory, order = flat.room.start, first_memory(flat), ""
            turns, wrong = [], 0
            if vlm is None:
                speak = noisy(rng)
            else:
                order = str(rng.choice(ORDERS))
                speak = helped(
                    ModelPlayer(vlm, flat.room.instruction, order, REMEMBERED_FRAMES), rng
                )
            for _ in range(MOST_FRAMES if vlm is None else MOST_ROLLED):
                jpeg, sight = camera.look(pose, rng)
                decision = decide(flat, memory, sight)
                taken, said = speak(jpeg, decision)
                memory = heard(flat, decision.memory, sight, said) if said else decision.memory
                turns.append(asdict(EpisodeTurn(decision.action, taken, decision.reason, said)))
                jpegs.append(np.frombuffer(jpeg, np.uint8))
                wrong = 0 if taken == decision.action else wrong + 1
                if taken in ("stop", "") or (vlm is not None and wrong > MOST_WRONG):
                    break
                pose = moved(flat.ways.gap_at, pose, taken, rng)
            heads.append([flat.room.instruction, flat.family, order, turns])
    np.savez(
        path,
        heads=np.array(json.dumps(heads)),
        sizes=np.array([len(jpeg) for jpeg in jpegs]),
        jpegs=np.concatenate(jpegs),
    )


def moved(
    gap_at: Callable[[float, float], float], pose: Pose, action: str, rng: np.random.Generator
) -> Pose:
    """Where a robot stands after an action, with its errors; it stops before what is solid."""
    meant = parse_action(action)
    assert meant is not None
    goal = goal_of(meant, Steps())
    turn = goal.angle * float(rng.normal(1, 0.03)) + float(rng.normal(0, 0.01))
    way = goal.distance * float(rng.normal(1, 0.03))
    x, y = pose.x, pose.y
    for _ in range(math.ceil(way / 0.05)):
        step = way / math.ceil(way / 0.05)
        to = x + step * math.cos(pose.yaw), y + step * math.sin(pose.yaw)
        if gap_at(*to) < min(0.18, gap_at(x, y)):
            break
        x, y = to
    return Pose(x, y, wrap(pose.yaw + turn))


def read_episodes(path: Path) -> Iterator[Episode]:
    """The episodes of a file."""
    with np.load(path) as stored:
        heads = json.loads(str(stored["heads"]))
        ends = np.cumsum(stored["sizes"])
        files = [bytes(part) for part in np.split(stored["jpegs"], ends[:-1])]
    begin = 0
    for instruction, family, order, said in heads:
        turns = tuple(
            EpisodeTurn(**turn | {"reason": tuple(Piece(**piece) for piece in turn["reason"])})
            for turn in said
        )
        span = slice(begin, begin + len(turns))
        begin += len(turns)
        yield Episode(instruction, family, order, turns, tuple(files[span]))


def make_episodes(
    folder: Path, seed: int, count: int, renderer: str, processes: int, model: Path | None = None
) -> list[Path]:
    """Files of ``count`` episodes of a seed, rendered into ``folder`` unless they are there.

    model: the checkpoint that decides; None: the expert does.
    """
    kind = "episodes" if model is None else "rollouts"
    write = partial(write_episodes, model=model)
    return make_files(write, folder, kind, seed, count, PER_FILE, renderer, processes)
