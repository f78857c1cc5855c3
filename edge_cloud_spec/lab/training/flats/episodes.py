"""Episodes of the expert in flats and rooms, rendered once and kept: what conversations teach.

Its past has noise: some actions are drawn at random, so that it recovers; its motions err a little.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....nav.answer import parse_action
from ....nav.motion import Steps, goal_of
from ....nav.pose import Pose, wrap
from ..tiny.data import make_files
from ..tiny.language import Piece, assembled
from .expert import decide, first_memory

PER_FILE = 10
MOST_FRAMES = 130  # of an episode
ROOM_SHARE = 0.2  # of the episodes are in one room
WRONG = (0.0, 0.08, 0.2)  # shares of random actions, one of them an episode
_RANDOM = tuple(f"turn {side} {size}" for side in ("left", "right") for size in ("small", "large"))
_RANDOM += ("move forward small", "move forward medium", "search")


@dataclass(frozen=True)
class EpisodeTurn:
    """A frame and what is said of it: the expert's action, the one that was taken, and why."""

    action: str
    taken: str
    reason: tuple[Piece, ...]

    def pieces(self, order: str) -> list[Piece]:
        """The answer as it stands in the conversation.

        Where another action was taken, the expert's is learned up to the first word that differs.
        """
        pieces = assembled(self.taken, self.reason, order)
        taken, right = self.taken.split(), self.action.split()
        if taken == right:
            return pieces
        start = 1 if order == "action first" else len(pieces) - 1 - len(taken)
        at = next(i for i, (a, b) in enumerate(zip(taken, right, strict=False)) if a != b)
        word = pieces[start + at]
        pieces[start + at] = Piece(word.text, word.weight, f" {right[at]}")
        for i in range(start + at + 1, start + len(taken)):
            pieces[i] = Piece(pieces[i].text, 0.0)
        return pieces


@dataclass(frozen=True)
class Episode:
    """``turns[i]`` is about the i-th picture; ``jpegs`` are those."""

    instruction: str
    family: str
    turns: tuple[EpisodeTurn, ...]
    jpegs: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.turns)


def write_episodes(path: Path, seed: int, count: int, renderer: str) -> None:
    """``count`` episodes of seeds that no benchmark has, as one npz file."""
    from ...sim.episode_camera import EpisodeCamera  # the simulator is needed to train, not to run

    heads, jpegs = [], []
    with EpisodeCamera(renderer) as camera:
        for number in range(count):
            rng = np.random.default_rng((seed, number, 0xE915))
            flat = camera.open(2**31 + seed * 1000 + number, rng, bool(rng.random() < ROOM_SHARE))
            turns, pose, memory = [], flat.room.start, first_memory(flat)
            wrong = float(rng.choice(WRONG))
            for _ in range(MOST_FRAMES):
                jpeg, sight = camera.look(pose, rng)
                decision = decide(flat, memory, sight)
                memory, taken = decision.memory, decision.action
                if taken != "stop" and rng.random() < wrong:
                    taken = str(rng.choice(_RANDOM))
                reason = [(piece.text, piece.weight) for piece in decision.reason]
                turns.append((decision.action, taken, reason))
                jpegs.append(np.frombuffer(jpeg, np.uint8))
                if taken == "stop":
                    break
                pose = moved(flat.ways.gap_at, pose, taken, rng)
            heads.append([flat.room.instruction, flat.family, turns])
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
    for instruction, family, said in heads:
        turns = tuple(
            EpisodeTurn(action, taken, tuple(Piece(*piece) for piece in reason))
            for action, taken, reason in said
        )
        span = slice(begin, begin + len(turns))
        begin += len(turns)
        yield Episode(instruction, family, turns, tuple(files[span]))


def make_episodes(folder: Path, seed: int, count: int, renderer: str, processes: int) -> list[Path]:
    """Files of ``count`` episodes of a seed, rendered into ``folder`` unless they are there."""
    return make_files(
        write_episodes, folder, "episodes", seed, count, PER_FILE, renderer, processes
    )
