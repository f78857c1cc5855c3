"""What the commands of one step may add up to, whatever odometry says meanwhile.

A base that follows commands with a lag covers, once it stands, what was commanded: so a bound on
the commands bounds the step.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .pose import STILL, Velocity

PERIOD = 0.05  # s between commands, and how long one is valid
SHARE = 1.4  # of the step's size, and MORE: room for slip, below the promised 1.5 and 5 cm, 5 deg
MORE = (0.04, math.radians(4))  # m, rad
ASIDE = 0.1  # m sideways that holding the line of a move may take
BEND = math.radians(10)  # rad of turning that holding the heading of a move may take
LEFT = (0.002, math.radians(0.2))  # m, rad; with less left a step is at its bound


class Budget:
    """Metres of path, of these sideways, and radians of turning: what is left of one step's.

    ``grant`` what is to be commanded now, with ``now`` in steady seconds; a command counts until
    the next one, late or not. ``path`` and ``turn`` are what was commanded so far.
    """

    def __init__(self, distance: float, angle: float) -> None:
        self._turns = angle != 0.0
        if self._turns:
            self._most = (0.0, 0.0, SHARE * abs(angle) + MORE[1])
        else:
            self._most = (SHARE * abs(distance) + MORE[0], ASIDE, BEND)
        self._left = self._most
        self._given, self._since = STILL, -math.inf

    @property
    def path(self) -> float:
        """Metres commanded so far."""
        return self._most[0] - self._left[0]

    @property
    def turn(self) -> float:
        """Radians commanded so far, to either side."""
        return self._most[2] - self._left[2]

    @property
    def used_up(self) -> bool:
        """Whether the step is at its bound."""
        left = self._left[2] if self._turns else self._left[0]
        return left <= LEFT[self._turns]

    @property
    def lasts(self) -> float:
        """Seconds for which the command in force stays within what is left."""
        return min(
            (
                left / rate
                for left, rate in zip(self._left, _rates(self._given), strict=True)
                if rate
            ),
            default=math.inf,
        )

    def count(self, now: float) -> None:
        """Take what the command in force has used by ``now`` off what is left."""
        time = max(0.0, now - self._since) if self._given != STILL else 0.0
        self._since = now
        used = _rates(self._given)
        path, aside, turn = (max(0.0, a - b * time) for a, b in zip(self._left, used, strict=True))
        self._left = path, aside, turn

    def grant(self, wanted: Velocity, now: float) -> Velocity:
        """``wanted``, slowed down so far that two periods of it fit; in force from now on."""
        self.count(now)
        path, aside, turn = (left / (2 * PERIOD) for left in self._left)
        vy = max(-aside, min(aside, wanted.vy))
        wz = max(-turn, min(turn, wanted.wz))
        given = replace(wanted, vy=vy, wz=wz)
        if given.speed > path:
            slower = path / given.speed
            given = replace(given, vx=given.vx * slower, vy=vy * slower)
        self._given = given
        return given


def _rates(velocity: Velocity) -> tuple[float, float, float]:
    """Use per second of the path, of the way aside and of the turning."""
    return velocity.speed, abs(velocity.vy), abs(velocity.wz)
