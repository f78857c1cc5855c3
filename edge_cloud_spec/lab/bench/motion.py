"""``bench motion``: random events to the navigator, with odometry that fails, over a base.

Prints the worst step under each fault. The base follows with a lag of 50 to 100 ms and has the
watchdog's half second. Measured is what each step's own commands made the base do, until it stood
or the next step began:

- a move's path and a turn's angle, over the step's size (``worst_ratio``, at most 1.5);
- whether it ever went against its direction (``reversed``: steps that did, by more than 1 cm/s or
  1 degree/s; commands do not brake by reversing, so only rounding errors are tolerated);
- how far a move turned (10 degrees at most) and drifted aside (10 cm at most), and a turn moved.

Standing is below 3 cm/s and 3 degrees/s; ``longest_overrun_s`` is how long the base moved after a
Halt, the watchdog's stop, or the end of usable odometry (at most 0.5 s). While the navigator itself
hangs, only the watchdog stops the base: then it counts from the hang's end.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from ...errors import UserError
from ...nav.answer import every_action
from ...nav.events import (
    Announce,
    Drive,
    Effect,
    EStop,
    Event,
    Halt,
    Hold,
    Instruction,
    Odometry,
    Tick,
    Words,
)
from ...nav.motion import ASIDE, BEND, PERIOD, Goal
from ...nav.navigator import Navigator
from ...nav.pose import STILL, Pose, Velocity
from ...nav.settings import DRIVES, Settings
from .command import Options, Row

GRACE = 0.5  # s after a command's end at which the watchdog stops the base
STANDING = (0.03, 0.05)  # m/s, rad/s under which it stands
PART = 0.01  # s, integrated at once

Components = tuple[float, float, float]  # m/s ahead, m/s left, rad/s


class Base:
    """Pose and velocity; ``own`` is the part of the velocity that is the current step's.

    A step begins with its Announce: what the base still rolls from the one before is not its own.
    ``stopped_at`` is when it was commanded to stand, by a Halt or by the watchdog; infinite from
    the next command that moves.
    """

    def __init__(self, lag: float, now: float) -> None:
        self.pose, self.lag, self.now = Pose(), lag, now
        self.velocity: Components = (0.0, 0.0, 0.0)
        self.own = self.velocity
        self.stopped_at = now
        self._command = STILL
        self._deadline = math.inf

    @property
    def stands(self) -> bool:
        """Whether it stands."""
        vx, vy, wz = self.velocity
        return max(abs(vx), abs(vy)) <= STANDING[0] and abs(wz) <= STANDING[1]

    def obey(self, effect: Effect) -> None:
        """Take the navigator's effect."""
        if isinstance(effect, Drive):
            self._command, self.stopped_at = effect.velocity, math.inf
            self._deadline = min(effect.until + GRACE, effect.stop_by)
        elif isinstance(effect, Halt):
            self._stand(self.now)
        elif isinstance(effect, Announce):
            self.own = (0.0, 0.0, 0.0)

    def run(self, until: float) -> Iterator[tuple[float, float, float, float]]:
        """Move until then: (m/s ahead, m/s left, rad/s, seconds) of the step's own, in parts."""
        while self.now < until - 1e-9:
            end = min(until, self.now + PART)
            if self.now >= self._deadline:
                self._stand(self._deadline)
            elif self._deadline < end:
                end = self._deadline
            dt = end - self.now
            self.now = end
            before = self.own
            self.velocity = self._follow(self.velocity, dt)
            self.own = self._follow(before, dt)
            self._move(dt)
            # The mean over dt is exact for the sum of them: what is commanded is what is covered.
            command = _components(self._command)
            vx, vy, wz = (
                c - self.lag * (after - own) / dt if dt > 0 else own
                for c, after, own in zip(command, self.own, before, strict=True)
            )
            yield vx, vy, wz, dt

    def _stand(self, at: float) -> None:
        self._command, self._deadline, self.stopped_at = STILL, math.inf, at

    def _follow(self, velocity: Components, dt: float) -> Components:
        keep = math.exp(-dt / self.lag)
        vx, vy, wz = (
            c + (v - c) * keep for c, v in zip(_components(self._command), velocity, strict=True)
        )
        return vx, vy, wz

    def _move(self, dt: float) -> None:
        x, y, yaw = self.pose.x, self.pose.y, self.pose.yaw
        vx, vy, wz = self.velocity
        cos, sin = math.cos(yaw), math.sin(yaw)
        self.pose = Pose(
            x + dt * (vx * cos - vy * sin), y + dt * (vx * sin + vy * cos), yaw + dt * wz
        )


def _components(velocity: Velocity) -> Components:
    return velocity.vx, velocity.vy, velocity.wz


FAULTS = ("none", "frozen", "restarted", "jump", "lies", "gone")
LIES = ("scaled", "rotated", "noise", "drift", "nan", "huge")


class FaultyOdometry:
    """The base's pose as odometry reports it: right outside of windows, but for its origin.

    ``silent_since`` is when usable messages ended, else infinite; ``begun`` whether any was sent.
    """

    def __init__(self, random: Random, fault: str, now: float) -> None:
        self._random, self._fault = random, fault
        self._ros = random.uniform(0.0, 1e6)  # the computer's ROS time minus steady time, s
        self._epoch = self._ros  # the camera's
        self._clock = self._epoch  # the odometry's own
        self._origin = Pose(random.uniform(-9, 9), random.uniform(-9, 9), random.uniform(-3, 3))
        self._sent: list[Odometry] = []
        self._kind, self._begin, self._entry = "", now, Pose()
        self._amount = 0.0
        self._next_window(now)

    @property
    def begun(self) -> bool:
        """Whether a message was sent."""
        return bool(self._sent)

    @property
    def silent_since(self) -> float:
        """When usable messages ended, s; infinite while they have not."""
        return self._begin if self._kind in ("frozen", "gone", "nan", "huge") else math.inf

    @property
    def camera_ahead(self) -> float:
        """Seconds by which the camera's clock is ahead of the computer's."""
        return self._epoch - self._ros

    def stamp_at(self, at: float) -> int:
        """The camera's stamp (ns) at ``at``."""
        return int((at + self._epoch) * 1e9)

    def read(self, pose: Pose, now: float) -> Odometry | None:
        """The message for a base at ``pose``, if any."""
        if self._kind and now >= self._end:
            self._next_window(now)
        elif not self._kind and self._fault != "none" and now >= self._end:
            self._fail(pose, now)
        if self._kind == "gone":
            return None
        stamp, age = int((now + self._clock) * 1e9), self._ros - self._clock
        message = Odometry(self._distorted(pose), stamp, age)
        if self._kind == "frozen" and self._sent:
            message = self._frozen(message)
            message = replace(message, age=now + self._ros - message.stamp / 1e9)
        self._sent = [*self._sent[-1:], message]
        return message

    def _next_window(self, now: float) -> None:
        self._kind, self._end = "", now + self._random.uniform(0.0, 3.0)

    def _fail(self, pose: Pose, now: float) -> None:
        random = self._random
        self._kind = random.choice(LIES) if self._fault == "lies" else self._fault
        self._begin, self._end = now, now + random.uniform(0.05, 2.0)
        self._entry, self._amount = pose, random.uniform(-1.0, 3.0)
        if self._kind == "restarted":
            self._origin = replace(pose, yaw=random.choice((0.0, pose.yaw)))
            self._clock = random.choice((self._clock, -now, self._clock - 5.0))
            self._epoch = random.choice((self._epoch, self._clock))
        elif self._kind == "jump":
            far, way = 0.03 * 200 ** random.random(), random.uniform(-math.pi, math.pi)
            self._origin = Pose(
                self._origin.x + far * math.cos(way),
                self._origin.y + far * math.sin(way),
                self._origin.yaw + random.choice((0.0, random.uniform(-3, 3))),
            )

    def _frozen(self, message: Odometry) -> Odometry:
        """The last again; or its stamp with other poses; or the last two in turn."""
        if self._amount < 0.0:
            return replace(message, stamp=max(sent.stamp for sent in self._sent))
        return self._sent[-1] if self._amount < 1.5 else self._sent[0]

    def _distorted(self, pose: Pose) -> Pose:
        random, entry, amount = self._random, self._entry, self._amount
        dx, dy, turned = pose.x - entry.x, pose.y - entry.y, pose.yaw - entry.yaw
        if self._kind == "scaled":
            pose = Pose(entry.x + amount * dx, entry.y + amount * dy, entry.yaw + amount * turned)
        elif self._kind == "rotated":
            cos, sin = math.cos(amount), math.sin(amount)
            pose = Pose(entry.x + cos * dx - sin * dy, entry.y + sin * dx + cos * dy, pose.yaw)
        elif self._kind == "noise":
            far = 0.2 * abs(amount)
            pose = Pose(*(v + random.gauss(0.0, far) for v in (pose.x, pose.y, pose.yaw)))
        elif self._kind == "drift":
            pose = replace(pose, yaw=pose.yaw + amount * math.hypot(dx, dy))
        elif self._kind == "nan":
            return replace(pose, x=math.nan)
        elif self._kind == "huge":
            return random.choice((Pose(1e308, -1e308, pose.yaw), Pose(math.inf, 0.0, 0.0)))
        return self._from_origin(pose)

    def _from_origin(self, pose: Pose) -> Pose:
        origin = self._origin
        dx, dy = pose.x - origin.x, pose.y - origin.y
        cos, sin = math.cos(origin.yaw), math.sin(origin.yaw)
        yaw = math.remainder(pose.yaw - origin.yaw, 2 * math.pi)
        return Pose(cos * dx + sin * dy, cos * dy - sin * dx, yaw)


RATIO, MORE = 1.5, (0.05, math.radians(5))  # of the size, and m or rad beyond
OVERRUN = 0.5  # s
AGAINST = (0.01, math.radians(1))  # m/s, rad/s against the direction that are none
SLACK = 1e-6  # m, rad of the arithmetic
DISTURBED = {"idle": 0.5, "stopped": 0.5, "ready": 0.2, "moving": 0.01}  # chance a tick, by state
EPISODE = 400  # events, then another navigator and base
ANSWERS = [f"action: {action};" for action in every_action()]
ASKED = ("find the red box", "find the door", " find the red box \n")


OPTIONS: Options = {
    "--events": {"type": int, "default": 100_000, "help": "of all faults (%(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a fault."""
    if args.events < len(FAULTS):
        raise UserError(f"--events is at least {len(FAULTS)}, one a fault")
    rows = []
    for number, fault in enumerate(FAULTS):
        events = args.events // len(FAULTS) + (number < args.events % len(FAULTS))
        rows.append(measure(fault, events, args.seed).row(fault))
        print(f"{fault}: {rows[-1]['steps']} steps", file=sys.stderr, flush=True)
    return rows


def measure(fault: str, events: int, seed: int) -> WorstStep:
    """The worst step among ``events`` random events."""
    random, worst = Random(f"motion {seed} {fault}"), WorstStep()
    while worst.events < events:
        before_end = min(EPISODE, events - worst.events) - 1  # an episode ends with a Hold
        _Episode(random, fault, worst).run(before_end)
    return worst


@dataclass
class WorstStep:
    """Counts, and the worst of each kind, so far."""

    events: int = 0
    steps: int = 0
    ratio: float = 0.0
    reversed: int = 0
    overrun: float = 0.0
    turned: float = 0.0  # rad, of a move
    aside: float = 0.0  # m, of a move
    moved: float = 0.0  # m, of a turn
    late: float = 0.0  # s that a command was valid beyond a period

    @property
    def passed(self) -> bool:
        """Whether all bounds were kept."""
        return (
            self.ratio <= RATIO + SLACK
            and self.reversed == 0
            and self.overrun <= OVERRUN
            and self.turned <= BEND + SLACK
            and self.aside <= ASIDE + SLACK
            and self.moved <= SLACK
            and self.late <= SLACK
        )

    def row(self, fault: str) -> Row:
        """The row that ``--json`` writes."""
        return {
            "fault": fault,
            "events": self.events,
            "steps": self.steps,
            "worst_ratio": self.ratio,
            "reversed": self.reversed,
            "longest_overrun_s": self.overrun,
            "move_turned_deg": math.degrees(self.turned),
            "move_aside_m": self.aside,
            "turn_moved_m": self.moved,
            "passed": self.passed,
        }


@dataclass
class _Step:
    """What the base did of one step."""

    goal: Goal = field(default_factory=Goal)
    begun: float = math.inf
    located: bool = False  # whether odometry was available
    path: float = 0.0
    aside: float = 0.0
    turned: float = 0.0
    against: bool = False

    def add(self, vx: float, vy: float, wz: float, dt: float) -> None:
        self.path += math.hypot(vx, vy) * dt
        self.aside += abs(vy) * dt
        self.turned += abs(wz) * dt
        if self.goal.distance:
            self.against |= vx * math.copysign(1.0, self.goal.distance) < -AGAINST[0]
        elif self.goal.angle:
            self.against |= wz * math.copysign(1.0, self.goal.angle) < -AGAINST[1]

    def judge(self, base: Base, worst: WorstStep) -> None:
        """Add it to the worst, with the distance that the base still rolls."""
        vx, vy, wz = (abs(v) * base.lag for v in base.own)
        path, aside, turned = self.path + math.hypot(vx, vy), self.aside + vy, self.turned + wz
        distance, angle = abs(self.goal.distance), abs(self.goal.angle)
        worst.steps += bool(distance or angle)
        worst.reversed += self.against
        if distance:
            worst.ratio = max(worst.ratio, (path - MORE[0]) / distance)
            worst.turned, worst.aside = max(worst.turned, turned), max(worst.aside, aside)
        elif angle:
            worst.ratio = max(worst.ratio, (turned - MORE[1]) / angle)
            worst.moved = max(worst.moved, path)
        else:
            worst.moved = max(worst.moved, path, turned)


class _Episode:
    """One navigator, one base and its odometry, under random events."""

    def __init__(self, random: Random, fault: str, worst: WorstStep) -> None:
        self._random, self._worst = random, worst
        self._now = self._tick_at = self._odometry_at = random.uniform(10.0, 1000.0)
        self._base = Base(random.uniform(0.05, 0.1), self._now)
        drive = random.choice(DRIVES)
        settings = Settings(drive=drive, clock_offset_limit=random.choice((5.0, 1e10, 1e10)))
        self._navigator = Navigator(settings, random.getrandbits(32))
        self._odometry = FaultyOdometry(random, fault, self._now)
        self._instruction, self._requests = "", 0
        self._step = _Step()
        self._hung_until = -math.inf
        self._left = 0

    def run(self, events: int) -> None:
        """So many events, and a Hold that ends it."""
        self._left = events
        while self._left:
            if self._tick_at <= self._odometry_at:
                self._advance(self._tick_at)
                self._send(Tick())
                self._tick_at += self._pause()
                self._disturb()
            else:
                self._advance(self._odometry_at)
                message = self._odometry.read(self._base.pose, self._now)
                self._odometry_at += self._random.uniform(0.03, 0.06)
                if message is not None:
                    self._send(message)
        self._left = 1
        self._send(Hold("the end"))
        self._advance(self._now + 2.0)
        self._step.judge(self._base, self._worst)

    def _pause(self) -> float:
        """Seconds to the next tick: mostly a period, sometimes a hang of the navigator."""
        if self._random.random() < 0.01:
            hang = self._random.uniform(0.08, 0.9)
            self._hung_until = self._now + hang
            return hang
        return self._random.uniform(0.7, 1.3) * PERIOD

    def _disturb(self) -> None:
        """Sometimes, an event other than a tick."""
        chance = DISTURBED[self._navigator.status.state]
        if self._left and self._random.random() < chance:
            self._send(self._random_event())

    def _random_event(self) -> Event:
        random = self._random
        kind = random.random()
        if "publish" in self._navigator.status.detail and kind < 0.5:  # what it waits for
            self._instruction = random.choice(ASKED)
            return Instruction(self._instruction)
        if kind < 0.85:
            return self._words()
        if kind < 0.92:
            return EStop(random.random() < 0.3)
        if kind < 0.96:
            self._instruction = random.choice((*ASKED, "stop"))
            return Instruction(self._instruction)
        return Hold(random.choice(("", "", "a parameter")))

    def _words(self) -> Words:
        random = self._random
        self._requests += 1
        age = random.uniform(0.0, 0.4)
        careless = random.random() < 0.1
        ahead = self._odometry.camera_ahead
        return Words(
            request=str(self._requests),
            position=0,
            count=4,
            text=random.choice(ANSWERS),
            verified=random.random() < 0.95,
            finished=True,
            stamp=self._odometry.stamp_at(self._now - age),
            age=random.uniform(-1.0, 12.0) if careless else age - ahead,
            instruction="find it" if careless else self._instruction,
            stops=self._navigator.stops - (random.random() < 0.05),
            camera_offset=ahead,
        )

    def _send(self, event: Event) -> None:
        self._worst.events += 1
        self._left -= 1
        for effect in self._navigator.on(event, self._now):
            if isinstance(effect, Announce):
                self._step.judge(self._base, self._worst)
                self._step = _Step(effect.goal, self._now, self._odometry.begun)
            elif isinstance(effect, Drive):
                self._worst.late = max(self._worst.late, effect.until - self._now - PERIOD)
            self._base.obey(effect)

    def _advance(self, until: float) -> None:
        """Let the base follow, and measure how long it moves when it must stand."""
        base, step, odometry = self._base, self._step, self._odometry
        for part in base.run(until):
            step.add(*part)
            if not base.stands:
                since = base.stopped_at
                if step.located:
                    silent = max(odometry.silent_since, step.begun, self._hung_until)
                    since = min(since, silent)
                self._worst.overrun = max(self._worst.overrun, base.now - since)
        self._now = until
