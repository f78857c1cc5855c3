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
from dataclasses import dataclass, field
from random import Random

from ....errors import UserError
from ....nav.answer import every_action
from ....nav.events import Announce, Drive, EStop, Event, Hold, Instruction, Tick, Words
from ....nav.motion import ASIDE, BEND, PERIOD, Goal
from ....nav.navigator import Navigator
from ....nav.settings import BY_ITSELF, MOST, Settings
from ..command import Row
from .base import Base
from .odometry import FAULTS, FaultyOdometry

RATIO, MORE = 1.5, (0.05, math.radians(5))  # of the size, and m or rad beyond
OVERRUN = 0.5  # s
AGAINST = (0.01, math.radians(1))  # m/s, rad/s against the direction that are none
SLACK = 1e-6  # m, rad of the arithmetic
DISTURBED = {"idle": 0.5, "stopped": 0.5, "ready": 0.2, "moving": 0.01}  # chance a tick, by state
EPISODE = 400  # events, then another navigator and base
ANSWERS = [f"action: {action};" for action in every_action()]
ASKED = ("find the red box", "find the door", " find the red box \n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--events", type=int, default=100_000, help="of all faults (%(default)s)")


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
    """The worst step of so many events."""
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
        lead = random.choice((0.0, BY_ITSELF, 0.5, MOST))
        settings = Settings(lead_time=lead, clock_offset_limit=random.choice((5.0, 1e10, 1e10)))
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
