"""Decides what is driven, in which order, and what ends it at once: without ROS, clock or thread.

The trials are functions that call each other. Each waits, one period at a time, for the events of
``Robot``; a fault meanwhile raises ``Stop``, and the base is commanded to stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..errors import refuse
from ..nav.budget import COMMAND_PERIOD_S
from ..nav.events import EStop, Hold, Instruction, Odometry, Scan, Tick
from ..nav.limits import REACTION_S
from ..nav.pose import STILL, Velocity, wrap
from ..nav.sight import ends_of
from ..nav.watchdog import STOP_REPEATS
from ..options import Bounded, bounded
from .camera import PictureFeatures
from .figures import (
    FASTEST_RATIOS,
    GROUND,
    MOVE,
    NO_DRIFT,
    NO_MESSAGE,
    ODOMETRY_PAUSE_S,
    STRAFE,
    TURN,
    TrialMeasurements,
    axis_figures,
    drift_of,
    runs_of,
)
from .lidar import thinned

CIRCLE = 1.5  # m around where a person agreed to a trial, which it never leaves
LOOKAHEAD_S = 0.4  # s of driving that are left to the circle's edge
ODOMETRY_LOST_S = 1.0  # s without odometry whose stamps go on, after which it ends
TRIAL_TRIES = 3  # of a trial in which odometry paused for less
APPEARS = 5.0  # s that odometry has to appear
POSE_STEP = ((0.15, 2.5), (0.35, 6.0))  # m and m/s, rad and rad/s that odometry goes on by at most
# Of each axis: m or m/s ahead, rad or rad/s, m or m/s to the left.
AGAINST_COMMAND = (0.12, 0.6, 0.12)  # against a command
BEYOND_COMMAND = (0.35, 0.6, 0.35)  # beyond twice a command
ASTRAY = (0.35, math.radians(30))  # m off its axis, rad of turning in a move
SHOULD = (0.35, 0.8, 0.35)  # of commands after which it must have moved,
FOLLOWS = 0.25  # by this share
STARTS = 0.4  # s that a base may take to get going, as legs do from a stand
REST_TIMEOUT_S = 5.0  # s that a base has to stand
STOP_LASTS_S = 1.2  # s to see it stand
RESTING_MOTION = (0.025, math.radians(2.5))  # m, rad in half a second of a base that stands
ESCAPES = (0.25, 0.6)  # m/s, rad/s at which a base that is commanded to stand is to be caught
LADDER_COMMAND_S = 1.2  # s of a command that looks for the slowest speed
MOVES = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3)
LADDERS = (MOVES, (0.06, 0.1, 0.2, 0.3, 0.45, 0.6), MOVES)
FINE = (0.011, 0.021, 0.011)  # to which it is found
EASY = (0.2, 0.4, 0.1)  # to go back at, and to begin with
SILENCE_S = 2.5  # s without commands, in which a base's own time-out acts
LONG, WAY = 2.5, (0.85, 2.4, 0.6)  # s, and way of a run at most
SPEED_UNITS = ("m/s", "rad/s", "m/s sideways")
SMALL_STEP_S = (0.35, 0.15, 0.35)  # s of a small step
HOME = (0.12, 0.3)  # m, rad from its start at which a trial may begin
CAMERA_TURNS_S = (1.1, 0.5, 1.5, 0.8, 1.3, 0.6, 1.0, 1.4, 0.7, 1.2, 0.9, 1.6)  # s of turning
PAUSES = (0.3, 0.9, 0.5, 1.2)  # s
LOST_ITS_SPEED = (
    "it lost its speed while it was commanded to go on, as odometry has it: is something in its "
    "way (clear 2 m around it), or does odometry freeze?"
)
ANSWER_TRIES = 3  # answers that say nothing, after which it ends

Event = Odometry | PictureFeatures | Scan | Instruction | EStop | Hold | Tick
Pose = tuple[float, float, float, float]
"""As of a recording: s, m, m, rad."""


@dataclass(frozen=True)
class TrialSettings(Bounded):
    """Highest speeds, and the distance within which it must stop. Raises ValueError naming a
    field."""

    speed: float = bounded(0.6, 0.1, 1.5, "m/s at most")
    turn_speed: float = bounded(1.2, 0.2, 2.5, "rad/s at most")
    lateral_speed: float = bounded(0.2, 0.0, 0.5, "m/s sideways at most; 0: do not try")
    stops_within: float = bounded(0.35, 0.05, 5.0, "m in which it must stand after a fault")


class Robot(Protocol):
    """The interface to the robot under test, and to the person beside it."""

    def command(self, velocity: Velocity) -> None:
        """Move at ``velocity`` for a period."""

    def stop(self, repeat: int) -> None:
        """Send the ``repeat``-th message of a stop."""

    def keep_silent(self, seconds: float) -> None:
        """Publish no command for ``seconds``, not even zeros."""

    def report(self, text: str) -> None:
        """Print a text for the person."""

    def ask(self, text: str) -> None:
        """Print a question; the answer comes as an ``Instruction`` event."""

    def period(self) -> Iterable[tuple[float, Event]]:
        """The events of the next period, each with its time (monotonic s); the last is a
        ``Tick``."""


class Stop(Exception):
    """Ends the trials; the text says why."""


class NotMoving(Stop):
    """Ends the trials, but for an axis that a base need not have."""


class OdometryInterrupted(Stop):
    """Odometry was interrupted for ODOMETRY_PAUSE_S and is back; the trial must be repeated."""


class Commission:
    """The trials of one base; ``recording`` has the measurements, even of an aborted trial."""

    def __init__(self, robot: Robot, settings: TrialSettings) -> None:
        self.robot, self.settings, self.recording = robot, settings, TrialMeasurements()
        self._now = self._came = self._sent = -math.inf
        self._stamp = 0
        self._stops = STOP_REPEATS  # messages of the stop that holds
        self._velocity = STILL
        self._drift = NO_DRIFT
        self._start: Pose | None = None  # where the person agreed
        self._slowest = [0.0, 0.0, 0.0]
        self._answer: str | None = None

    def run(self) -> str:
        """Run all trials; returns why they ended early (empty: they did not), with the base
        standing."""
        trials: tuple[tuple[str, Callable[[], None]], ...] = (
            (
                "Stand at the e_stop. First it stands for 8 s.",
                self._stand_still,
            ),
            (
                "It turns on its spot, to and fro, slowly at first, until it follows.",
                partial(self._find_slowest, TURN),
            ),
            (
                "It moves a little, to and fro, slowly at first, until it follows.",
                partial(self._find_slowest, MOVE),
            ),
            ("It turns slowly, and once no command tells it to stop.", self._let_go),
            (
                "It turns on its spot to both sides, faster each time.",
                partial(self._faster, TURN, self.settings.turn_speed),
            ),
            (
                "It moves by up to 1 m ahead and back, faster each time.",
                partial(self._faster, MOVE, self.settings.speed),
            ),
            (
                "It moves to its left and right by up to 0.6 m, if it can, slowly at first.",
                self._strafe,
            ),
            ("It looks left and right for 25 s, for the camera.", self._look),
            ("Mark where it stands on the floor. It moves 1 m ahead, slowly.", self._metre),
        )
        try:
            self._find_odometry()
            for text, trial in trials:
                sees, strafes = self.recording.frames, self.settings.lateral_speed
                if (trial != self._look or sees) and (trial != self._strafe or strafes):
                    self._attempt(text, trial)
        except Stop as why:
            return str(why)
        finally:
            self._end()
        return ""

    def _attempt(self, text: str, trial: Callable[[], None]) -> None:
        """Run a trial from near the start, and return there; repeat it if odometry paused."""
        for again in range(TRIAL_TRIES):
            try:
                if again:
                    self._halt(STOP_LASTS_S)
                    self._home()
                self._agree(text)
                trial()
                if trial != self._metre:  # there odometry drifted while a person measured
                    self._home()
                return
            except OdometryInterrupted as pause:
                self.robot.report(f"  {pause}: it stands, and repeats this")
        raise Stop(f"odometry is missing: it paused in each of {TRIAL_TRIES} tries")

    def _end(self) -> None:
        """Command standing until the base stands."""
        until, self._stops = self._now + REST_TIMEOUT_S, 0
        while self._stops < STOP_REPEATS or (not self._rests() and self._now < until):
            self._send_stop()
            with suppress(Stop):
                self._wait()

    # A period

    def _wait(self) -> None:
        """Handle the events of one period; raises Stop if they end the trials.

        If odometry pauses, the base is commanded to stand until it is back; then
        OdometryInterrupted is raised.
        """
        self._receive()
        paused = self._gap > ODOMETRY_PAUSE_S
        while self._gap > ODOMETRY_PAUSE_S:
            if self._gap > ODOMETRY_LOST_S:
                raise Stop(
                    f"odometry is missing: its stamps did not go on for {ODOMETRY_LOST_S:g} s"
                )
            self._send_stop()
            self._receive()
        if paused:
            raise OdometryInterrupted("odometry paused")

    @property
    def _gap(self) -> float:
        """Seconds since odometry's last new message; 0 before the first."""
        return self._now - self._came if self.recording.poses else 0.0

    def _receive(self) -> None:
        for now, event in self.robot.period():
            self._now = now
            match event:
                case PictureFeatures():
                    self.recording.frames.append(event)
                case Scan(source):
                    self.recording.blind[source] = event.problem
                    if self._answer is not None and not event.problem:  # a person may take hours
                        mount = getattr(self.recording.obstacles, f"{source}_at")
                        ends = ends_of(event.rays[event.rays[:, 2] > 0.0], mount)
                        self.recording.scans.setdefault(source, []).append((now, thinned(ends)))
                case Odometry():
                    self._on_odometry(event)
                case Instruction(text):
                    self._answer = text
                case Hold(why):
                    raise Stop(why)
                case EStop(on=True):
                    raise Stop("the e_stop was pressed")

    def _on_odometry(self, event: Odometry) -> None:
        pose, poses = event.pose, self.recording.poses
        if pose.problem:
            raise Stop(f"odometry tells no place: it {pose.problem}")
        if event.stamp <= self._stamp and poses:
            return  # no news; ODOMETRY_LOST_S ends it
        came, x, y, yaw = poses[-1] if poses else (self._now, pose.x, pose.y, pose.yaw)
        turned = wrap(pose.yaw - yaw)
        for far, (at_once, rate) in zip(
            (math.hypot(pose.x - x, pose.y - y), abs(turned)), POSE_STEP, strict=True
        ):
            if far > at_once + rate * (self._now - came):
                raise Stop(f"odometry jumped: by {far:.2g} at once")
        self._stamp, self._came = event.stamp, self._now
        poses.append((self._now, pose.x, pose.y, yaw + turned))
        self.recording.stamps.append((event.stamp / 1e9, event.stamp / 1e9 + event.age))
        start = self._start = self._start or poses[0]
        drifted = self._drift[GROUND] * (self._now - start[0])
        away = math.dist(poses[-1][1:3], start[1:3])
        away += (
            -drifted if self._velocity == STILL else drifted + LOOKAHEAD_S * self._velocity.speed
        )
        if away > CIRCLE:
            raise Stop(f"it came to {away:.2f} m from its start, of {CIRCLE:g}, drift included")

    def _periods(self, seconds: float) -> Iterator[float]:
        """Yield the elapsed seconds each period, for ``seconds``; waits a period after each."""
        begun = self._now
        while self._now < begun + seconds:
            yield self._now - begun
            self._wait()

    def _hold(self, seconds: float, velocity: Velocity) -> None:
        """Command this velocity for ``seconds``."""
        for _ in self._periods(seconds):
            self._send(velocity)

    def _send(self, velocity: Velocity) -> None:
        self._stops, self._sent, self._velocity = 0, self._now, velocity
        self.recording.command(self._now, velocity.vx, velocity.wz, velocity.vy)
        self.robot.command(velocity)

    def _halt(self, seconds: float) -> None:
        """Send a stop, then nothing, for ``seconds``."""
        for _ in self._periods(seconds):
            if self._stops < STOP_REPEATS:
                self._send_stop()

    def _send_stop(self) -> None:
        self.robot.stop(min(self._stops, STOP_REPEATS - 1))  # the last one is a true zero
        self._stops, self._velocity = self._stops + 1, STILL
        self.recording.command(self._now, 0.0, 0.0)

    def _ask(self, text: str) -> str:
        """Ask the person, while the base stands; returns the answer."""
        self._answer = None
        self.robot.ask(text)
        while self._answer is None:
            with suppress(OdometryInterrupted):  # it stands
                self._halt(COMMAND_PERIOD_S)
        return self._answer.strip().lower()

    # What the trials are made of

    def _agree(self, text: str) -> None:
        for _ in range(ANSWER_TRIES):
            answer = self._ask(f"{text} Go on, with 2 m free around it? [y/n] ")
            if answer in ("y", "yes"):
                self._start = self.recording.poses[-1]
                return
            if answer in ("n", "no", "q"):
                raise Stop("you said no")
        raise Stop("there was no yes or no")

    def _since(self, before: Pose) -> tuple[float, float, float]:
        """The distance moved since a pose: m ahead, rad to the left, m to the left."""
        (_, x0, y0, yaw0), (_, x, y, yaw) = before, self.recording.poses[-1]
        cos, sin, dx, dy = math.cos(yaw0), math.sin(yaw0), x - x0, y - y0
        return cos * dx + sin * dy, yaw - yaw0, cos * dy - sin * dx

    def _rests(self) -> bool:
        """Whether the base moved no more than twice its drift in odometry's last half second."""
        poses = self.recording.poses
        if not poses:
            return True
        then = next((one for one in reversed(poses) if one[0] <= self._came - 0.5), poses[0])
        ahead, turned, aside = self._since(then)
        drifts = self._drift[GROUND], abs(self._drift[TURN])
        return (
            math.hypot(ahead, aside) < RESTING_MOTION[0] + drifts[0]
            and abs(turned) < RESTING_MOTION[1] + drifts[1]
        )

    def _rest(self) -> None:
        """Stop the base, and wait until it stands."""
        begun = self._now
        self._halt(STOP_LASTS_S)
        while not self._rests():
            if self._now - begun > REST_TIMEOUT_S:
                raise Stop(
                    f"it does not stand {REST_TIMEOUT_S:g} s after it was commanded to: press the "
                    "e_stop"
                )
            self._halt(2 * COMMAND_PERIOD_S)

    def _drive(self, axis: int, speed: float, seconds: float) -> None:
        """Command one velocity, then stop, and wait until the base stands."""
        before, sign, begun = self.recording.poses[-1], math.copysign(1.0, speed), self._now
        velocity = Velocity(**{("vx", "wz", "vy")[axis]: speed})
        for _ in self._periods(seconds):
            self._check(axis, sign, before, abs(speed), self._came - begun)
            self._send(velocity)
        self._check(axis, sign, before, abs(speed), self._came - begun)
        self._rest()
        if self._slowest[axis] and any(run.blocked for run in runs_of(self.recording.since(begun))):
            raise Stop(LOST_ITS_SPEED)

    def _check(self, axis: int, sign: float, before: Pose, speed: float, seconds: float) -> None:
        """Raise Stop if the base does not follow its commands; m or rad."""
        since = ahead, turned, aside = self._since(before)
        made, commanded = sign * since[axis], speed * seconds
        drifts, due = abs(self._drift[axis]) * seconds, speed * (seconds - STARTS)
        slides = math.hypot(ahead * (axis != MOVE), aside * (axis != STRAFE))
        slides -= self._drift[GROUND] * seconds
        spins = (abs(turned) - abs(self._drift[TURN]) * seconds) * (axis != TURN)
        refuse(
            (
                made < -AGAINST_COMMAND[axis] - drifts,
                "it moves against its commands, as odometry has it: look at the signs of both",
            ),
            (
                made > 2 * commanded + BEYOND_COMMAND[axis] + drifts,
                "it moves by more than twice its commands, as odometry has it",
            ),
            (
                slides > ASTRAY[MOVE] or spins > ASTRAY[TURN],
                f"it {('turns or goes aside', 'moves', 'turns or moves ahead')[axis]} when it is "
                f"commanded to {('move', 'turn', 'go sideways')[axis]}, as odometry has it: look "
                "at the axes of both",
            ),
            (
                due > SHOULD[axis] + drifts and made < FOLLOWS * due,
                "it does not follow its commands, as odometry has it: is the base's motion on, "
                "is cmd_vel its topic, is the way free?",
            ),
            error=Stop,
        )

    def _easy(self, axis: int, speed: float) -> float:
        """This speed, raised if the base would hardly follow it."""
        return max(speed, 1.5 * self._slowest[axis])

    def _home(self) -> None:
        """Drive back to near the start, bounded by commands and by odometry."""
        for _ in range(3):
            ahead, turned, aside = self._since(self._start or self.recording.poses[0])
            far, turned = math.hypot(ahead, aside), wrap(turned)
            bearing = wrap(math.atan2(-aside, -ahead) - turned)
            back = abs(bearing) > math.pi / 2
            to_line = wrap(bearing - math.pi) if back else bearing
            if far > HOME[MOVE]:
                if abs(to_line) > HOME[TURN]:
                    self._go(TURN, to_line)
                self._go(MOVE, -far if back else far)
            elif abs(turned) > HOME[TURN]:
                self._go(TURN, -turned)
            else:
                return

    def _go(self, axis: int, amount: float) -> None:
        speed = self._easy(axis, EASY[axis])
        seconds = max(0.1, min(abs(amount), WAY[axis]) / speed)
        self._drive(axis, math.copysign(speed, amount), seconds)

    # The trials, in their order

    def _find_odometry(self) -> None:
        self._wait()
        for _ in self._periods(APPEARS):
            if self.recording.poses:
                return
        raise Stop("there is no odometry: name its topic (--odom)")

    def _stand_still(self) -> None:
        self._hold(4.5, STILL)
        self._halt(4.0)
        drift = self._drift = drift_of(self.recording) or self._drift
        if drift[GROUND] > ESCAPES[MOVE] or abs(drift[TURN]) > ESCAPES[TURN]:
            raise Stop(
                f"it moves though it is commanded to stand, by {drift[GROUND]:.2f} m/s and "
                f"{math.degrees(drift[TURN]):.0f} degrees/s"
            )

    def _find_slowest(self, axis: int) -> None:
        low = 0.0
        for high in LADDERS[axis]:
            if self._follows(axis, high):
                break
            low = high
        else:
            at = f"{high:g} {SPEED_UNITS[axis]}"
            raise NotMoving(f"it does not move at up to {at}, as odometry has it")
        while low and high - low > max(FINE[axis], 0.08 * high):
            middle = (low + high) / 2
            low, high = (low, middle) if self._follows(axis, middle) else (middle, high)
        self._slowest[axis] = high
        self.robot.report(f"  it follows from {high:.2g} {SPEED_UNITS[axis]} on")

    def _follows(self, axis: int, speed: float) -> bool:
        """Whether the base moves at this speed, in both directions."""
        for sign in (1, -1):
            self._drive(axis, sign * speed, LADDER_COMMAND_S)
        last = [run for run in runs_of(self.recording) if run.axis == axis][-2:]
        return len(last) == 2 and all(run.moves for run in last)

    def _let_go(self) -> None:
        """End one turn by zero commands, and four by silence."""
        slow = Velocity(wz=self._easy(TURN, EASY[TURN]))
        self._hold(1.5, slow)
        self.recording.zeroed = self._now
        self._hold(2.0, STILL)
        self._rest()
        for turn in 2 * (Velocity(wz=-slow.wz), slow):
            self._hold(2.0, turn)
            self.robot.keep_silent(SILENCE_S)
            self.recording.command(self._sent, NO_MESSAGE, NO_MESSAGE)
            for _ in self._periods(SILENCE_S):
                pass
            self._rest()

    def _strafe(self) -> None:
        """The third axis, of a base that has it."""
        try:
            self._find_slowest(STRAFE)
        except NotMoving as why:
            self.recording.strafes = False
            self.robot.report(f"  {why}: it does not go sideways")
            return
        self.recording.strafes = True
        self._faster(STRAFE, self.settings.lateral_speed)

    def _faster(self, axis: int, most: float) -> None:
        least = min(self._easy(axis, EASY[axis]), most)
        for speed in sorted({least, (least + most) / 2, most}):
            found = axis_figures(self.recording, axis)
            ratio, braking = found.fastest, max(0.0, found.braking or 0.0)
            stops_within = (found.overshoot or 0.0) + speed * (REACTION_S * ratio + braking)
            too_far = axis != TURN and stops_within > self.settings.stops_within
            if too_far or speed * ratio > FASTEST_RATIOS[1] * most:
                why = "stand within its bound" if too_far else f"try, as it goes {ratio:.2f} of it"
                self.robot.report(f"  {speed:.2g} {SPEED_UNITS[axis]} is too fast to {why}")
                return
            for seconds in (min(LONG, WAY[axis] / speed / ratio), SMALL_STEP_S[axis]):
                for sign in (1, -1):
                    self._drive(axis, sign * speed, seconds)
                self._home()

    def _look(self) -> None:
        speed = self._easy(TURN, self.settings.turn_speed / 2)
        self.recording.looks = len(self.recording.frames), len(self.recording.poses)
        for number, seconds in enumerate(CAMERA_TURNS_S):
            self._hold(seconds, Velocity(wz=speed if number % 2 else -speed))
            self._halt(PAUSES[number % len(PAUSES)])
        self._rest()

    def _metre(self) -> None:
        speed = self._easy(MOVE, 0.25)
        ratio = axis_figures(self.recording, MOVE).ratio or 1.0
        before = self.recording.poses[-1]
        self._drive(MOVE, speed, min(1.2, 1.0 / ratio) / speed)
        covered = math.dist(self.recording.poses[-1][1:3], before[1:3])  # as a tape has it
        for _ in range(ANSWER_TRIES):
            text = self._ask("How many cm did it move, by your tape? (empty: not measured) ")
            if not text:
                break
            with suppress(ValueError):
                if 20.0 <= float(text) <= 300.0:
                    self.recording.metre = float(text) / 100, covered
                    break
            self.robot.report("  a number of centimetres is expected, such as 97.5")
