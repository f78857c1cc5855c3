"""What is commanded, summed up: a bound on each step that holds whatever odometry says."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from .limits import Limits
from .pose import STILL, Velocity

COMMAND_PERIOD_S = 0.05  # s between commands, and the validity of one
# Times the step's size, plus BUDGET_EXTRA: allows for slip, below the promised 1.5 times and 5 cm
# or 5 degrees.
BUDGET_RATIO = 1.4
BUDGET_EXTRA = (0.04, math.radians(4))  # m, rad
MOVE_ASIDE_M = 0.1  # m sideways, for holding the line of a move
TURN_PATH_M = 0.25  # m that a driving base may make from the frame of a turn
MOVE_TURN_RAD = math.radians(10)  # rad of turning, for holding the heading of a move
BUDGET_REST = (0.002, math.radians(0.2))  # m, rad; with less left, the step's budget is used up
COMMANDS_REMEMBERED = 400  # changes of the command: at least 20 s at one per tick
ROLLED_OUT = 40.0  # time constants after which a float has nothing left of a command

Use = tuple[float, float, float]
"""Metres of path, of these sideways, and radians of turning to either side."""

NOTHING_USED: Use = (0.0, 0.0, 0.0)


def _rolled(begin: float, end: float, lag: float) -> float:
    """How many seconds' worth of a command, in force from ``begin`` to ``end`` (before 0), a base
    with this time constant still makes after 0."""
    if not lag:
        return 0.0
    return lag * (math.exp(min(0.0, end) / lag) - math.exp(min(0.0, begin) / lag))


def longest_path(distance: float) -> float:
    """The path that a move of this distance may command at most, m."""
    return BUDGET_RATIO * abs(distance) + BUDGET_EXTRA[0]


class Budget:
    """Bounds the sum of one step's commands, independently of odometry: metres of path, metres
    sideways, and radians of turning.

    A base that follows commands with a lag finally covers what was commanded, so a bound on the
    commands bounds the step. ``grant`` each command before it is sent, with ``now`` in monotonic
    seconds; a command counts until the next one, late or not. ``path`` and ``turn`` are the sums
    commanded so far.
    """

    def __init__(
        self,
        distance: float,
        angle: float,
        used: Use = NOTHING_USED,
        driven: Velocity = STILL,
        now: float = -math.inf,
        aside: float = MOVE_ASIDE_M,
    ) -> None:
        """used: the part of the budget commanded since the step's frame; ``driven``: the velocity
        commanded at ``now``. aside: metres that a move may command sideways."""
        self._turns = angle != 0.0
        if self._turns:
            rolled = TURN_PATH_M if any(used) else 0.0
            most = (rolled, rolled, BUDGET_RATIO * abs(angle) + BUDGET_EXTRA[1])
        else:
            most = (longest_path(distance), aside, MOVE_TURN_RAD)
        self._overdrawn = any(b > a for a, b in zip(most, used, strict=True))
        path, lateral, turn = (max(0.0, a - b) for a, b in zip(most, used, strict=True))
        self._most = self._left = path, lateral, turn
        self._given, self._since = driven, now

    def allows(self, path: float, turn: float) -> bool:
        """Whether so many metres and radians are left, and no more was used than granted."""
        fits = path <= self._left[0] + BUDGET_REST[0] and turn <= self._left[2] + BUDGET_REST[1]
        return fits and not self._overdrawn

    @property
    def left(self) -> float:
        """The path that may still be commanded, m."""
        return self._left[0]

    @property
    def path(self) -> float:
        """The path commanded so far, m."""
        return self._most[0] - self._left[0]

    @property
    def turn(self) -> float:
        """The turning commanded so far, to either side, rad."""
        return self._most[2] - self._left[2]

    @property
    def used_up(self) -> bool:
        """Whether the step's budget is used up."""
        left = self._left[2] if self._turns else self._left[0]
        return left <= BUDGET_REST[self._turns]

    @property
    def lasts(self) -> float:
        """Seconds until the current command uses up the budget."""
        return min(
            (
                left / rate
                for left, rate in zip(self._left, _rates(self._given), strict=True)
                if rate
            ),
            default=math.inf,
        )

    def count(self, now: float) -> None:
        """Subtract what the current command has used until ``now``."""
        time = max(0.0, now - self._since) if self._given != STILL else 0.0
        self._since = now
        used = _rates(self._given)
        path, aside, turn = (max(0.0, a - b * time) for a, b in zip(self._left, used, strict=True))
        self._left = path, aside, turn

    def grant(self, wanted: Velocity, now: float) -> Velocity:
        """Slow ``wanted`` down until two periods of it fit into the budget, and make it the current
        command."""
        self.count(now)
        path, aside, turn = (left / (2 * COMMAND_PERIOD_S) for left in self._left)
        vy = max(-aside, min(aside, wanted.vy))
        wz = max(-turn, min(turn, wanted.wz))
        given = replace(wanted, vy=vy, wz=wz)
        self._given = given.no_faster(path)
        return self._given


def _rates(velocity: Velocity) -> tuple[float, float, float]:
    """A velocity's use per second: path, sideways way (m) and turning (rad)."""
    return velocity.speed, abs(velocity.vy), abs(velocity.wz)


class CommandedMotion:
    """The velocities commanded recently, over all steps. Times are monotonic, s."""

    def __init__(self) -> None:
        self._given: deque[tuple[float, Velocity]] = deque(
            [(-math.inf, STILL)], COMMANDS_REMEMBERED
        )

    @property
    def driven(self) -> Velocity:
        """The latest commanded velocity."""
        return self._given[-1][1]

    @property
    def changed(self) -> float:
        """Since when the latest velocity has been commanded, monotonic s."""
        return self._given[-1][0]

    def command(self, velocity: Velocity, now: float) -> None:
        """Record that this velocity is commanded from ``now`` on."""
        if velocity != self.driven:
            self._given.append((now, velocity))

    def since(self, time: float, now: float, limits: Limits | None = None) -> Use:
        """The path, sideways way and turning commanded from ``time`` to ``now``.

        With limits, the rolling on after ``time`` from earlier commands is added.
        """
        path = aside = turn = 0.0
        lag = 0.0 if limits is None else max(limits.move.braking, limits.turn.braking)
        for velocity, begin, end in self.spans(now, time - ROLLED_OUT * lag):
            lasted = max(0.0, end - max(begin, time))
            moves = turns = lasted
            if limits is not None and begin < time:
                moves += _rolled(begin - time, end - time, limits.move.braking)
                turns += _rolled(begin - time, end - time, limits.turn.braking)
            path += velocity.speed * moves
            aside += abs(velocity.vy) * moves
            turn += abs(velocity.wz) * turns
        return path, aside, turn

    def driven_since(self, time: float, now: float) -> float:
        """For how many seconds from ``time`` to ``now`` the base was commanded to move."""
        return sum(end - max(begin, time) for _, begin, end in self.spans(now, time))

    def spans(
        self, now: float, after: float = -math.inf
    ) -> Iterator[tuple[Velocity, float, float]]:
        """Each moving velocity that was in force after ``after``, with its begin and end."""
        found, end = [], now
        for begin, velocity in reversed(self._given):
            if end <= after:
                break
            if velocity != STILL:
                found.append((velocity, begin, end))
            end = begin
        return reversed(found)
