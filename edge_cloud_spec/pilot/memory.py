"""What a mission's prompts remember of its earlier decisions."""

from __future__ import annotations

import math
from collections import deque

from ..nav.answer import Action
from ..nav.free_space import FreeSpace
from ..nav.history import MAX_ANSWER_CHARACTERS, HistorySpec, Turn
from ..nav.pose import Pose, apart

SAME_PLACE = (0.15, math.radians(9))  # m, rad; what is nearer is the same place
TRIED_REMEMBERED = 256  # actions of a mission


class MissionMemory:
    """What was decided in one mission: the frames with the verified answers, where which action was
    tried, and where the thing is that it looks for, as the last answer that told it had it; m in
    the odometry's frame.

    It begins anew with another mission.
    """

    def __init__(self) -> None:
        self._mission = ""
        self._turns: tuple[Turn, ...] = ()
        self._place: tuple[float, float] | None = None
        self._tried: deque[tuple[Pose, str]] = deque(maxlen=TRIED_REMEMBERED)

    def turns(self, mission: str, spec: HistorySpec) -> tuple[Turn, ...]:
        """What the next prompt of this mission holds before its frame."""
        return spec.chosen(spec.kept(self._turns)) if mission == self._mission else ()

    def tell(self, mission: str, space: FreeSpace) -> FreeSpace:
        """The free space with what this mission knows of the place; in a replay as it was told."""
        front = space.front
        if space.told:
            return space
        if mission != self._mission or front is None:
            return space.telling(None)
        here = [
            action
            for pose, action in self._tried
            if all(a < b for a, b in zip(apart(pose, front), SAME_PLACE, strict=True))
        ]
        return space.telling(self._place, here)

    def add(
        self, mission: str, spec: HistorySpec, jpeg: bytes, answer: str, free_space: str = ""
    ) -> None:
        """A decision of this mission is verified; ``free_space``: as its prompt told it."""
        self._begin(mission)
        turn = Turn.of(jpeg, answer[:MAX_ANSWER_CHARACTERS], free_space)
        self._turns = spec.kept((*self._turns, turn))

    def act(
        self, mission: str, space: FreeSpace, action: Action, seen: tuple[float, float] | None
    ) -> None:
        """This action is decided there, and the thing ``seen`` (rad, m) from there, if it is."""
        self._begin(mission)
        if space.front is not None:
            self._tried.append((space.front, str(action)))
            self._place = self._place if seen is None else space.place(*seen)

    def _begin(self, mission: str) -> None:
        if mission != self._mission:
            self._mission, self._turns, self._place = mission, (), None
            self._tried.clear()
