"""``bench motion``: random events to the navigator, with odometry that fails, over a base.

Prints the worst step under each fault. The base follows with a lag of 50 to 100 ms and has the
watchdog's half second. Measured is what the base really made *since the frame* of each step, with
what drove before, until another step replaced it or it ended, and what the base would roll from
there; most episodes are sequences on the move, as a quick drafter makes them:

- a move's path and a turn's angle, over the step's size (``worst_ratio``, at most 1.5);
- how far a move turned (10 degrees at most) and drifted aside (10 cm at most), and a turn moved
  (``turn_moved_m`` where the base stood at its frame, else ``turn_rolled_m``, at most 25 cm);
- how far from its goal, counted from where its frame was taken, a step under right odometry was
  when it said that it had arrived (``missed_m``, ``missed_deg``);
- of its frame when it began: the age in s and in s of driving (1 s at most), and what the base had
  made since then (``way_m``, ``way_deg``): p50, p99 and worst;
- ``reversed``: steps against whose direction base or commands went faster than what was driven
  before, or faster again (by more than 1 cm/s or 1 degree/s).

Which motions may begin at all, and their commands, are the fuzzer's to check (``make fuzz``).

Standing is below 3 cm/s and 3 degrees/s; ``longest_overrun_s`` is how long the base moved after a
Halt, the watchdog's stop, or the end of usable odometry (at most 0.5 s). While the navigator itself
hangs, only the watchdog stops the base: then it counts from the hang's end.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from ...errors import UserError
from ...nav.answer import CLAUSES
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
    Show,
    Tick,
    Words,
)
from ...nav.motion import ASIDE, BEND, PATH, PERIOD
from ...nav.navigator import YOUNG, Navigator
from ...nav.pose import STILL, Pose, Velocity, between
from ...nav.settings import CONTINUOUS, DRIVES, Settings
from ...nav.status import FOLLOWING, GoalStatus
from .command import Options, Row

GRACE = 0.5  # s after a command's end at which the watchdog stops the base
STANDING = (0.03, 0.05)  # m/s, rad/s under which it stands
PART = 0.01  # s, integrated at once
REMEMBERED = 2000  # parts; more than ten seconds

Components = tuple[float, float, float]  # m/s ahead, m/s left, rad/s


@dataclass(frozen=True)
class Made:
    """What a base has covered until ``at`` (s).

    ``path`` and ``aside`` in m, ``turned`` in rad to either side, ``driven``: s under commands that
    move it.
    """

    at: float
    pose: Pose
    path: float = 0.0
    aside: float = 0.0
    turned: float = 0.0
    driven: float = 0.0


class Base:
    """Pose and velocity, and what it made.

    ``stopped_at`` is when it was commanded to stand, by a Halt or by the watchdog; infinite from
    the next command that moves.
    """

    def __init__(self, lag: float, now: float) -> None:
        self.pose, self.lag, self.now = Pose(), lag, now
        self.velocity: Components = (0.0, 0.0, 0.0)
        self.command = STILL
        self.stopped_at = now
        self._deadline = math.inf
        self._made = deque([Made(now, self.pose)], maxlen=REMEMBERED)

    @property
    def stands(self) -> bool:
        """Whether it stands."""
        vx, vy, wz = self.velocity
        return max(abs(vx), abs(vy)) <= STANDING[0] and abs(wz) <= STANDING[1]

    def made(self, until: float) -> Made:
        """What the base had covered until this time (s), interpolated."""
        after = self._made[-1]
        for before in reversed(self._made):
            if before.at <= until:
                break
            after = before
        share = (until - before.at) / (after.at - before.at) if after.at > before.at else 0.0
        share = min(1.0, max(0.0, share))
        sums = (
            getattr(before, name) + share * (getattr(after, name) - getattr(before, name))
            for name in ("path", "aside", "turned", "driven")
        )
        return Made(until, between(before.pose, after.pose, share), *sums)

    def obey(self, effect: Effect) -> None:
        """Take the navigator's effect."""
        if isinstance(effect, Drive):
            self.command, self.stopped_at = effect.velocity, math.inf
            self._deadline = min(effect.until + GRACE, effect.stop_by)
        elif isinstance(effect, Halt):
            self._stand(self.now)

    def run(self, until: float) -> Iterator[tuple[float, float, float, float]]:
        """Move until then: (m/s ahead, m/s left, rad/s, seconds), in parts."""
        while self.now < until - 1e-9:
            end = min(until, self.now + PART)
            if self.now >= self._deadline:
                self._stand(self._deadline)
            elif self._deadline < end:
                end = self._deadline
            dt, before = end - self.now, self.velocity
            self.now = end
            self.velocity = self._follow(dt)
            # The mean over dt is exact for the sum of them: what is commanded is what is covered.
            vx, vy, wz = (
                c - self.lag * (after - v) / dt if dt > 0 else v
                for c, after, v in zip(components(self.command), self.velocity, before, strict=True)
            )
            self._move(vx, vy, wz, dt)
            yield vx, vy, wz, dt

    def _stand(self, at: float) -> None:
        self.command, self._deadline, self.stopped_at = STILL, math.inf, at

    def _follow(self, dt: float) -> Components:
        keep = math.exp(-dt / self.lag)
        vx, vy, wz = (
            c + (v - c) * keep for c, v in zip(components(self.command), self.velocity, strict=True)
        )
        return vx, vy, wz

    def _move(self, vx: float, vy: float, wz: float, dt: float) -> None:
        x, y, yaw = self.pose.x, self.pose.y, self.pose.yaw
        cos, sin = math.cos(yaw), math.sin(yaw)
        self.pose = Pose(
            x + dt * (vx * cos - vy * sin), y + dt * (vx * sin + vy * cos), yaw + dt * wz
        )
        last = self._made[-1]
        self._made.append(
            Made(
                self.now,
                self.pose,
                last.path + math.hypot(vx, vy) * dt,
                last.aside + abs(vy) * dt,
                last.turned + abs(wz) * dt,
                last.driven + (dt if self.command != STILL else 0.0),
            )
        )


def components(velocity: Velocity) -> Components:
    """The velocity as numbers."""
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
MISSED = (0.06, math.radians(5))  # m, rad from its goal when it has arrived
OVERRUN = 0.5  # s
AGAINST = (0.01, math.radians(1))  # m/s, rad/s against the direction that are none
ROLLS = 0.005  # m that a base which stands may still roll
SLACK = 1e-6  # m, rad of the arithmetic
DISTURBED = {"idle": 0.3, "stopped": 0.5, "ready": 0.03, "moving": 0.01}  # chance a tick, by state
DECIDES = {"idle": 0.5, "ready": 1.0}  # chance a tick that a quick drafter begins
EPISODE = 1000  # events, then another navigator and base
ANSWERS = CLAUSES.answers
MOVING = [answer for answer in ANSWERS if "stop" not in answer]
ASKED = ("find the red box", "find the door", " find the red box \n")
FRAME = ("age_s", "driving_s", "way_m", "way_deg")  # what is told of a step's frame
SHARES = {"p50": 0.5, "p99": 0.99, "worst": 1.0}


OPTIONS: Options = {
    "--events": {"type": int, "default": 100_000, "help": "of all faults (%(default)s)"},
}
COLUMNS = {
    "fault": "fault",
    "events": "events",
    "steps": "steps",
    "worst_ratio": "worst ratio",
    "reversed": "reversed",
    "longest_overrun_s": "overrun s",
    "move_turned_deg": "move turned deg",
    "move_aside_m": "aside m",
    "turn_moved_m": "turn moved m",
    "turn_rolled_m": "rolled m",
    "driving_s_worst": "frame's age, s of driving",
    "way_m_worst": "way m",
    "way_deg_worst": "way deg",
    "passed": "passed",
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row a fault."""
    if args.events < len(FAULTS):
        raise UserError(f"--events is at least {len(FAULTS)}, one a fault")
    rows = []
    for number, fault in enumerate(FAULTS):
        events = args.events // len(FAULTS) + (number < args.events % len(FAULTS))
        worst = measure(fault, events, args.seed)
        rows.append(worst.row(fault))
        print(f"{fault}: {worst.steps} steps", file=sys.stderr)
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
    rolled: float = 0.0  # m, of a turn that began on the move
    missed: list[float] = field(default_factory=lambda: [0.0, 0.0])  # m, rad
    frames: list[tuple[float, ...]] = field(default_factory=list)  # age, driving s; way m, rad

    @property
    def passed(self) -> bool:
        """Whether all bounds were kept."""
        return (
            self.ratio <= RATIO + SLACK
            and self.reversed == 0
            and self.overrun <= OVERRUN
            and self.turned <= BEND + SLACK
            and self.aside <= ASIDE + SLACK
            and self.moved <= ROLLS
            and self.rolled <= PATH + SLACK
            and all(each <= most for each, most in zip(self.missed, MISSED, strict=True))
            and max((driven for _, driven, *_ in self.frames), default=0.0) <= YOUNG + PART
        )

    def row(self, fault: str) -> Row:
        """The row that ``--json`` writes."""
        row: Row = {
            "fault": fault,
            "events": self.events,
            "steps": self.steps,
            "worst_ratio": self.ratio,
            "reversed": self.reversed,
            "longest_overrun_s": self.overrun,
            "move_turned_deg": math.degrees(self.turned),
            "move_aside_m": self.aside,
            "turn_moved_m": self.moved,
            "turn_rolled_m": self.rolled,
            "missed_m": self.missed[0],
            "missed_deg": math.degrees(self.missed[1]),
        }
        for name, values in zip(FRAME, zip(*self.frames, strict=True), strict=bool(self.frames)):
            for share, rank in SHARES.items():
                row[f"{name}_{share}"] = sorted(values)[math.ceil(rank * len(values)) - 1]
        return {**row, "passed": self.passed}


@dataclass(frozen=True)
class _Decision:
    """What the robot knew when it decided: its frame, the stops and the instruction until then."""

    taken: float
    due: float
    stops: int
    instruction: str


class _Step:
    """What the base makes of one step, whose frame was taken at ``taken``."""

    def __init__(self, effect: Announce, base: Base, taken: float) -> None:
        self.goal, self._base, self.begun = effect.goal, base, base.now
        self.turns = bool(effect.goal.angle)
        size = effect.goal.angle or effect.goal.distance
        self.size, self._sign = abs(size), math.copysign(1.0, size)
        self.frame, now = base.made(taken), base.made(base.now)
        self.on_the_move = now.driven > base.made(taken - GRACE).driven or not base.stands
        self._past = self._along + self._rolls[2 * self.turns]  # where it is with no command more
        self._against = max(0.0, self._backwards)
        self.reversed = self.located = False

    @property
    def way(self) -> tuple[float, ...]:
        """What the base made since the frame: m of path, m aside, rad."""
        now, then = self._base.made(self._base.now), self.frame
        return now.path - then.path, now.aside - then.aside, now.turned - then.turned

    @property
    def driven(self) -> float:
        """Seconds of them in which it was commanded to move."""
        return self._base.made(self._base.now).driven - self.frame.driven

    @property
    def _rolls(self) -> Components:
        """What it covers yet if it is commanded to stand now."""
        vx, vy, wz = (abs(v) * self._base.lag for v in self._base.velocity)
        return vx, vy, wz

    @property
    def _along(self) -> float:
        """How far it is in the step's direction from where the frame was taken, m or rad."""
        here, then = self._base.pose, self.frame.pose
        if self.turns:
            return self._sign * (here.yaw - then.yaw)
        dx, dy = here.x - then.x, here.y - then.y
        return self._sign * (dx * math.cos(then.yaw) + dy * math.sin(then.yaw))

    @property
    def _backwards(self) -> float:
        """How fast base or command go against the step's direction."""
        axis = 2 * self.turns
        velocities = self._base.velocity, components(self._base.command)
        return max(-self._sign * velocity[axis] for velocity in velocities)

    def watch(self) -> None:
        """What goes against it may only slow down: the base follows, so the faster of both."""
        backwards = max(0.0, self._backwards)
        self.reversed |= backwards > self._against + AGAINST[self.turns]
        self._against = min(self._against, backwards)

    def judge(self, worst: WorstStep, arrived: bool) -> None:
        """Add it to the worst, with the distance that the base still rolls."""
        vx, vy, wz = self._rolls
        path, aside, turned = self.way
        path, aside, turned = path + math.hypot(vx, vy), aside + vy, turned + wz
        worst.reversed += self.reversed
        covered = turned if self.turns else path
        worst.ratio = max(worst.ratio, (covered - MORE[self.turns]) / self.size)
        if not self.turns:
            worst.turned, worst.aside = max(worst.turned, turned), max(worst.aside, aside)
        elif self.on_the_move:
            worst.rolled = max(worst.rolled, path)
        else:
            worst.moved = max(worst.moved, path)
        if arrived:
            along = self._along + self._rolls[2 * self.turns]
            missed = max(self.size - along, along - max(self.size, self._past))
            worst.missed[self.turns] = max(worst.missed[self.turns], missed)


class _Episode:
    """One navigator, one base and its odometry, under random events."""

    def __init__(self, random: Random, fault: str, worst: WorstStep) -> None:
        self._random, self._worst = random, worst
        self._now = self._tick_at = self._odometry_at = random.uniform(10.0, 1000.0)
        self._base = Base(random.uniform(0.05, 0.1), self._now)
        self._settings = Settings(
            drive=random.choice((*DRIVES, CONTINUOUS, CONTINUOUS)),
            look_period=random.choice((0.0, 0.2, 0.2, 0.5)),
            allow_unverified=random.random() < 0.5,
            clock_offset_limit=random.choice((5.0, 1e10, 1e10)),
        )
        self._navigator = Navigator(self._settings, random.getrandbits(32))
        self._odometry, self._lies = FaultyOdometry(random, fault, self._now), fault != "none"
        self._period = random.uniform(0.02, 0.05)  # s, of odometry
        self._takes = random.random() ** 2 if random.random() < 0.8 else math.inf  # s
        self._answers = random.sample(MOVING, random.choice((1, 2, 2, 3, len(MOVING))))
        self._instruction, self._requests = "", 0
        self._decision: _Decision | None = None
        self._past: deque[_Decision] = deque(maxlen=20)
        self._taken: dict[str, float] = {}  # the frame's time, by request
        self._step: _Step | None = None
        self._last: _Step | None = None
        self._hung_until = -math.inf
        self._left = 0

    def run(self, events: int) -> None:
        """So many events, and a Hold that ends it."""
        self._left = events
        while self._left:
            if self._tick_at <= self._odometry_at:
                self._advance(self._tick_at)
                early = self._random.random() < 0.5  # also after a hang words may come first
                self._decide(early)
                self._send(Tick())
                self._tick_at += self._pause()
                self._decide(not early)
                self._disturb()
            else:
                self._advance(self._odometry_at)
                message = self._odometry.read(self._base.pose, self._now)
                self._odometry_at += self._period * self._random.uniform(0.8, 1.2)
                if message is not None:
                    self._send(message)
        self._left = 1
        self._send(Hold("the end"))
        self._advance(self._now + 2.0)

    def _pause(self) -> float:
        """Seconds to the next tick: mostly a period, sometimes a hang of the navigator."""
        if self._random.random() < 0.01:
            hang = self._random.uniform(0.08, 0.9)
            self._hung_until = self._now + hang
            return hang
        return self._random.uniform(0.7, 1.3) * PERIOD

    def _decide(self, now: bool) -> None:
        """Make a quick drafter's decisions, each from what was known when it began."""
        random, decision, state = self._random, self._decision, self._navigator.status.state
        if not now:
            return
        if self._left > 1 and decision is not None and self._now >= decision.due:
            self._decision = None
            self._send(self._words(decision))
        elif decision is None and random.random() < DECIDES.get(state, 0.0):
            slow = 4.0 if random.random() < 0.1 else random.uniform(0.7, 1.2)
            due = self._now + self._takes * slow
            taken = self._now - random.uniform(0.0, 0.15)
            if due < math.inf:
                stops = self._navigator.stops
                self._decision = _Decision(taken, due, stops, self._instruction)
                self._past.append(self._decision)

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
        if kind < 0.3 and self._past:  # again, however long ago
            return self._words(random.choice(self._past))
        if kind < 0.85:
            careless = random.random() < 0.1
            age = random.uniform(-1.0, 12.0) if careless else random.uniform(0.0, 0.4)
            stops = self._navigator.stops - (random.random() < 0.05)
            instruction = "find it" if careless else self._instruction
            return self._words(_Decision(self._now - age, self._now, stops, instruction))
        if kind < 0.92:
            return EStop(random.random() < 0.3)
        if kind < 0.96:
            self._instruction = random.choice((*ASKED, "stop"))
            return Instruction(self._instruction)
        return Hold(random.choice(("", "", "a parameter")))

    def _words(self, decision: _Decision) -> Words:
        random, ahead = self._random, self._odometry.camera_ahead
        self._requests += 1
        request, verified = str(self._requests), random.random() < 0.9
        self._taken[request] = taken = decision.taken
        answers = ANSWERS if random.random() < 0.1 else self._answers
        return Words(
            request=request,
            position=0,
            tokens=(0,) * 4,
            text=random.choice(answers),
            verified=verified,
            finished=True,
            stamp=self._odometry.stamp_at(taken),
            age=self._now - taken - ahead,
            goal_id=decision.instruction.strip(),
            stops=decision.stops,
            camera_offset=ahead,
        )

    def _send(self, event: Event) -> None:
        self._worst.events += 1
        self._left -= 1
        if isinstance(event, Instruction):  # the drafter hears it, too: the goal is named after it
            text = event.text.strip()
            self._navigator.on(GoalStatus(FOLLOWING, text, goal_id=text), self._now)
        effects = self._navigator.on(event, self._now)
        shown = [effect.status.text for effect in effects if isinstance(effect, Show)]
        arrived = any(text.startswith("idle done") for text in shown)
        for effect in effects:
            if isinstance(effect, Halt | Announce) and self._step is not None:
                sure = not self._lies and self._hung_until < self._step.begun
                self._step.judge(self._worst, arrived and sure)
                self._step = None
            if isinstance(effect, Announce) and effect.action.verb != "stop":
                self._announced(effect)
            self._base.obey(effect)

    def _announced(self, effect: Announce) -> None:
        base, worst = self._base, self._worst
        taken = self._taken[effect.request]
        before, step = self._last, _Step(effect, base, min(taken, self._now))
        step.located = self._odometry.begun
        if before is not None and before.located and not base.stands:
            step.begun = before.begun  # no decision begins the time anew
        self._step = self._last = step
        worst.steps += 1
        path, _, turned = step.way
        worst.frames.append((self._now - taken, step.driven, path, math.degrees(turned)))

    def _advance(self, until: float) -> None:
        """Let the base follow, and measure how long it moves when it must stand."""
        base, step, odometry = self._base, self._last, self._odometry
        for _ in base.run(until):
            if self._step is not None:
                self._step.watch()
            if not base.stands:
                since = base.stopped_at
                if step is not None and step.located:
                    silent = max(odometry.silent_since, step.begun, self._hung_until)
                    since = min(since, silent)
                self._worst.overrun = max(self._worst.overrun, base.now - since)
        self._now = until
