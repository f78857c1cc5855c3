"""Whether the base does what it is commanded, as odometry has it."""

from __future__ import annotations

import cmath
import math
from itertools import pairwise

from .budget import CommandedMotion
from .limits import REACTION_S, Limits
from .motion import JUMP_EXTRA, JUMP_RATIO, RATE_S, ROUNDING, STEP_PROGRESS_SHARE
from .odometer import Odometer
from .pose import STILL, Pose, Velocity, wrap

STOP_SETTLES_S = 2.0  # s in which a base has done what was commanded, and rests after a stop
SLOW_BASE_S = 0.5  # s, the time constant of a slow base, which still follows an earlier command
AGAINST_BOUNDS = (0.12, math.radians(20))  # m, rad against the commands
TOWARDS = 1.0
EXCESSES = {  # by direction, as a factor on that of the command
    TOWARDS: ("moves faster than its commands", JUMP_EXTRA),
    -1.0: ("moves against its commands", AGAINST_BOUNDS),
    1j: ("moves sideways when commanded ahead", JUMP_EXTRA),
    -1j: ("moves sideways when commanded ahead", JUMP_EXTRA),
}
POSE_GAP_S = 0.5  # s between two poses, beyond which nothing is known of the time between
MOVES_AFTER_STOP = "goes on moving though it was commanded to stand"


class Plausibility:
    """Compares odometry with the commands, in the direction of the commands, over all motions.

    Per direction, the excess over what was commanded is summed up, and what the base makes ahead
    pays it back: a cumulative sum (Page 1954, "Continuous Inspection Schemes"). Each sample counts
    at most as far as was commanded, ``REACTION_S`` ago (or now, if the base was commanded to stand
    then), at a speed that moves the base. So noise, sway, a push or a jump of odometry adds little,
    and a base that stands adds nothing, whoever carries it. Neither does what an earlier command
    explains, which a slow base still follows.
    """

    def __init__(self, odometer: Odometer, commanded: CommandedMotion) -> None:
        self._odometer, self._commanded = odometer, commanded
        self._last = 0, Pose()  # the newest pose that was looked at
        self._stopped = -math.inf  # the stop after which the base was last looked at
        self.forget()

    def forget(self) -> None:
        """Begin anew, as with another base."""
        self._sums = [dict.fromkeys(EXCESSES, 0.0) for _ in AGAINST_BOUNDS]  # of moves, of turns
        self._made = [[0j, 0j]]  # m/s and rad/s, in the two samples before

    def problem(self, limits: Limits, now: float) -> str:
        """What the base does other than it is commanded; empty if nothing."""
        if not self._odometer.locates(now):
            return ""
        (then, there), (at, here) = self._last, self._odometer.track.latest
        seconds = (at - then) / 1e9
        if 0.0 <= seconds < RATE_S - ROUNDING:
            return ""
        self._last, recent = (at, here), [*self._commanded.spans(now)]
        commanded = next((v for v, begin, end in recent if begin <= now - REACTION_S < end), STILL)
        begins = commanded == STILL  # now, and a quick base follows at once
        commanded = self._commanded.driven if begins else commanded
        if commanded == STILL:
            return self._after_a_stop(*recent[-1], now) if recent else ""
        slowest = (
            min(limits.move.slowest, limits.top_speed),
            min(limits.turn.slowest, limits.turn_speed),
        )
        ways, made = _way_of(commanded), [far / seconds for far in _made(there, here)]
        before, self._made = self._made, [*self._made[-1:], made]
        if any(
            abs(far) > JUMP_RATIO * abs(way) + most / seconds
            and any(abs(far - earlier[axis]) > abs(far) / 2 for earlier in before)
            for axis, (far, way, most) in enumerate(zip(made, ways, JUMP_EXTRA, strict=True))
        ):
            # Odometry has jumped; of a long sample much would count. What goes on as in the two
            # samples before is the base, which may spin while it moves wrongly.
            return ""
        for axis, (way, least) in enumerate(zip(ways, slowest, strict=True)):
            if abs(way) >= max(least, ROUNDING) and 0.0 < seconds <= POSE_GAP_S:
                earlier = [
                    _way_of(v)[axis] * math.exp(min(0.0, (end - now + REACTION_S) / SLOW_BASE_S))
                    for v, _, end in recent
                    if end > now - STOP_SETTLES_S
                ]
                wrong = [
                    direction for direction in EXCESSES if not (begins and direction == TOWARDS)
                ]
                return self._add(axis, made[axis], way, earlier, seconds, wrong)
        return ""

    def _add(
        self,
        axis: int,
        made: complex,
        commanded: complex,
        earlier: list[complex],
        seconds: float,
        wrong: list[complex],
    ) -> str:
        """Add a sample, of speeds ahead and to the left, in the directions that are ``wrong``;
        ``earlier``: what was commanded before."""
        speed, unit, sums = abs(commanded), commanded / abs(commanded), self._sums[axis]
        for direction in wrong:
            what, most = EXCESSES[direction]
            is_ahead = direction == TOWARDS
            more = (made / unit / direction).real
            ways = (way / unit / direction for way in ([commanded] if is_ahead else earlier))
            explained = JUMP_RATIO * max(0.0, *(way.real for way in ways))
            # What an earlier command explains adds nothing; only progress pays back.
            more -= explained if is_ahead else min(explained, max(0.0, more))
            more -= 0.0 if is_ahead else max(0.0, (made / unit).real)
            total = sums[direction] + max(-speed, min(more, speed)) * seconds
            sums[direction] = max(-JUMP_EXTRA[axis] if is_ahead else 0.0, total)
            if total > most[axis]:
                return what
        return ""

    def _after_a_stop(self, commanded: Velocity, _: float, stopped: float, now: float) -> str:
        """Look once after each stop whether the base goes on as it was last commanded."""
        if stopped <= self._stopped or now - stopped < STOP_SETTLES_S:
            return ""
        self._stopped, track = stopped, self._odometer.track
        at, here = track.latest
        halves = [track.at(at - back * 500_000_000) or here for back in (4, 3, 2, 1, 0)]
        # All of them: it did not rest in between, and a jump is in two at most.
        made = [_made(*pair) for pair in pairwise(halves)]
        goes_on = any(
            all(
                (way[axis] * v.conjugate()).real
                > abs(v) * max(far, STEP_PROGRESS_SHARE * abs(v)) / 2
                for way in made
            )
            for axis, (v, far) in enumerate(zip(_way_of(commanded), JUMP_EXTRA, strict=True))
        )
        return MOVES_AFTER_STOP if goes_on else ""


def _way_of(velocity: Velocity) -> tuple[complex, complex]:
    """A velocity ahead and to the left, and of turning."""
    return complex(velocity.vx, velocity.vy), complex(velocity.wz)


def _made(there: Pose, here: Pose) -> tuple[complex, complex]:
    """The way from one pose to another, m ahead and to the left of the base, and rad."""
    turned = wrap(here.yaw - there.yaw)
    way = complex(here.x - there.x, here.y - there.y)
    return way * cmath.rect(1.0, -there.yaw - turned / 2), complex(turned)
