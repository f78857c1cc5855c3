"""What is driven, in which order, and when it ends at once: a state machine without I/O or clock.

``Commission.on`` takes an event and says what to do. The order of the trials is that of its
generators, which wait by ``yield`` for a time or for an answer; whatever goes wrong meanwhile ends
them, and the base is told to stand.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

from ..bounds import Bounded, bounded
from ..nav.events import EStop, Odometry, Tick
from ..nav.motion import REACTION
from ..nav.pose import STILL, Velocity, wrap
from ..nav.watchdog import REPEATS
from .camera import Frame
from .figures import MOVE, SILENT, TURN, Recording, axis_figures, drift_of, runs_of

CIRCLE = 1.5  # m around the start, which it never leaves
AHEAD = 0.4  # s of driving that are left to the circle's edge
LOST = 0.5  # s without odometry whose stamps go on
APPEARS = 5.0  # s that odometry has to appear
JUMP = ((0.15, 2.5), (0.35, 6.0))  # m and m/s, rad and rad/s that odometry goes on by at most
AGAINST = (0.12, 0.6)  # m, rad against a command
FAR = (0.35, 0.6)  # m, rad beyond twice a command
SHOULD = (0.35, 0.8)  # m, rad of commands after which it must have moved,
FOLLOWS = 0.25  # by this share
STANDS = 5.0  # s that a base has to stand
LOOK = 1.2  # s to see it stand
SAME = (0.025, math.radians(2.5))  # m, rad in half a second of a base that stands
ESCAPES = (0.25, 0.6)  # m/s, rad/s at which a base that is told to stand is to be caught
PULSE = 1.2  # s of a command that looks for the slowest speed
LADDERS = ((0.03, 0.06, 0.1, 0.15, 0.2, 0.3), (0.06, 0.1, 0.2, 0.3, 0.45, 0.6))  # m/s, rad/s
FINE = (0.011, 0.021)  # m/s, rad/s to which it is found
EASY = (0.2, 0.4)  # m/s, rad/s to go back at
LONG, WAY = 2.5, (0.85, 2.4)  # s, m and rad of a run at most
RATES = ("m/s", "rad/s")
SHORT = (0.35, 0.15)  # s of a small step
HOME = (0.12, 0.3)  # m, rad from its start at which a trial may begin
LOOKS = (1.1, 0.5, 1.5, 0.8, 1.3, 0.6, 1.0, 1.4, 0.7, 1.2, 0.9, 1.6)  # s of turning
PAUSES = (0.3, 0.9, 0.5, 1.2)  # s
GARBAGE = 3  # answers that say nothing, after which it ends


@dataclass(frozen=True)
class Settings(Bounded):
    """How fast at most, and within what it must stand. Raises ValueError naming a field."""

    speed: float = bounded(0.6, 0.1, 1.5, "m/s at most")
    turn_speed: float = bounded(1.2, 0.2, 2.5, "rad/s at most")
    stops_within: float = bounded(0.35, 0.05, 5.0, "m in which it must stand after a fault")


@dataclass(frozen=True)
class Answer:
    """What the person typed."""

    text: str


@dataclass(frozen=True)
class Abort:
    """The program must end: Ctrl-C, or nobody can answer any more."""

    why: str


@dataclass(frozen=True)
class Send:
    """Command this now."""

    velocity: Velocity


@dataclass(frozen=True)
class Halt:
    """Send one message of a stop, the ``repeat``-th."""

    repeat: int


@dataclass(frozen=True)
class Ask:
    """A question; the base stands until the answer comes."""

    text: str


@dataclass(frozen=True)
class Say:
    """Something that a person should know."""

    text: str


@dataclass(frozen=True)
class Ended:
    """It is over; ``problem`` is empty where all trials were made."""

    problem: str = ""


@dataclass(frozen=True)
class Phase:
    """For so long: send this velocity; None: a stop, and then nothing; ``silent``: nothing."""

    seconds: float
    velocity: Velocity | None = None
    silent: bool = False


Event = Odometry | Frame | Tick | Answer | EStop | Abort
Effect = Send | Halt | Ask | Say | Ended
Trial = Generator[Phase | Ask | Say, str, None]


class Stop(Exception):
    """Why the trials cannot go on."""


class Commission:
    """The trials of one base. ``on`` wants a ``Tick`` 20 times a second; times are steady seconds.

    ``recording`` is what figures come from, whole or not; ``ended`` whether it is over.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.recording = settings, Recording()
        self.ended = False
        self._now = self._came = -math.inf
        self._begun: float | None = None
        self._ticked = self._sent = self._at_fault = 0.0
        self._stamp = 0
        self._drift = (0.0, 0.0, 0.0)
        self._trial: Trial = self._all()
        self._phase: Phase | Ask | None = None
        self._until = -math.inf
        self._repeat = REPEATS
        self._slowest = [0.0, 0.0]
        self._run: tuple[int, float, float, tuple[float, ...]] | None = None
        self._effects: list[Effect] = []

    def on(self, event: Event, now: float) -> list[Effect]:
        """What to do about this event, in order."""
        self._now, self._effects = now, []
        self._begun = now if self._begun is None else self._begun
        try:
            if isinstance(event, Frame):
                self.recording.frames.append(event)
            elif isinstance(event, Odometry):
                self._hear(event)
            elif isinstance(event, EStop | Abort):
                if isinstance(event, Abort) or event.on:
                    raise Stop(getattr(event, "why", "the e_stop was pressed"))
            elif not self.ended and isinstance(event, Answer):
                if isinstance(self._phase, Ask):
                    self._go_on(event.text)
            elif isinstance(event, Tick):
                self._tick()
        except Stop as why:
            self._end(str(why))
        return self._effects

    # What may end it

    def _end(self, problem: str) -> None:
        if not self.ended:
            self.ended, self._phase, self._run, self._repeat = True, None, None, 0
            self._trial.close()
            self._at_fault = self._now
            self._effects += [Halt(0), Ended(problem)]
            self.recording.command(self._now, 0.0, 0.0)

    def _hear(self, event: Odometry) -> None:
        pose, poses = event.pose, self.recording.poses
        if not pose.sane:
            raise Stop("odometry tells no place: it is not a number")
        if event.stamp <= self._stamp and poses:
            return  # no news; LOST ends it
        yaw = pose.yaw
        if poses:
            came, x, y, before = poses[-1]
            yaw = before + wrap(pose.yaw - before)
            for far, (at_once, rate) in zip(
                (math.hypot(pose.x - x, pose.y - y), abs(yaw - before)), JUMP, strict=True
            ):
                if far > at_once + rate * (self._now - came):
                    raise Stop(f"odometry jumped: by {far:.2g} at once")
        self._stamp, self._came = event.stamp, self._now
        poses.append((self._now, pose.x, pose.y, yaw))
        self.recording.stamps.append((event.stamp / 1e9, event.stamp / 1e9 + event.age))
        if not self.ended:
            self._watch()

    def _watch(self) -> None:
        """Raise Stop where the base is not where it should be."""
        x, y = self._offset[:2]
        driven = self._phase.velocity if isinstance(self._phase, Phase) else None
        if math.hypot(x, y) + AHEAD * (driven or STILL).speed > CIRCLE:
            raise Stop(f"it came to {math.hypot(x, y):.2f} m from its start, of {CIRCLE:g}")
        if self._run is None:
            return
        axis, sign, commanded, before = self._run
        made = sign * self._made(axis, before)
        drifts = abs(self._drift[axis]) * (self._now - before[0])
        if made < -AGAINST[axis] - drifts:
            raise Stop(
                "it moves against its commands, as odometry has it: look at the signs of both"
            )
        if made > 2 * commanded + FAR[axis] + drifts:
            raise Stop("it moves by more than twice its commands, as odometry has it")
        if commanded > SHOULD[axis] + drifts and made < FOLLOWS * commanded:
            raise Stop(
                "it does not follow its commands, as odometry has it: is the base's motion on, "
                "is cmd_vel its topic, is the way free?"
            )

    @property
    def _offset(self) -> tuple[float, float, float]:
        """m, m, rad from the start, along its heading."""
        (_, x, y, yaw), (_, x0, y0, yaw0) = self.recording.poses[-1], self.recording.poses[0]
        cos, sin = math.cos(yaw0), math.sin(yaw0)
        dx, dy = x - x0, y - y0
        return cos * dx + sin * dy, cos * dy - sin * dx, wrap(yaw - yaw0)

    def _made(self, axis: int, before: tuple[float, ...]) -> float:
        _, x, y, yaw = self.recording.poses[-1]
        if axis == TURN:
            return yaw - before[3]
        return math.cos(before[3]) * (x - before[1]) + math.sin(before[3]) * (y - before[2])

    # Time

    def _tick(self) -> None:
        if self.ended:
            self._stop(not self._rests() and self._now - self._at_fault < STANDS)
            return
        assert self._begun is not None
        if not self.recording.poses and self._now - self._begun > APPEARS:
            raise Stop("there is no odometry: name its topic (--odom)")
        if self.recording.poses and self._now - self._came > LOST:
            raise Stop(f"odometry is missing: its stamps did not go on for {LOST:g} s")
        if self._run is not None:
            axis, sign, commanded, before = self._run
            assert isinstance(self._phase, Phase) and self._phase.velocity is not None
            along = self._phase.velocity.wz if axis == TURN else self._phase.velocity.vx
            self._run = axis, sign, commanded + abs(along) * (self._now - self._ticked), before
        self._ticked = self._now
        if self.recording.poses and not isinstance(self._phase, Ask) and self._now >= self._until:
            self._go_on("")
        if not isinstance(self._phase, Phase) or self._phase.velocity is None:
            self._stop(False)
        elif self._phase.silent:
            self.recording.command(self._sent, SILENT, SILENT)
        else:
            self._repeat, self._sent, velocity = 0, self._now, self._phase.velocity
            self.recording.command(self._now, velocity.vx, velocity.wz)
            self._effects.append(Send(velocity))

    def _stop(self, more: bool) -> None:
        """One message of a stop, if there is one to send; the last one is a true zero."""
        if self._repeat < REPEATS or more:
            self._effects.append(Halt(min(self._repeat, REPEATS - 1)))
            self._repeat += 1
            self.recording.command(self._now, 0.0, 0.0)

    def _go_on(self, answer: str) -> None:
        while True:
            try:
                phase = self._trial.send(answer) if self._phase else next(self._trial)
            except StopIteration:
                self._end("")
                return
            answer = ""
            if isinstance(phase, Say):
                self._phase = self._phase or Phase(0.0)
                self._effects.append(phase)
                continue
            self._phase = phase
            if isinstance(phase, Ask):
                self._effects.append(phase)
            else:
                self._until = self._now + phase.seconds
            return

    def _rests(self) -> bool:
        """Whether it has not gone on for half a second, but for twice its drift."""
        poses = self.recording.poses
        if not poses:
            return True
        then = next((one for one in reversed(poses) if one[0] <= self._now - 0.5), poses[0])
        moved = math.dist(poses[-1][1:3], then[1:3])
        turned = abs(poses[-1][3] - then[3])
        return moved < SAME[0] + self._drift[2] and turned < SAME[1] + abs(self._drift[1])

    # The trials, in their order

    def _all(self) -> Trial:
        yield from self._agree(
            "Stand at the e_stop, with 2 m free around the robot. First it stands for 8 s."
        )
        yield from self._standing()
        for axis, about in ((TURN, "It turns on its spot"), (MOVE, "It moves a little")):
            yield from self._agree(f"{about}, to and fro, slowly at first, until it follows.")
            yield from self._find_slowest(axis)
        yield from self._agree("It turns slowly, and once no command tells it to stop.")
        yield from self._by_itself()
        yield from self._agree("It turns on its spot to both sides, faster each time.")
        yield from self._faster(TURN, self.settings.turn_speed)
        yield from self._agree("It moves by up to 1 m ahead and back, faster each time.")
        yield from self._faster(MOVE, self.settings.speed)
        if self.recording.frames:
            yield from self._agree("It looks left and right for 25 s, for the camera.")
            yield from self._look()
        yield from self._agree("Mark where it stands on the floor. It moves 1 m ahead, slowly.")
        yield from self._metre()

    def _agree(self, text: str) -> Trial:
        for _ in range(GARBAGE):
            answer = (yield Ask(f"{text} Go on? [y/n] ")).strip().lower()
            if answer in ("y", "yes"):
                return
            if answer in ("n", "no", "q"):
                raise Stop("you said no")
        raise Stop("there was no yes or no")

    def _standing(self) -> Trial:
        yield Phase(4.5, STILL)
        yield Phase(4.0)
        drift = self._drift = drift_of(self.recording) or self._drift
        if drift[2] > ESCAPES[MOVE] or abs(drift[1]) > ESCAPES[TURN]:
            raise Stop(
                f"it moves though it is told to stand, by {drift[2]:.2f} m/s and "
                f"{math.degrees(drift[1]):.0f} degrees/s"
            )

    def _drive(self, axis: int, speed: float, seconds: float) -> Trial:
        """One command; then a stop, and until it stands."""
        before = self.recording.poses[-1]
        self._run = axis, math.copysign(1.0, speed), 0.0, before
        yield Phase(seconds, Velocity(speed) if axis == MOVE else Velocity(wz=speed))
        self._run = None
        yield from self._rest()

    def _rest(self) -> Trial:
        begun = self._now
        yield Phase(LOOK)
        while not self._rests():
            if self._now - begun > STANDS:
                raise Stop(f"it does not stand {STANDS:g} s after it was told to: press the e_stop")
            yield Phase(0.1)

    def _moves(self, axis: int, speed: float) -> Trial:
        for sign in (1, -1):
            yield from self._drive(axis, sign * speed, PULSE)

    def _followed(self, axis: int) -> bool:
        """Whether the base moved in each of the last two runs."""
        last = [run for run in runs_of(self.recording) if run.axis == axis][-2:]
        return len(last) == 2 and not any(run.moves_not(self._drift[axis]) for run in last)

    def _find_slowest(self, axis: int) -> Trial:
        low = 0.0
        for high in LADDERS[axis]:
            yield from self._moves(axis, high)
            if self._followed(axis):
                break
            low = high
        else:
            at = f"{high:g} {RATES[axis]}"
            raise Stop(f"it does not move at up to {at}, as odometry has it")
        while low and high - low > max(FINE[axis], 0.08 * high):
            middle = (low + high) / 2
            yield from self._moves(axis, middle)
            low, high = (low, middle) if self._followed(axis) else (middle, high)
        self._slowest[axis] = high
        yield Say(f"  it follows from {high:.2g} {RATES[axis]} on")
        yield from self._home()

    def _by_itself(self) -> Trial:
        slow = Velocity(wz=max(EASY[TURN], 1.5 * self._slowest[TURN]))
        yield Phase(1.5, slow)
        self.recording.zeroed = self._now
        yield Phase(2.0, STILL)
        yield from self._rest()
        for one in (Velocity(wz=-slow.wz), slow):
            yield Phase(1.5, one)
            yield Phase(2.5, one, silent=True)
            yield from self._rest()
        yield from self._home()

    def _faster(self, axis: int, most: float) -> Trial:
        easy = max(EASY[axis], 1.5 * self._slowest[axis])
        for speed in sorted({min(easy, most), (min(easy, most) + most) / 2, most}):
            if axis == MOVE and not self._stands_from(speed):
                yield Say(f"  {speed:.2g} m/s is too fast to stand within its bound; not tried")
                return
            ratio = max(1.0, axis_figures(self.recording, axis).ratio or 1.0)
            for seconds in (min(LONG, WAY[axis] / speed / ratio), SHORT[axis]):
                for sign in (1, -1):
                    yield from self._drive(axis, sign * speed, seconds)
                yield from self._home()

    def _stands_from(self, speed: float) -> bool:
        found = axis_figures(self.recording, MOVE)
        beyond = (found.overshoot or 0.0) + speed * (REACTION + (found.braking or 0.0))
        return beyond <= self.settings.stops_within

    def _look(self) -> Trial:
        speed = max(self.settings.turn_speed / 2, 1.5 * self._slowest[TURN])
        self.recording.looks = len(self.recording.frames), len(self.recording.poses)
        for number, seconds in enumerate(LOOKS):
            sign = 1 if number % 2 else -1
            yield Phase(seconds, Velocity(wz=sign * speed))
            yield Phase(PAUSES[number % len(PAUSES)])
        yield from self._rest()
        yield from self._home()

    def _metre(self) -> Trial:
        speed = max(0.25, 1.5 * self._slowest[MOVE])
        ratio = axis_figures(self.recording, MOVE).ratio or 1.0
        before = self.recording.poses[-1]
        yield from self._drive(MOVE, speed, min(1.2, 1.0 / ratio) / speed)
        _, x, y, _ = self.recording.poses[-1]
        told = math.hypot(x - before[1], y - before[2])  # as a tape has it
        for _ in range(GARBAGE):
            text = yield Ask("How many cm did it move, by your tape? (empty: not measured) ")
            try:
                taped = float(text.strip() or "nan") / 100
            except ValueError:
                taped = math.inf
            if math.isnan(taped):
                break
            if 0.2 <= taped <= 3.0:
                self.recording.metre = taped, told
                break
            yield Say("  a number of centimetres is expected, such as 97.5")
        yield from self._home()

    def _home(self) -> Trial:
        """Back to about where it began, by its own commands and no further than odometry has it."""
        for _ in range(3):
            x, y, turned = self._offset
            far = math.hypot(x, y)
            bearing = wrap(math.atan2(-y, -x) - turned)
            back = abs(bearing) > math.pi / 2
            aside = wrap(bearing - math.pi) if back else bearing
            if far > HOME[MOVE]:
                if abs(aside) > HOME[TURN]:
                    yield from self._go(TURN, aside)
                yield from self._go(MOVE, -far if back else far)
            elif abs(turned) > HOME[TURN]:
                yield from self._go(TURN, -turned)
            else:
                return

    def _go(self, axis: int, amount: float) -> Trial:
        speed = max(EASY[axis], 1.5 * self._slowest[axis])
        yield from self._drive(
            axis, math.copysign(speed, amount), max(0.1, min(abs(amount), WAY[axis]) / speed)
        )
