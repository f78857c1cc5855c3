"""Whether the base does what it is told, as odometry has it."""

from __future__ import annotations

import cmath
import math

from .motion import DOUBT, FAR, PROGRESS, RATE_S, REACTION, ROUNDING, CommandedMotion, Limits
from .odometer import Odometer
from .pose import STILL, Pose, Velocity, wrap

FOLLOWS_S = 1.5  # s for which a base may still do what it was told before
STANDS_S = 2.0  # s after a stop in which a base comes to rest; later it moves by itself
AGAINST = (0.12, math.radians(20))  # m, rad against the commands
GAP_S = 1.0  # s between two poses beyond which nothing is known about the time between
AHEAD, BACK, LEFT, RIGHT = 1.0, -1.0, 1j, -1j  # directions, from that of the command
WRONG = {
    AHEAD: ("moves faster than its commands", FAR),
    BACK: ("moves against its commands", AGAINST),
    LEFT: ("moves sideways when told ahead", FAR),
    RIGHT: ("moves sideways when told ahead", FAR),
}
GOES_ON = "goes on moving though it was told to stand"

Way = tuple[complex, complex]
"""What is made or commanded: m (or m/s) ahead and to the left, and rad (or rad/s)."""


class Plausibility:
    """Compares odometry with the commands, in the direction of the commands, over all motions.

    Per direction, the excess over what was commanded is summed up, and what the base makes ahead
    pays it back: a cumulative sum (Page 1954, "Continuous Inspection Schemes"). Each sample counts
    at most as far as was commanded, ``REACTION`` ago, at a speed that moves the base. So noise,
    sway, a push or a jump of odometry adds little, and a base that stands adds nothing, whoever
    carries it. Neither does what an earlier command explains, which a slow base still follows.
    """

    def __init__(self, odometer: Odometer, commanded: CommandedMotion) -> None:
        self._odometer, self._commanded = odometer, commanded
        self._stopped = -math.inf  # the stop after which the base was last looked at
        self.forget()

    def forget(self) -> None:
        """Begin anew, as with another base."""
        self._sums = [dict.fromkeys(WRONG, 0.0) for _ in AGAINST]  # of moves, of turns
        self._last: tuple[int, Pose] | None = None

    def problem(self, limits: Limits, now: float) -> str:
        """How the base has contradicted its commands, in one sentence; empty if it has not."""
        if not self._odometer.locates(now):
            self._last = None
            return ""
        newest = self._odometer.track.latest
        (then, there), (at, here) = self._last or newest, newest
        seconds = (at - then) / 1e9
        if self._last is not None and 0.0 <= seconds < RATE_S - ROUNDING:
            return ""
        self._last = newest
        if not 0.0 < seconds <= GAP_S:
            return ""
        recent = [*self._commanded.spans(now)]
        told = next((v for v, begin, end in recent if begin <= now - REACTION < end), STILL)
        if told == STILL:
            return self._after_a_stop(now) if recent else ""
        earlier = [_way_of(v) for v, _, end in recent if end > now - FOLLOWS_S]
        moves, turns = limits.move, limits.turn
        for axis, least in (
            (0, min(moves.slowest, limits.top_speed)),
            (1, min(turns.slowest, limits.turn_speed)),
        ):
            speed = abs(command := _way_of(told)[axis])
            if speed and speed >= least:
                unit, made = command / speed, _made(there, here)[axis]
                reach = [way[axis] / unit * seconds for way in earlier]
                return self._add(axis, made / unit, speed * seconds, reach)
        return ""

    def _add(self, axis: int, made: complex, commanded: float, reach: list[complex]) -> str:
        """Add a sample; both ways, and each of ``reach``, from the direction of the command."""
        sums = self._sums[axis]
        for direction, (what, most) in WRONG.items():
            along = (made / direction).real
            if direction == AHEAD:
                more, least = along - DOUBT * commanded, -FAR[axis]
            else:
                explained = DOUBT * max((way / direction).real for way in reach)
                more, least = along - max(0.0, made.real) - max(0.0, explained), 0.0
            more = max(-commanded, min(more, commanded))
            sums[direction] = max(least, sums[direction] + more)
            if sums[direction] > most[axis]:
                return what
        return ""

    def _after_a_stop(self, now: float) -> str:
        """Look once after each stop whether the base goes on as it was last commanded."""
        told, _, stopped = list(self._commanded.spans(now))[-1]
        if stopped <= self._stopped or now - stopped < STANDS_S:
            return ""
        self._stopped = stopped
        at, here = self._odometer.track.latest
        then = self._odometer.track.at(at - 10**9) or here
        for command, made, far in zip(_way_of(told), _made(then, here), FAR, strict=True):
            along = (made / command).real * abs(command) if command else 0.0
            if along > max(far, PROGRESS * abs(command)):
                return GOES_ON
        return ""


def _way_of(velocity: Velocity) -> Way:
    return complex(velocity.vx, velocity.vy), complex(velocity.wz)


def _made(there: Pose, here: Pose) -> Way:
    """The way from one pose to another, from the base that makes it."""
    way = complex(here.x - there.x, here.y - there.y)
    turned = wrap(here.yaw - there.yaw)
    return way * cmath.rect(1.0, -there.yaw - turned / 2), complex(turned)
