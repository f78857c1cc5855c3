"""One action as a bounded motion: a speed profile that accelerates, cruises and brakes, with
feedback.

The profile is a trapezoid of speed whose area is the step. A base that follows commands with a
first-order lag covers the same area a little later, so the profile alone (no odometry) already ends
close to the goal. With odometry, the error to the *delayed* profile is fed back, which corrects
slip, drift of the heading and a wrong lag.

Odometry can be wrong. So a step is never commanded against its own direction, ends when its
``Budget`` is used up, and ends when odometry reports far more than was commanded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .budget import (
    BUDGET_EXTRA,
    COMMAND_PERIOD_S,
    MOVE_ASIDE_M,
    NOTHING_USED,
    Budget,
    Use,
)
from .detour import SWAY_M, Detour
from .events import Drive
from .limits import Limits
from .pose import STILL, Pose, Velocity, apart, wrap
from .steps import Goal

FEEDBACK_GAIN = 2.5  # 1/s; with a lag of 0.2 s the loop's damping is 0.7
APPROACH_GAIN = 12.0  # 1/s; largest speed over the remaining distance
FULL_COMMAND_S = 0.1  # s; the shortest command with its full effect
RATE_S = 0.1  # s over which odometry's speed is measured
ROUNDING = 1e-6  # s; makes a motion independent of when it begins
RATE_SAMPLES = 40  # most odometry messages within RATE_S
SHORTFALL_SHARE = 0.25  # share of a step that may remain without counting as a failure
STEP_PROGRESS_SHARE = 0.5  # share of what was commanded; a base that makes less is blocked
STOPPED_SHORT = (
    "stopped short of its goal; does the base follow slow commands (edge-cloud-spec commission)?"
)
IN_THE_WAY = "something is in the way at"
BLIND = "the way there is not seen"
STEP_BLOCKED = "did not get where it should; is the way blocked?"
HALF_PERIOD_S = COMMAND_PERIOD_S / 2  # a command is computed for the middle of its period
STEP_GRACE_S = 1.0  # s beyond 1.5 times the planned time, after which the motion is given up
JUMP_RATIO = 1.5  # times what was commanded, plus JUMP_EXTRA: beyond it odometry has jumped
JUMP_EXTRA = (0.25, math.radians(25))  # m, rad
# Times a step's size, plus BUDGET_EXTRA: a distance that its budget certainly covers.
REACH_RATIO = 1.2


Slower = Callable[[Velocity], Velocity]
"""How fast the base may go at most along the arc of a velocity: all of it, part of it, or not."""


@dataclass(frozen=True)
class MotionEnd:
    """A motion's end. ``problem``: why it does not arrive at its goal; empty: it does. ``short``:
    it got less far than it should, so that something may be in the way."""

    problem: str = ""
    short: bool = False


class Motion:
    """One step, started at ``now``; closed-loop if ``pose`` is given, else timed.

    ``now`` is a monotonic clock in seconds, the caller's. Call ``step`` (or ``wait``) at about 20
    Hz. The goal is relative to ``anchor``, the pose where the step was decided (default: ``pose``);
    what the base has moved since then is part of the step. A base that is past the goal stays
    there.

    It may start while the base moves at ``driven``. Of that speed, the part towards the goal is
    kept, the part across it is reduced to 0 within the limits, and a part against it must be braked
    first (``in_reach``). ``used``: what was commanded since the step's frame (`CommandedMotion`);
    it is subtracted from the budget.

    ``detour``: where a move may go aside of its line; None: it keeps to it.
    """

    TOLERANCE = (0.015, math.radians(0.8))  # m, rad
    AT_REST = (0.12, 0.25)  # m/s, rad/s

    def __init__(
        self,
        goal: Goal,
        limits: Limits,
        now: float,
        pose: Pose | None = None,
        anchor: Pose | None = None,
        driven: Velocity = STILL,
        used: Use = NOTHING_USED,
        detour: Detour | None = None,
    ) -> None:
        self.goal, self._limits, self._begin, self._now = goal, limits, now, now
        self._turns = goal.angle != 0.0
        self._axis = limits.turn if self._turns else limits.move
        # The m or rad that may remain: the base would not follow a shorter command.
        self._tolerance = max(self.TOLERANCE[self._turns], FULL_COMMAND_S * self._axis.slowest)
        self._turned = self._offset = 0.0
        # Time, and distance along the step.
        self._made: deque[tuple[float, float]] = deque(maxlen=RATE_SAMPLES)
        self._followed = 0.0  # m or rad commanded at speeds that move the base
        self._last: tuple[float, Pose] | None = None
        self._given, self._given_at = driven, now - HALF_PERIOD_S if driven == STILL else now
        self._driven = driven
        self._start, self._from = anchor or pose, pose
        if pose is not None and self._start is not None:
            self._last = (now - 1.0, self._start)
            ahead, _, turned = self._observe(now, pose)
            self._offset = turned if self._turns else ahead
            self._last = (now, pose)
            self._made.append((now, self._offset))
        self._size = goal.angle if self._turns else goal.distance
        self._sign = math.copysign(1.0, self._size)
        speed = limits.turn_speed if self._turns else limits.top_speed
        acceleration = limits.turn_acceleration if self._turns else limits.acceleration
        self._along_it = self._sign * (driven.wz if self._turns else driven.vx)
        begins = max(0.0, self._along_it)
        self._rolls = begins * self._axis.response  # what was commanded and has not happened yet
        way = self._sign * (self._size - self._offset)
        self._way = max(0.0, way)
        self._profile = Profile(way - self._rolls, speed, acceleration, begins)
        self._detour = detour
        aside = MOVE_ASIDE_M if detour is None else 2.0 * detour.half_width
        self._budget = Budget(goal.distance, goal.angle, used, driven, now, aside)

    @property
    def ends(self) -> float:
        """When the base is planned to be at rest, monotonic s."""
        return self._begin + self._profile.duration + self._axis.response

    @property
    def in_reach(self) -> bool:
        """Whether the budget allows this step, including braking from ``driven``.

        The way is longer if the base has moved against it. A base that moves against it now must
        stand first.
        """
        far = self._way > REACH_RATIO * abs(self._size) + BUDGET_EXTRA[self._turns]
        if far or self._along_it < -self.AT_REST[self._turns]:
            return False
        path = _braking(self._driven.speed, self._limits.acceleration)
        turn = _braking(self._driven.wz, self._limits.turn_acceleration)
        return self._budget.allows(path, turn)

    @property
    def lasts(self) -> float:
        """How long the current command stays within the budget, s."""
        return self._budget.lasts

    def wait(self, now: float) -> Drive:
        """Command standing for this tick; the next ``step`` continues from here."""
        self._begin += now - self._now
        self._driven = STILL
        return self._command(STILL, now, lambda wanted: wanted)

    def step(
        self, now: float, pose: Pose | None = None, slower: Slower = lambda wanted: wanted
    ) -> Drive | MotionEnd:
        """The command at ``now``, or the end; ``pose`` is the newest odometry (None: continue by
        the clock)."""
        self._budget.count(now)
        time = now - self._begin
        over = time >= self._profile.duration
        if pose is None or self._last is None:
            if over or self._budget.used_up:
                made = self._budget.turn if self._turns else self._budget.path
                # Of the way commanded, if something slowed it down.
                return self._end(made)
            speed = self._profile.at(time + HALF_PERIOD_S)[1]
            return self._command(self._along(speed, 0.0, 0.0, time + HALF_PERIOD_S), now, slower)
        problem = self._contradiction(pose)
        if problem:
            return MotionEnd(problem)
        ahead, aside, turned = self._observe(now, pose)
        progress = turned if self._turns else ahead
        covered, _ = self._profile.at(time - self._axis.response)
        covered += self._rolls
        error = self._sign * (self._offset - progress) + covered  # positive: behind
        rate = self._sign * self._rate(now)
        rolls = rate * self._axis.braking
        size = self._size if self._detour is None else self._detour.ends
        left = self._sign * (size - progress) - rolls  # what remains after rolling out
        near = over and left <= self._tolerance
        if near and abs(rate) <= self.AT_REST[self._turns]:
            return MotionEnd()
        if time >= 1.5 * self._profile.duration + STEP_GRACE_S or self._budget.used_up:
            return MotionEnd() if near else self._end(self._sign * progress)
        # A base that overshoots cannot go back, so the lag of one that follows half as fast is
        # made up for only if it does not catch up by itself.
        behind = min(max(0.0, error), max(0.0, rolls))
        speed = self._profile.at(time + HALF_PERIOD_S)[1] + FEEDBACK_GAIN * (error - behind)
        speed = min(speed, APPROACH_GAIN * max(0.0, left))
        if over and speed < self._axis.slowest:  # the base would not follow
            speed = self._axis.slowest if error - rolls > self._tolerance else 0.0
        slope = 0.0
        if self._detour is not None:
            way, slope = self._detour.reference(now, (ahead, aside), turned, self._budget.left)
            aside -= way
            speed = self._beside(speed, aside, slope, left, now)
        lateral = slope * speed - FEEDBACK_GAIN * aside
        wanted = self._along(speed, lateral, -FEEDBACK_GAIN * turned, time + HALF_PERIOD_S)
        return self._command(wanted, now, slower)

    def _beside(self, speed: float, aside: float, slope: float, left: float, now: float) -> float:
        """``speed``, lowered so that the base follows a way around of this slope, ``aside`` metres
        to the right of it, which ends in ``left`` m; the rest of the profile waits for it."""
        lateral = self._limits.lateral_speed
        most = math.sqrt(2.0 * self._limits.acceleration * max(0.0, left))
        if slope:
            most = min(most, lateral / abs(slope))
        if (off := abs(aside) - SWAY_M) > 0.0:
            most = min(most, max(self._axis.slowest, lateral - FEEDBACK_GAIN * off))
        if speed <= most:
            return speed
        self._begin += (now - self._now) * (1.0 - most / speed)
        return most

    def _end(self, made: float) -> MotionEnd:
        """The end of the step after ``made`` m or rad, which may be too far from its goal: a short
        rest does not mean that something is in the way."""
        should = min(abs(self._size), self._followed)
        if made >= abs(self._size) - max(self._tolerance, SHORTFALL_SHARE * abs(self._size)):
            return MotionEnd()
        blocked = made < STEP_PROGRESS_SHARE * should
        return MotionEnd(STEP_BLOCKED if blocked else STOPPED_SHORT, short=True)

    def _command(self, velocity: Velocity, now: float, slower: Slower) -> Drive:
        along = abs(self._given.wz if self._turns else self._given.vx)
        if along >= self._axis.slowest:
            self._followed += along * (now - self._given_at)
        self._now = now
        granted = self._budget.grant(self._eased(velocity, now - self._given_at), now)
        # The budget counts what is really commanded.
        self._given = self._budget.grant(slower(granted), now)
        self._given_at = now
        return Drive(self._given, now + COMMAND_PERIOD_S, now + self.lasts)

    def _eased(self, wanted: Velocity, time: float) -> Velocity:
        """``wanted``, limited to the acceleration allowed since ``time`` s ago, or to the slowest
        speed that moves the base; braking is not limited."""
        given, limits = self._given, self._limits
        faster, turning = limits.acceleration * time, limits.turn_acceleration * time
        return Velocity(
            _sped_up(given.vx, wanted.vx, faster, limits.move.slowest),
            _sped_up(given.vy, wanted.vy, faster, limits.strafe.slowest),
            _sped_up(given.wz, wanted.wz, turning, limits.turn.slowest),
        )

    def _along(self, speed: float, lateral: float, turn: float, time: float) -> Velocity:
        """A velocity with ``speed`` along the step, never against it; the sideways part of
        ``driven`` is reduced to 0 over ``time`` seconds."""
        limits, driven = self._limits, self._driven
        if self._turns:
            ahead = _clip(_slowed(driven.vx, limits.acceleration * time), limits.top_speed)
            return Velocity(ahead, wz=self._sign * min(max(0.0, speed), limits.turn_speed))
        turning = _slowed(driven.wz, limits.turn_acceleration * time)
        wanted = Velocity(
            self._sign * min(max(0.0, speed), limits.top_speed),
            _clip(lateral, limits.lateral_speed),
            _clip(turn + turning, limits.turn_speed),
        )
        return wanted.no_faster(limits.top_speed)

    def _contradiction(self, pose: Pose) -> str:
        """How ``pose`` contradicts the commands; empty if it does not."""
        assert self._from is not None
        moved, turned = apart(self._from, pose)
        path, turn = self._budget.path, self._budget.turn
        if (
            moved <= JUMP_RATIO * path + JUMP_EXTRA[0]
            and turned <= JUMP_RATIO * turn + JUMP_EXTRA[1]
        ):
            return ""
        return (
            f"was given up: odometry jumped, to {moved:.3g} m and {math.degrees(turned):.0f} "
            f"degrees from its start when {path:.2f} m and {math.degrees(turn):.0f} degrees had "
            "been commanded; do two sources publish it, or was the base carried?"
        )

    def _observe(self, now: float, pose: Pose) -> tuple[float, float, float]:
        """(metres ahead, metres to the left, radians turned) since the start; updates the rate."""
        assert self._start is not None and self._last is not None
        before, last = self._last
        turned = wrap(pose.yaw - last.yaw)
        self._turned += turned
        dx, dy = pose.x - self._start.x, pose.y - self._start.y
        cos, sin = math.cos(self._start.yaw), math.sin(self._start.yaw)
        ahead = cos * dx + sin * dy
        if now > before and pose != last:
            self._last = (now, pose)
            self._made.append((now, self._turned if self._turns else ahead))
        return ahead, cos * dy - sin * dx, self._turned

    def _rate(self, now: float) -> float:
        """The speed along the step over the last ``RATE_S`` of odometry, since legs sway; 0: no
        odometry."""
        while len(self._made) > 2 and now - self._made[1][0] > RATE_S - ROUNDING:
            self._made.popleft()
        (begin, first), (end, last) = self._made[0], self._made[-1]
        return (
            (last - first) / (end - begin)
            if end > begin and now - end < 2 * RATE_S + ROUNDING
            else 0.0
        )


def _sped_up(given: float, wanted: float, most: float, slowest: float) -> float:
    """``wanted``, at most ``most`` faster than ``given`` in the same direction, or at
    ``slowest``."""
    return _clip(wanted, max(slowest, (abs(given) if given * wanted > 0.0 else 0.0) + most))


def _clip(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))


def _slowed(value: float, less: float) -> float:
    return math.copysign(max(0.0, abs(value) - less), value)


def _braking(speed: float, acceleration: float) -> float:
    """The way (m or rad) commanded while braking from the next command on."""
    return abs(speed) * COMMAND_PERIOD_S + speed * speed / (2 * acceleration)


class Profile:
    """A speed over time with area ``length``, which ends at rest: accelerating, cruising, braking.

    It begins at speed ``begins`` >= 0. If it cannot brake from that within ``length``, it brakes at
    once.
    """

    def __init__(
        self, length: float, speed: float, acceleration: float, begins: float = 0.0
    ) -> None:
        self._begins = peak = begins
        square = begins * begins
        if square < 2 * acceleration * length:
            peak = max(begins, min(speed, math.sqrt(length * acceleration + square / 2)))
        ramps = (2 * peak * peak - square) / (2 * acceleration)
        cruising = max(0.0, length - ramps) / peak if peak else 0.0
        self._phases = (  # (duration, initial speed, acceleration) of each phase
            ((peak - begins) / acceleration, begins, acceleration),
            (cruising, peak, 0.0),
            (peak / acceleration, peak, -acceleration),
        )

    @property
    def duration(self) -> float:
        """Seconds until the profile is at rest."""
        return sum(lasts for lasts, _, _ in self._phases)

    def at(self, time: float) -> tuple[float, float]:
        """(covered, speed) at ``time`` s after the start; before the start, at the initial
        speed."""
        if time <= 0.0:
            return self._begins * time, self._begins
        covered = 0.0
        for lasts, speed, acceleration in self._phases:
            part = min(time, lasts)
            covered += (speed + acceleration * part / 2) * part
            if time <= lasts:
                return covered, speed + acceleration * part
            time -= lasts
        return covered, 0.0
