"""Paths of a body that drives ahead or back and turns where it stands, over a grid of the floor.

A state is a heading and a cell (a state lattice: Pivtoraiko and Kelly, IROS 2005). A long body fits
through a gap only along some headings, and turns only where there is room for its corners.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_QUARTER = ((1, 0), (2, 1), (1, 1), (1, 2))  # a step of each heading, cells
HEADING_STEPS = (*_QUARTER, *((-j, i) for i, j in _QUARTER))
HEADING_STEPS += tuple((-i, -j) for i, j in HEADING_STEPS)
HEADINGS_RAD = np.array([math.atan2(j, i) for i, j in HEADING_STEPS])
HEADINGS, WIDEST_STEP = len(HEADING_STEPS), 2
TURN_COST, BACK_TIMES = 4.0, 1.5  # of a turn to the next heading, in free cells; of a cell back
REFUSED_COST = 100.0  # of a step that the navigator did not let it make
TIGHT_COST = 30.0  # of a state in which the body touches what is solid
STRAIGHT_SHARE, STRAIGHT_CELLS = 1.1, 0.5  # what a straight leg may cost more than the path

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Cell = tuple[int, int]
State = tuple[int, int, int]
"""A heading, and a cell."""


def nearest_heading(angle: float) -> int:
    """The heading nearest to an angle, rad."""
    return int(np.cos(HEADINGS_RAD - angle).argmax())


class Lattice:
    """What each state [HEADINGS, W, D] costs in free cells: to stand there, to come there ahead or
    back, and to turn from there to the next heading.

    ``cost``: of cells [W, D], infinite: its middle is never there; ``solid`` [W, D]: what the body
    must not touch. The body reaches ``front`` ahead and back, and ``side``; a move ends where
    ``keeps`` are free before it; cells.
    """

    def __init__(self, cost: Floats, solid: Mask, front: float, side: float, keeps: float) -> None:
        half = HEADINGS // 2
        body = [_touched(solid, angle, -front, front, side) for angle in HEADINGS_RAD[:half]] * 2
        before = [_touched(solid, angle, front, front + keeps, side) for angle in HEADINGS_RAD]
        self._stand = np.where(body, np.maximum(cost, TIGHT_COST), cost)
        lengths = np.hypot(*np.transpose(HEADING_STEPS))[:, None, None]
        shut = TIGHT_COST * np.array(before)
        self._ahead = lengths * (self._stand + shut)
        self._back = lengths * BACK_TIMES * (self._stand + np.roll(shut, half, 0))
        self._turn = TURN_COST * (self._stand + np.roll(self._stand, -1, 0)) / 2

    def shut(self, state: State, sign: int) -> None:
        """Make it dear to come there, or to its neighbours, ahead (``sign`` 1) or back (-1)."""
        heading, row, column = state
        cost, cells = (self._ahead, self._back)[sign < 0], slice(max(0, row - 1), row + 2)
        for near in (heading - 1, heading, heading + 1):
            cost[near % HEADINGS, cells, max(0, column - 1) : column + 2] += REFUSED_COST

    def costs_to_go(self, ends: Floats, start: State) -> Floats:
        """What the cheapest path from each state costs, with what it costs from where it ``ends``;
        infinite: none. Exact for ``start`` and what is cheaper, an upper bound for the rest."""
        # what costs infinity to come to may be left: a base stands where it stands
        far = np.where(np.isfinite(self._stand), ends, math.inf)
        _, w, d = far.shape
        around = (0, 0), (WIDEST_STEP, WIDEST_STEP), (WIDEST_STEP, WIDEST_STEP)
        while True:
            nearer = np.minimum(far, np.roll(far, -1, 0) + self._turn)
            nearer = np.minimum(nearer, np.roll(far + self._turn, 1, 0))
            for cost, sign in ((self._ahead, 1), (self._back, -1)):
                reached = np.pad(far + cost, around, constant_values=math.inf)
                for heading, step in enumerate(HEADING_STEPS):
                    i, j = (WIDEST_STEP + sign * s for s in step)
                    moved = reached[heading, i : i + w, j : j + d]
                    nearer[heading] = np.minimum(nearer[heading], moved)
            if not (nearer[nearer < far] < nearer[start]).any():
                return nearer
            far = nearer

    def straight(self, start: State, way: NDArray[np.int_], length: float) -> float:
        """What it costs to turn to this way (cells along the rows and columns) and go so far."""
        heading, row, column = start
        ahead = nearest_heading(math.atan2(way[1], way[0]))
        turns = (ahead - heading + HEADINGS // 2) % HEADINGS - HEADINGS // 2
        passed = (np.arange(min(0, turns), max(0, turns)) + heading) % HEADINGS
        cost = float(self._turn[passed, row, column].sum())
        if length <= 0.0:
            return cost
        parts = np.linspace(0.0, length / math.hypot(*way), 2 * int(np.abs(way).max()) + 1)[1:]
        rows, columns = np.rint(np.add(np.outer(parts, way), (row, column))).astype(int).T
        each = float(self._ahead[ahead, rows, columns].mean()) / math.hypot(*HEADING_STEPS[ahead])
        return cost + each * length

    def following(self, state: State) -> list[tuple[float, int, State]]:
        """What follows a state: its cost, 1 for a move ahead, -1 back, 0 for a turn, and where."""
        heading, row, column = state
        left, right = (heading + 1) % HEADINGS, (heading - 1) % HEADINGS
        found = [
            (float(self._turn[state]), 0, (left, row, column)),
            (float(self._turn[right, row, column]), 0, (right, row, column)),
        ]
        for cost, sign in ((self._ahead, 1), (self._back, -1)):
            i, j = (
                n + sign * s for n, s in zip((row, column), HEADING_STEPS[heading], strict=True)
            )
            if 0 <= i < cost.shape[1] and 0 <= j < cost.shape[2]:
                found.append((float(cost[heading, i, j]), sign, (heading, i, j)))
        return found


class LatticePath:
    """The cheapest path over a lattice from where a body stands, which ``cost``s so much.

    ``ends``: what it costs from where it may end, infinite: it may not end there; ``low``: the
    cell of the grid that is the lattice's first.
    """

    def __init__(self, lattice: Lattice, ends: Floats, start: State, low: Cell) -> None:
        self._lattice, self._ends, self._start, self._low = lattice, ends, start, low
        self._far = lattice.costs_to_go(ends, start)

    @property
    def cost(self) -> float:
        """Infinite: there is no path."""
        return float(self._far[self._start])

    @property
    def first_leg(self) -> Cell:
        """The cell of the grid where the first straight leg ends; of one that leads ahead the
        farthest to which straight costs hardly more than the path. Turns alone are no leg."""
        states, signs, start = [self._start], [0], self._start[1:]
        while self._far[states[-1]] < self._ends[states[-1]]:
            choices = self._lattice.following(states[-1])
            _, sign, state = min((cost + self._far[s], sign, s) for cost, sign, s in choices)
            states.append(state)
            signs.append(sign)
        leg = next((n for n, sign in enumerate(signs) if sign), 0)
        while leg and leg + 1 < len(signs) and signs[leg + 1] == signs[leg]:
            leg += 1
        backs = (n for n, sign in enumerate(signs) if sign < 0)
        for n in range(leg, next(backs, len(signs)) if signs[leg] > 0 else 0):
            cost, comes_back = self.cost - float(self._far[states[n]]), states[n][1:] == start
            if not comes_back and self._is_straight(states[n][1:], cost):
                leg = n
        return states[leg][1] + self._low[0], states[leg][2] + self._low[1]

    def leads_straight(self, to: Cell, short: float) -> bool:
        """Whether to turn to a cell of the grid and go there, but for ``short`` cells, costs hardly
        more; not what is outside of the lattice."""
        row, column = to[0] - self._low[0], to[1] - self._low[1]
        inside = 0 <= row < self._far.shape[1] and 0 <= column < self._far.shape[2]
        # the end of the path faces it only nearly
        return inside and self._is_straight((row, column), self.cost + TURN_COST, short)

    def _is_straight(self, to: Cell, cost: float, short: float = 0.0) -> bool:
        """Whether to turn to a cell and go there, but for ``short`` cells, costs hardly more."""
        way = np.subtract(to, self._start[1:])
        straight = self._lattice.straight(self._start, way, math.hypot(*way) - short)
        return straight <= STRAIGHT_SHARE * cost + STRAIGHT_CELLS


def _touched(solid: Mask, angle: float, low: float, high: float, side: float) -> Mask:
    """From which cells something solid is ``low`` to ``high`` ahead and within ``side`` of that
    line; cells."""
    most = math.ceil(math.hypot(max(-low, high), side))
    padded, touched = np.pad(solid, most), np.zeros_like(solid)
    (w, d), cos, sin = solid.shape, math.cos(angle), math.sin(angle)
    for i in range(-most, most + 1):
        for j in range(-most, most + 1):
            if low <= cos * i + sin * j <= high and abs(cos * j - sin * i) <= side:
                touched |= padded[most + i : most + i + w, most + j : most + j + d]
    return touched
