"""Deciding what moves: verified words in, bounded commands out. No I/O, no clock, no thread."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ..bounds import bounded, check_bounds, chosen, described
from ..instruction import is_stop, normalized
from .action import Action
from .answer_assembler import AnswerAssembler, Settled
from .budget import PERIOD
from .events import (
    Announce,
    Drive,
    Effect,
    EStop,
    Event,
    Halt,
    Hold,
    Instruction,
    Odometry,
    Report,
    Show,
    Tick,
    Words,
)
from .motion import Limits, Motion, Steps, goal_of
from .status import NOBODY, Status
from .track import Track

STALL = 0.5  # s without a tick, after which a motion is not taken up again
FUTURE = 0.5  # s that a frame's stamp may lie ahead of the clock
MOVED = (1.0, math.radians(90))  # m, rad since the frame: the decision is about another place


@dataclass(frozen=True)
class Settings:
    """How the navigator behaves. Raises ValueError naming a field that is out of its range."""

    limits: Limits = field(default_factory=Limits)
    steps: Steps = field(default_factory=Steps)
    allow_unverified: bool = described(
        False, "move on words that nobody has verified (preset edge_only)"
    )
    odometry: str = chosen(
        "auto",
        ("auto", "required", "off"),
        "auto: timed until odometry was seen, needed from then on; required; off: always timed",
    )
    odometry_timeout: float = bounded(
        0.5, 0.1, 10.0, "odometry whose stamps have not gone on for so long is missing, s"
    )
    frame_age: float = bounded(10.0, 0.1, 600.0, "a decision on an older frame is refused, s")
    command_lifetime: float = bounded(5.0, 0.5, 30.0, "a command expires at the latest after, s")
    lead_time: float = bounded(
        0.0,
        0.0,
        2.0,
        "the next decision may start this long before a motion's planned end, s",
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass
class _Run:
    request: str
    action: Action
    motion: Motion
    expiry: float
    ready_at: float
    closed_loop: bool


class Navigator:
    """``on(event, now)`` answers with effects, to be carried out in their order.

    Only the last motion runs; what stops it is an event (e_stop, ``stop``, hold), its own end or
    expiry, odometry that went missing or jumped, or a gap between ticks.

    A decision that was under way when the robot was stopped moves it neither then nor after the
    release: ``stops`` counts both, words say the count that was heard before their frame came, and
    only those of this very count move. (That the frame is no older than the stop is asked as well;
    it takes clocks that agree.) Once an instruction was heard, only words for it move. What says
    ``stop`` stops, whatever it was decided for. ``counts`` tells what was dropped.
    """

    def __init__(self, settings: Settings | None = None, stops: int = 0) -> None:
        """``stops``: where to begin counting; another number for each navigator that runs."""
        self.settings = settings or Settings()
        self.stops = stops
        self.status = Status("idle", NOBODY, "started", stops)
        self._assembler = AnswerAssembler()
        self._refused: Counter[str] = Counter(refused=0, expired=0, not_arrived=0)
        self._run: _Run | None = None
        self._latest = NOBODY
        self._instruction: str | None = None
        self._held: dict[str, str] = {}  # what holds the robot -> what people read
        self._not_before = -math.inf  # frames older than this steady time count for nothing
        self._track = Track()
        self._ticked = -math.inf

    @property
    def counts(self) -> dict[str, int]:
        """Messages and actions dropped so far, by cause."""
        return {**self._assembler.counts, **self._refused}

    @property
    def moving(self) -> bool:
        """Whether a motion runs."""
        return self._run is not None

    def on(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event`` at ``now`` (steady seconds)."""
        if isinstance(event, Tick):
            return self._tick(now)
        if isinstance(event, Odometry):
            return self._locate(event, now)
        if isinstance(event, Words):
            settled = self._assembler.hear(event, now)
            return [] if settled is None else self._decide(settled, now)
        if isinstance(event, EStop):
            return self._latch("e_stop", "e_stop is on" if event.on else "", now)
        if isinstance(event, Hold):
            return self._latch("hold", event.why, now)
        return self._instruct(event, now)

    # Stopping

    def _instruct(self, event: Instruction, now: float) -> list[Effect]:
        self._instruction = normalized(event.text)
        if is_stop(event.text):
            return self._latch("instruction", "told to stop", now)
        if self._instruction:
            return self._latch("instruction", "", now)
        return []

    def _latch(self, name: str, why: str, now: float) -> list[Effect]:
        if why:
            self._held[name] = why
            self._run = None
            self._count(now)
            return [Halt(), *self._show("stopped")]
        if self._held.pop(name, None) is None:
            return []
        self._count(now)
        return self._show("idle", "released")

    def _count(self, now: float) -> None:
        self.stops += 1
        self._not_before = now

    def _show(self, state: str, detail: str = "") -> list[Effect]:
        if self._held:
            state, detail = "stopped", "; ".join(self._held.values())
        status = Status(state, self._latest, detail, self.stops)
        if status == self.status:
            return []
        self.status = status
        return [Show(status)]

    # Deciding

    def _decide(self, settled: Settled, now: float) -> list[Effect]:
        self._latest = settled.request
        problem = settled.problem or self._objection(settled, now)
        if problem or settled.action is None:
            self._refused["refused"] += 1
            report = Report(f"request {settled.request} moves nothing: {problem}")
            return [
                report,
                *([] if self._run else self._show("idle", f"refused: {problem}")),
            ]
        if settled.action.verb == "stop":
            self._run = None
            announce = self._announce(settled, settled.action, 0.0)
            return [Halt(), announce, *self._show("idle", "stop")]
        return self._start(settled, settled.action, now)

    def _objection(self, settled: Settled, now: float) -> str:
        age = now - settled.frame_time
        if self._held:
            return "; ".join(self._held.values())
        if not settled.verified and not self.settings.allow_unverified:
            return "its words are not verified (parameter allow_unverified is false)"
        if not age >= -FUTURE:
            return f"its frame's stamp is {-age:.1f} s ahead; synchronize the clocks"
        if not age <= self.settings.frame_age:
            return f"its frame is {age:.1f} s old (parameter frame_age)"
        if settled.action is not None and settled.action.verb == "stop":
            return ""  # that harms nobody, whenever it was decided
        if self._instruction not in (None, normalized(settled.instruction)):
            return f"it was decided for another instruction, {settled.instruction[:80]!r}"
        if settled.stops != self.stops or settled.frame_time < self._not_before:
            return "its frame is from before the robot was stopped, or released"
        if self._odometry_missing(now):
            return self._missing(now)
        moved, turned = self._track.moved_since(settled.stamp)
        if moved > MOVED[0] or turned > MOVED[1]:
            return "the robot has moved away from where its frame was taken"
        return ""

    def _start(self, settled: Settled, action: Action, now: float) -> list[Effect]:
        goal = goal_of(action, self.settings.steps)
        closed_loop = self._locates(now)
        pose = self._track.newest if closed_loop else None
        anchor = self._track.at(settled.stamp) if closed_loop else None
        motion = Motion(goal, self.settings.limits, now, pose, anchor)
        expiry = min(motion.deadline, now + self.settings.command_lifetime)
        ready_at = now + motion.duration - self.settings.lead_time
        if self.settings.lead_time == 0.0:
            ready_at = math.inf
        self._run = _Run(settled.request, action, motion, expiry, ready_at, closed_loop)
        self._ticked = now
        announce = self._announce(settled, action, expiry - now)
        return [announce, *self._show("moving", str(action)), *self._tick(now)]

    def _announce(self, settled: Settled, action: Action, lasts: float) -> Announce:
        goal = goal_of(action, self.settings.steps)
        return Announce(settled.request, action, goal, settled.stamp, lasts, settled.verified)

    # Moving

    def _tick(self, now: float) -> list[Effect]:
        run, gap, self._ticked = self._run, now - self._ticked, now
        if run is None:
            return []
        if gap > STALL:
            return self._end(f"gave up {run.action}: the navigator stood still for {gap:.1f} s")
        if run.closed_loop and not self._locates(now):
            return self._end(f"gave up {run.action}: {self._missing(now)}")
        if run.closed_loop and self._track.falters(now):
            step = run.motion.wait(now)
        else:
            step = run.motion.step(now, self._track.newest if run.closed_loop else None)
        if step.done:
            if step.arrived:
                return self._end("", f"done: {run.action}")
            self._refused["not_arrived"] += 1
            return self._end(f"{run.action} {step.problem}")
        if now >= run.expiry:
            self._refused["expired"] += 1
            return self._end(f"{run.action} expired before its end")
        drive = Drive(step.velocity, min(run.expiry, now + PERIOD), now + step.lasts)
        if now >= run.ready_at:
            return [drive, *self._show("ready", str(run.action))]
        return [drive]

    def _end(self, problem: str, detail: str = "") -> list[Effect]:
        self._run = None
        reports: list[Effect] = [Report(problem)] if problem else []
        return [Halt(), *reports, *self._show("idle", detail or problem)]

    # Odometry

    def _locate(self, event: Odometry, now: float) -> list[Effect]:
        if not event.pose.sane:
            return [Report("odometry that is not a number, or no place, was dropped")]
        self._track.add(event.pose, event.stamp, now, self.settings.odometry_timeout)
        return []

    def _locates(self, now: float) -> bool:
        settings = self.settings
        return settings.odometry != "off" and self._track.silence(now) <= settings.odometry_timeout

    def _odometry_missing(self, now: float) -> bool:
        needed = {"off": False, "required": True, "auto": self._track.begun}
        return needed[self.settings.odometry] and not self._locates(now)

    def _missing(self, now: float) -> str:
        hung = self._track.hangs(now, self.settings.odometry_timeout)
        return "odometry is missing" + (": its stamps do not go on" if hung else "")
