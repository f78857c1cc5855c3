"""Deciding what moves: verified words in, bounded commands out. No I/O, no clock, no thread."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from ..bounds import bounded, check_bounds, chosen, described
from ..instruction import is_stop
from .action import Action
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
from .listener import Listener, Settled
from .motion import Limits, Motion, Pose, Steps, goal_of
from .status import NOBODY, Status

PERIOD = 0.05  # s between ticks, and how long a velocity command is valid
STALL = 0.5  # s without a tick, after which a motion is not taken up again
FUTURE = 0.5  # s that a frame's stamp may lie ahead of the clock
HISTORY = 400  # odometry messages kept to find the pose of a frame
SAME_TIME = 200_000_000  # ns between a frame and the odometry that stands for it
MOVED = (
    1.0,
    math.radians(90),
)  # m, rad since the frame: the decision is about another place


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
    odometry_timeout: float = bounded(0.5, 0.1, 10.0, "odometry older than this is missing, s")
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
    expiry, odometry that went missing, or a gap between ticks. Frames from before a stop count for
    nothing, so a decision that was under way when the robot was stopped moves it neither then nor
    after the release. ``counts`` tells what was dropped.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.status = Status("idle", NOBODY, "started")
        self._listener = Listener()
        self._refused: Counter[str] = Counter(refused=0, expired=0, not_arrived=0)
        self._run: _Run | None = None
        self._latest = NOBODY
        self._stops: dict[str, str] = {}  # what holds the robot -> what people read
        self._not_before = -math.inf  # frames older than this steady time count for nothing
        self._poses: deque[tuple[int, Pose]] = deque(maxlen=HISTORY)
        self._seen: float | None = None  # when odometry last came
        self._ticked = -math.inf

    @property
    def counts(self) -> dict[str, int]:
        """Messages and actions dropped so far, by cause."""
        return {**self._listener.counts, **self._refused}

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
            settled = self._listener.hear(event, now)
            return [] if settled is None else self._decide(settled, now)
        if isinstance(event, EStop):
            return self._latch("e_stop", "e_stop is on" if event.on else "", now)
        if isinstance(event, Hold):
            return self._latch("hold", event.why, now)
        return self._instruct(event, now)

    # Stopping

    def _instruct(self, event: Instruction, now: float) -> list[Effect]:
        if is_stop(event.text):
            return self._latch("instruction", "told to stop", now)
        if event.text.strip():
            return self._latch("instruction", "", now)
        return []

    def _latch(self, name: str, why: str, now: float) -> list[Effect]:
        if why:
            self._stops[name] = why
            self._run, self._not_before = None, now
            return [Halt(), *self._show("stopped")]
        if self._stops.pop(name, None) is None:
            return []
        self._not_before = now
        return self._show("idle", "released")

    def _show(self, state: str, detail: str = "") -> list[Effect]:
        if self._stops:
            state, detail = "stopped", "; ".join(self._stops.values())
        status = Status(state, self._latest, detail)
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
        if self._stops:
            return "; ".join(self._stops.values())
        if not settled.verified and not self.settings.allow_unverified:
            return "its words are not verified (parameter allow_unverified is false)"
        if not age >= -FUTURE:
            return f"its frame's stamp is {-age:.1f} s ahead; synchronize the clocks"
        if not age <= self.settings.frame_age:
            return f"its frame is {age:.1f} s old (parameter frame_age)"
        if settled.frame_time < self._not_before:
            return "its frame is from before the robot was stopped"
        if settled.action is not None and settled.action.verb == "stop":
            return ""
        if self._odometry_missing(now):
            return "odometry is missing"
        anchor = self._pose_at(settled.stamp)
        if anchor is not None and self._poses and self._is_elsewhere(anchor):
            return "the robot has moved away from where its frame was taken"
        return ""

    def _start(self, settled: Settled, action: Action, now: float) -> list[Effect]:
        goal = goal_of(action, self.settings.steps)
        closed_loop = self._locates(now)
        pose = self._poses[-1][1] if closed_loop else None
        anchor = self._pose_at(settled.stamp) if closed_loop else None
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
            return self._end(f"gave up {run.action}: odometry is missing")
        step = run.motion.step(now, self._poses[-1][1] if run.closed_loop else None)
        if step.done:
            if step.arrived:
                return self._end("", f"done: {run.action}")
            self._refused["not_arrived"] += 1
            return self._end(f"{run.action} did not get where it should; is the way blocked?")
        if now >= run.expiry:
            self._refused["expired"] += 1
            return self._end(f"{run.action} expired before its end")
        drive = Drive(step.velocity, min(run.expiry, now + PERIOD))
        if now >= run.ready_at:
            return [drive, *self._show("ready", str(run.action))]
        return [drive]

    def _end(self, problem: str, detail: str = "") -> list[Effect]:
        self._run = None
        reports: list[Effect] = [Report(problem)] if problem else []
        return [Halt(), *reports, *self._show("idle", detail or problem)]

    # Odometry

    def _locate(self, event: Odometry, now: float) -> list[Effect]:
        pose = event.pose
        if not all(math.isfinite(value) for value in (pose.x, pose.y, pose.yaw)):
            return [Report("odometry that is not a number was dropped")]
        self._seen = now
        self._poses.append((event.stamp, pose))
        return []

    def _locates(self, now: float) -> bool:
        settings = self.settings
        recent = self._seen is not None and now - self._seen <= settings.odometry_timeout
        return recent and settings.odometry != "off"

    def _odometry_missing(self, now: float) -> bool:
        needed = {"off": False, "required": True, "auto": self._seen is not None}
        return needed[self.settings.odometry] and not self._locates(now)

    def _pose_at(self, stamp: int) -> Pose | None:
        """Where the robot was at ``stamp``; None if odometry does not tell."""
        if not self._poses:
            return None
        at, pose = min(self._poses, key=lambda entry: abs(entry[0] - stamp))
        return pose if abs(at - stamp) <= SAME_TIME else None

    def _is_elsewhere(self, then: Pose) -> bool:
        here = self._poses[-1][1]
        turned = abs(math.remainder(here.yaw - then.yaw, 2 * math.pi))
        return math.hypot(here.x - then.x, here.y - then.y) > MOVED[0] or turned > MOVED[1]
