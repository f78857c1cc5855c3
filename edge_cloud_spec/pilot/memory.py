"""What a mission's prompts remember of its earlier decisions."""

from __future__ import annotations

import math
from collections import deque

from ..nav.answer import Action
from ..nav.free_space import FreeSpace
from ..nav.history import MAX_ANSWER_CHARACTERS, HistorySpec, Turn
from ..nav.pose import Pose, apart
from .costmap import Costmap

SAME_PLACE = (0.15, math.radians(9))  # m, rad; what is nearer is the same place
TRIED_REMEMBERED = 256  # actions of a mission
SHOWS_WITHIN = (math.radians(20), 1.5)  # rad, m; what is so near and ahead is in the picture


class MissionMemory:
    """What was decided in one mission: the frames with the verified answers, where which action was
    tried, where the thing is that it looks for, as the last answer that told it had it, and what
    lidars showed; m in the odometry's frame.

    It begins anew with another mission.
    """

    def __init__(self) -> None:
        self._mission = ""
        self._turns: tuple[Turn, ...] = ()
        self._place: tuple[float, float] | None = None
        self._tried: deque[tuple[Pose, str]] = deque(maxlen=TRIED_REMEMBERED)
        self._costmap = Costmap()

    def turns(self, mission: str, spec: HistorySpec) -> tuple[Turn, ...]:
        """What the next prompt of this mission holds before its frame."""
        return spec.chosen(spec.kept(self._turns)) if mission == self._mission else ()

    def tell(self, mission: str, space: FreeSpace, *, tells_path: bool = False) -> FreeSpace:
        """The free space with what this mission knows of the place; in a replay as it was told."""
        front = space.front
        if space.told:
            return space
        self._begin(mission)
        if front is None:
            return space.telling(None)
        path = None
        if tells_path and self._costmap.add(space):
            path = self._costmap.path(self._place)
        here = [
            action
            for pose, action in self._tried
            if all(a < b for a, b in zip(apart(pose, front), SAME_PLACE, strict=True))
        ]
        return space.telling(self._place, here, path)

    def add(
        self, mission: str, spec: HistorySpec, jpeg: bytes, answer: str, free_space: str = ""
    ) -> None:
        """A decision of this mission is verified; ``free_space``: as its prompt told it."""
        self._begin(mission)
        turn = Turn.of(jpeg, answer[:MAX_ANSWER_CHARACTERS], free_space)
        self._turns = spec.kept((*self._turns, turn))

    def act(
        self,
        mission: str,
        space: FreeSpace,
        action: Action,
        seen: tuple[float, float] | None,
        *,
        absent: bool = False,
    ) -> None:
        """This action is decided there, and the thing ``seen`` (rad, m) from there, if it is.

        absent: a whole verified answer sees it nowhere. Where it should be in that picture, it is
        forgotten where it was seen.
        """
        self._begin(mission)
        if space.front is not None:
            self._tried.append((space.front, str(action)))
            if seen is not None:
                self._place = space.place(*seen)
            elif absent and space.seen is not None and all(map(_within, space.seen, SHOWS_WITHIN)):
                self._place = None

    def _begin(self, mission: str) -> None:
        if mission != self._mission:
            self._mission, self._turns, self._place = mission, (), None
            self._tried.clear()
            self._costmap = Costmap()


def _within(value: float, most: float) -> bool:
    return abs(value) <= most
