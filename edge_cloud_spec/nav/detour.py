"""Ways around what stands on the line of a move.

The body keeps its heading on a way, so its corners do not sweep and the camera looks along the
move. A way stays in the ellipse whose foci are the move's begin and end, L apart, and whose axis is
the longest path B that the move may command: its half-width is sqrt(B^2 - L^2) / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from .footprint import LEAVING_M, ObstacleSettings, Points
from .pose import Velocity

LEAST_MOVE_M = 0.4  # a shorter move's budget leaves no room for a way around
OFFSETS = 8  # to either side of the line, as far as the ellipse is wide
ENTRIES_M = (0.05, 0.25, 0.5)  # of progress within which a way reaches its offset
RETURN_M = 0.3  # of progress within which it comes back to the line
ARRIVED_SHARE = 0.75  # of a move, after which it has arrived
SWAY_M = 0.03  # that a body may be beside its way
SPARE_M = 0.03  # of the budget that a way leaves
LOOK_PERIOD_S = 0.2  # between two looks whether the way is clear
SAME_PLACE_M = 0.03  # of points that count as one; less than what a way leaves beside the body
BEYOND_M = 1.0  # ahead of a way's end, where things are better not in the body's strip
# What costs as much as a metre of way: a metre of an end beside the line, of one before the goal,
# and of what the next move would have to go aside.
BESIDE_COST, SHORT_COST, BEYOND_COST = 0.1, 2.0, 1.5
ROOM_M, TIGHT_WAY_COST = 0.12, 0.5  # m to either side without which a way costs more: turns need it

Place = tuple[float, float]
"""Metres ahead of where a move begins, and to the left of it."""

Look = Callable[[float], tuple[Points, Sequence[int]] | None]
"""What is near the base at a time, monotonic s: points from its middle, and which sides are
seen (1 left, -1 right). None: unknown."""


@dataclass(frozen=True)
class Way:
    """Where the body's middle goes: straight from corner to corner, each farther ahead."""

    corners: tuple[Place, ...]

    def at(self, ahead: float) -> tuple[float, float]:
        """Metres aside at this progress, and the slope there; beyond its ends, along the line."""
        for (begin, left), (end, to) in pairwise(self.corners):
            if begin <= ahead < end:
                slope = (to - left) / (end - begin)
                return left + slope * (ahead - begin), slope
        return self.corners[0 if ahead < self.corners[0][0] else -1][1], 0.0

    def after(self, at: Place) -> Way:
        """What remains of it for a body that is there."""
        return Way((at, *(corner for corner in self.corners if corner[0] > at[0] + LEAVING_M)))

    def before(self, ahead: float) -> Way:
        """As much of it as is not farther ahead."""
        rest = tuple(corner for corner in self.corners if corner[0] < ahead)
        return Way(
            (*rest, (ahead, self.at(ahead)[0])) if 0 < len(rest) < len(self.corners) else rest
        )

    @property
    def length(self) -> float:
        """Metres."""
        return sum(math.dist(*part) for part in pairwise(self.corners))

    @property
    def sides(self) -> set[int]:
        """To which sides it leads: 1 left, -1 right."""
        aside = (to - left for (_, left), (_, to) in pairwise(self.corners))
        return {1 if metres > 0.0 else -1 for metres in aside if metres}

    def is_within(self, size: float, path: float) -> bool:
        """Whether it stays in the ellipse of a move of ``size`` that may command ``path``, m."""
        ends = (0.0, 0.0), (size, 0.0)
        return all(sum(math.dist(end, at) for end in ends) <= path for at in self.corners)

    def is_clear(
        self,
        points: Points,
        body: ObstacleSettings,
        keeps: float,
        more: float = SWAY_M,
        known: dict[tuple[Place, Place, float], bool] | None = None,
    ) -> bool:
        """Whether the body, wider by its margin and ``more`` (m), meets no point [n, 2] on it, nor
        within ``keeps`` (m) straight on from the end of each of its parts: nearer, `Obstacles`
        stops it. ``known``: the parts that were judged before, of these points.
        """
        known = {} if known is None else known
        for begin, end in pairwise(self.corners):
            if (begin, end, more) not in known:
                far = math.dist(begin, end)
                ahead, left = ((b - a) / far for a, b in zip(begin, end, strict=True))
                met = body.seconds_to(points - begin, Velocity(ahead, left), body.margin + more)
                known[begin, end, more] = met.min(initial=math.inf) >= far + keeps
            if not known[begin, end, more]:
                return False
        return True


class Detour:
    """Where a move goes beside its line, chosen anew whenever something stands on its way.

    Call ``reference`` at each tick of the move. ``chosen``: the corners of the way around that was
    chosen last, from where the base was then; empty: none was.
    """

    def __init__(
        self, size: float, path: float, body: ObstacleSettings, keeps: float, look: Look
    ) -> None:
        """size: of the move, m; ``path``: metres that it may command; keeps: metres that stay free
        ahead of the base."""
        self.half_width = math.sqrt(path * path - size * size) / 2.0  # of the ellipse, m
        self.chosen: tuple[Place, ...] = ()
        self._way: Way | None = None  # straight to the goal from where the move was taken up
        self._size, self._path, self._body, self._keeps = size, path, body, keeps
        self._look, self._looked = look, -math.inf

    def reference(self, now: float, at: Place, turned: float, left: float) -> tuple[float, float]:
        """Metres aside, and the slope, where the body should be now that it is ``at``, turned by
        ``turned`` (rad), with ``left`` metres to command."""
        self._way = self._way or Way((at, (self._size, 0.0))).after(at)
        if now - self._looked >= LOOK_PERIOD_S and (seen := self._look(now)) is not None:
            self._looked = now
            cos, sin = math.cos(turned), math.sin(turned)
            turn, (points, sides) = np.array([[cos, sin], [-sin, cos]]), seen
            points = self._near(points @ turn + at)
            present = self._way.after(at).before(ARRIVED_SHARE * self._size)
            is_clear = present.is_clear(points, self._body, self._keeps)
            if not is_clear and (way := self._around(points, sides, at, left)) is not None:
                self._way = way
                corners = (np.array(way.corners) - at) @ turn.T
                self.chosen = tuple((float(x), float(y)) for x, y in corners)
        return self._way.at(at[0])

    @property
    def ends(self) -> float:
        """Metres ahead at which the way ends."""
        return self._size if self._way is None else self._way.corners[-1][0]

    def _near(self, points: Points) -> Points:
        """The points that matter to any way, one of each ``SAME_PLACE_M``: a cloud has thousands,
        and this is done between two commands."""
        body, (ahead, aside) = self._body, points.T
        wide = self.half_width + body.side + body.margin + ROOM_M + self._keeps
        there = (np.abs(aside) < wide) & (ahead > -body.reach - self._keeps)
        points = points[there & (ahead < self._size + BEYOND_M + body.reach)]
        places = np.floor(points / SAME_PLACE_M).astype(np.intp)
        _, first = np.unique(places, axis=0, return_index=True)
        return np.asarray(points[first])

    def _around(self, points: Points, sides: Sequence[int], at: Place, left: float) -> Way | None:
        """The best clear way from ``at``, to sides that are seen; None: there is none."""
        known: dict[tuple[Place, Place, float], bool] = {}
        cost = [
            (self._cost(way, points), way)
            for way in self._ways(at)
            if way.length <= left - SPARE_M
            and way.is_within(self._size, self._path)
            and way.sides <= {*sides}
            and self._gets_past(way, points)
        ]
        best, least = None, math.inf
        for least_cost, way in sorted(cost, key=lambda each: each[0]):
            if least_cost >= least:
                break
            if way.is_clear(points, self._body, self._keeps, known=known):
                roomy = way.is_clear(points, self._body, self._keeps, ROOM_M, known)
                if (whole := least_cost + (0.0 if roomy else TIGHT_WAY_COST)) < least:
                    best, least = way, whole
        return best

    def _ways(self, at: Place) -> Iterator[Way]:
        """Candidates: beside the line to their end, or back to it, or only a step to the side."""
        ahead, aside = at
        offsets = np.linspace(-self.half_width, self.half_width, 2 * OFFSETS + 1)
        for offset, entry in product((aside, *map(float, offsets)), ENTRIES_M):
            turn = ahead + entry
            for end in (self._size, ARRIVED_SHARE * self._size):
                if turn + LEAVING_M < end:
                    yield Way((at, (turn, offset), (end, offset)))
            if turn + LEAVING_M < self._size - RETURN_M:
                back = self._size - RETURN_M
                yield Way((at, (turn, offset), (back, offset), (self._size, 0.0)))
            yield Way((at, (turn, offset)))

    def _gets_past(self, way: Way, points: Points) -> bool:
        """Whether it gets far enough, or at least makes a way past what is ahead shorter by half of
        what it goes aside: beside a wall nothing does."""
        begin, end = way.corners[0], way.corners[-1]
        gained = self._aside(begin, points) - self._aside(end, points)
        return end[0] >= ARRIVED_SHARE * self._size or gained > abs(end[1] - begin[1]) / 2

    def _aside(self, at: Place, points: Points) -> float:
        """How far to a side a body that is ``at`` would have to go to get past what is ahead."""
        body, aside = self._body, points[:, 1] - at[1]
        wide, ahead = body.side + body.margin + SWAY_M, points[:, 0] - at[0] - body.front
        met = aside[(ahead > 0.0) & (ahead < BEYOND_M) & (np.abs(aside) < wide)]
        return float(min(met.max() + wide, wide - met.min())) if len(met) else 0.0

    def _cost(self, way: Way, points: Points) -> float:
        end = way.corners[-1]
        return (
            way.length
            + BESIDE_COST * abs(end[1])
            + SHORT_COST * (self._size - end[0])
            + BEYOND_COST * self._aside(end, points)
        )
